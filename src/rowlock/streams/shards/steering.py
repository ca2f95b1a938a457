"""What wishes make of the states of shards, and which steps are done together: decisions alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from rowlock.streams.cutting.flow_view import FlowFacts, KnownFlow, RecordedCut
from rowlock.streams.cutting.together import (
    BYTES_TOGETHER_MAX,
    ROWS_TOGETHER_MAX,
    STEPS_TOGETHER_MAX,
)
from rowlock.streams.range_condition import has_all
from rowlock.streams.shards.next_action import NextAction
from rowlock.streams.shards.own_shard import OwnShard
from rowlock.streams.shards.states import (
    HeldState,
    Pause,
    Paused,
    PauseRequested,
    ResumeRequested,
    Run,
    ShardState,
    Stop,
    StopRequested,
    TopReached,
    advance,
    earliest_end,
    is_replay,
)
from rowlock.streams.shards.steps.steps_of import StepsOf


def steered(shard: OwnShard, facts: FlowFacts, *, leaves: bool) -> ShardState:
    """Return the state of a shard at the top of the loop, after what is wished of it.

    Args:
        shard: which one.
        facts: the row of the flow.
        leaves: it is to be released: by a shutdown, or since it is another replica's.
    """
    state = shard.state
    if isinstance(state, Run | Pause | Paused):
        if facts.state == "stopped" or leaves:
            is_inside = shard.doing is not None
            # A flow that stops does what is cut; who leaves hands the rest on.
            earliest = max(earliest_end(state, is_inside=is_inside), state.written)
            end = earliest if leaves else facts.next_step
            return advance(state, StopRequested(end, facts.next_step, is_inside))
        # Another replica may have cut a step between two pauses of which this one saw the second.
        is_behind = isinstance(state, Paused) and state.at < facts.next_step
        if is_behind or (facts.state == "running" and not isinstance(state, Run)):
            state = advance(state, ResumeRequested())
        if facts.state == "paused" and isinstance(state, Run):
            state = advance(state, PauseRequested())
    if isinstance(state, Pause) and state.at == facts.next_step:
        return advance(state, TopReached(facts.next_step, shard.version))
    return state


def to_reopen(shards: Iterable[OwnShard]) -> list[OwnShard]:
    """Return shards that must begin anew at their versions: each of them has done steps whose
    messages stayed in memory, and another shard that took part in them is not here any more, or has
    begun anew. It needs these messages again.

    Args:
        shards: those that are held here and open.
    """
    unrecorded = [shard for shard in shards if shard.is_unrecorded]
    return [] if has_all(shard.range for shard in unrecorded) else unrecorded


def new_steps(
    actions: Mapping[OwnShard, NextAction],
    known: KnownFlow,
    *,
    has_exchange: bool,
    memory_from: int = 0,
) -> list[StepsOf]:
    """Return what shards that have a step to do, and are not within one, are to do now.

    Args:
        actions: what each shard here does next.
        known: the cuts.
        has_exchange: shards send each other messages.
        memory_from: in steps before this one they do not stay in memory.
    """
    ready: list[OwnShard] = [
        shard
        for shard, action in actions.items()
        if action in (NextAction.RUN, NextAction.REPLAY) and shard.doing is None
    ]
    if not has_exchange:
        return _by_kind(ready, known, together_max=STEPS_TOGETHER_MAX)
    if may_stay_in_memory(ready, memory_from=memory_from):
        return _steps(ready, known, end=min(map(_end, ready)), in_memory=True)
    # Several steps at once would have two replicas wait for each other that do not begin them all
    # at once.
    return _by_kind(ready, known, together_max=1)


def may_stay_in_memory(shards: Sequence[OwnShard], *, memory_from: int = 0) -> bool:
    """Return whether what these shards send each other in their next step may stay in memory: they
    are all of the flow, at one step, and none is known to fail there.

    A step that fails in memory is lost for all of them; through the database the others wait in it.
    """
    ats = {shard.at for shard in shards}
    if not has_all(shard.range for shard in shards) or len(ats) != 1:
        return False
    (at,) = ats
    failed = {shard.failures.failed_step for shard in shards} - {None}
    return at >= memory_from and all(step is not None and step < at for step in failed)


def _by_kind(ready: Sequence[OwnShard], known: KnownFlow, *, together_max: int) -> list[StepsOf]:
    """Return steps of shards together that are at one step and alike."""
    groups: dict[tuple[int, int], list[OwnShard]] = {}
    for shard in ready:
        end = min(_end(shard), shard.at + together_max)
        groups.setdefault((shard.at, end), []).append(shard)
    return [
        steps for (_, end), shards in groups.items() for steps in _steps(shards, known, end=end)
    ]


def _steps(
    shards: list[OwnShard], known: KnownFlow, *, end: int, in_memory: bool = False
) -> list[StepsOf]:
    at = shards[0].at
    before = known.cut(at - 1)
    cuts = known.consecutive(at, min(STEPS_TOGETHER_MAX, end - at))
    if before is None or not cuts:
        return []
    return [StepsOf(list(shards), before, together(known, before, cuts), in_memory=in_memory)]


def _end(shard: OwnShard) -> int:
    """Return the step before which the steps end that are done together now."""
    state = shard.state
    assert isinstance(state, HeldState)
    if is_replay(state):
        return state.written
    return state.end if isinstance(state, Stop) else state.at + STEPS_TOGETHER_MAX


def together(
    known: KnownFlow, before: RecordedCut, cuts: Sequence[RecordedCut]
) -> list[RecordedCut]:
    """Return the first of `cuts` that are done in one transaction: their states are written once,
    so the step of a snapshot is the last of them.
    """
    taken: list[RecordedCut] = []
    rows = size = 0
    for earlier, cut in pairwise([before, *cuts]):
        rows += known.weight(earlier, cut)
        size += cut.bytes
        is_much = rows > ROWS_TOGETHER_MAX or size > BYTES_TOGETHER_MAX
        if taken and (is_much or taken[-1].is_snapshot):
            break
        taken.append(cut)
    return taken


def lowest(shards: Iterable[OwnShard]) -> int | None:
    """Return the lowest step that a shard does next; None if none is open."""
    ats = [shard.state.at for shard in shards if isinstance(shard.state, HeldState)]
    return min(ats, default=None)
