"""How far a flow is, and what it waits for: values, and the words for them.

Nothing here runs SQL: ``status_reader.py`` reads what these are made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rowlock.streams.coordinating.stalls import (
    FlowLook,
    ShardLook,
    SourceLook,
    parked_of,
    stall_of_cuts,
    stall_of_steps,
)
from rowlock.streams.inputs.candidates import OpenWriter

NOTHING = "nothing"
"""What a flow waits for that has done all rows."""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """How far a shard is.

    Attributes:
        lo: its first bucket.
        hi: the bucket behind its last one.
        replica: the name of the replica that holds it; None if none does.
        step: what it does next.
        lag: how many steps are cut that it has not done.
        is_parked: it has failed too often at a step, or repeated one with another result, and
            waits for `StreamFlow.unpark`.
        error: of its last failure at `step`, or at a step that it repeats; None if there was none.
        text: what it waits for; None if it has done all that is cut.
    """

    lo: int
    hi: int
    replica: str | None
    step: int
    lag: int
    is_parked: bool
    error: str | None
    text: str | None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How far a flow is with one of its sources.

    Attributes:
        name: within the flow.
        done: the position up to which all shards have done it.
        cut: the position up to which it is cut into steps.
        mark: its high-water mark, as far as one look tells: no row can appear at or below this
            position any more.
        newest: the last position that is visible.
        lag_rows: how many rows are visible and not done. Behind the first `LAG_ROWS_MAX` of them
            positions are counted, of which some may have no row.
        held_back_by: the transactions that may still add rows below `newest`, the one that has been
            open for longest first.
        text: why its rows are not cut; None if they are.
        begins_after: the position behind which the flow began: there was nothing before it, or it
            was deleted, or the flow began with what came next (``start="now"``).
    """

    name: str
    done: int
    cut: int
    mark: int
    newest: int
    lag_rows: int
    held_back_by: tuple[OpenWriter, ...]
    text: str | None
    begins_after: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """How far a consumer of results is.

    Attributes:
        output: what it reads.
        consumer: its name.
        step: the last one that it has acknowledged; -1 if it has only begun to read.
        lag: how many steps have been done since the first one whose results it has not
            acknowledged, that one included; 0 if there is none.
        at: when it acknowledged, or began, in seconds before now.
    """

    output: str
    consumer: str
    step: int
    lag: int
    at: float


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica that works on a flow.

    Attributes:
        name: of its machine and process.
        code_version: of its flow, as the host says it.
        shards: how many it holds, as it said last.
        seen: when it said so, in seconds before now.
    """

    name: str
    code_version: str
    shards: int
    seen: float


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """How far a flow is, and what it waits for.

    Attributes:
        flow: its name.
        state: ``running``, ``paused``, ``stopped``; ``new`` as long as it was never started;
            ``lost`` if its row was deleted, and others of it are there.
        next_step: the first step that is not cut.
        frontier: the first step that is not done by all shards; where shards are missing, as it
            was known last.
        lag_rows: how many rows of all sources are visible and not done.
        lag_s: for how long the oldest of them has waited, in seconds: since its step was cut. For
            rows that are not cut, which have no time of their own: since the oldest transaction
            began that holds them back, or else since the last cut, which may be too much.
        text: what it waits for, or which shards are missing; `NOTHING` if all rows are done, and
            no shard is parked.
        shards: in the order of their buckets.
        sources: in the order of their declaration.
        consumers: that have a name, by output and name.
        replicas: that were seen, by name.
        differs: which of the steps that were verified has other events than it was done with; None
            if none has. The coordinator verifies the last ones every ten minutes.
    """

    flow: str
    state: str
    next_step: int
    frontier: int
    lag_rows: int
    lag_s: float
    text: str
    shards: Sequence[ShardStatus] = ()
    sources: Sequence[SourceStatus] = ()
    consumers: Sequence[ConsumerStatus] = ()
    replicas: Sequence[ReplicaStatus] = ()
    differs: str | None = None


def flow_text(look: FlowLook) -> str:
    """Return what a flow waits for."""
    if look.missing is not None:
        return look.missing
    if look.frontier < look.next_step:
        return stall_of_steps(look).text
    waits = cut_text(look)
    if waits is not None:
        return waits
    # Nothing is lost by it yet: but nobody would know before the next row comes.
    parked = parked_of(look.shards)
    return NOTHING if parked is None else parked.text


def cut_text(look: FlowLook) -> str | None:
    """Return why rows that are visible are not cut; None: there are none."""
    if all(source.upto >= source.newest and source.error is None for source in look.sources):
        return None
    if look.state != "running":
        return f"the flow is {look.state}"
    stall = stall_of_cuts(look, look)
    return None if stall is None else stall.text


def source_text(look: FlowLook, source: SourceLook) -> str | None:
    """Return why rows of one source are not cut; None: they are."""
    return cut_text(replace(look, sources=[source]))


def shard_text(look: FlowLook, shard: ShardLook) -> str | None:
    """Return what a shard waits for; None: it has done all that is cut."""
    if parked := parked_of([shard]):
        return parked.text
    if shard.step >= look.next_step:
        return None
    awaited = {each for ranges in look.unsent.values() for each in ranges}
    if awaited and shard.step == look.frontier and shard.range not in awaited:
        return flow_text(look)
    return stall_of_steps(replace(look, shards=[shard], unsent={}, missing=None)).text


def why_not_done(look: FlowLook, positions: Mapping[str, int]) -> str:
    """Return why rows at `positions`, by source, are not done."""
    for source in look.sources:
        position = positions.get(source.name, 0)
        if source.upto >= position:
            continue
        is_free = not source.held_back_by and source.upstream is None
        if source.error is None and is_free and source.newest < position:
            return (
                f"no row of {source.name} is visible at position {position}: its transaction has"
                " not committed, or was rolled back"
            )
        # As if the row were the newest one, which it may not be visible to be.
        wanted = replace(source, newest=max(source.newest, position))
        return source_text(look, wanted) or "it was just cut"
    return flow_text(look)
