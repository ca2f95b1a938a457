"""Why a flow does not advance, in words: one pure decision from what was seen of it twice.

The one idea: a lag is no stall. What was there to be done a round ago and is still not done, while
nothing else was, has a cause, and the cause is in the rows: a shard has no holder, it is parked, it
fails, it waits for another one, it is busy, or a transaction holds back a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rowlock.streams.computing.hashing import BucketRange
from rowlock.streams.inputs.candidates import OpenWriter

NAMES_MAX: Final = 16
"""Most calls that are named at once."""


@dataclass(frozen=True, slots=True)
class BusyCall:
    stage: str
    key: str | None
    seconds: float

    def __str__(self) -> str:
        key = "all keys" if self.key is None else f"the key {self.key!r}"
        return f"{self.stage!r} is at {key} for {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class ShardLook:
    range: BucketRange
    step: int  # what it does next
    is_held: bool
    replica: str = ""  # the name of the one that holds it, or held it last
    parked: str | None = None  # why it is parked; None: it is not
    failures: int = 0  # failed attempts of its handlers and its write at `step`
    error: str | None = None  # of the last attempt; None if it did not fail
    # How long the computation of its last step took; None: it has not done one
    seconds: float | None = None
    # The step from which it repeats what it has done, before it does more; None: it has nothing to
    # repeat
    version: int | None = None
    busy: BusyCall | None = None

    @property
    def is_to_replay(self) -> bool:
        return self.version is not None and self.version < self.step

    def __str__(self) -> str:
        return f"the shard of buckets {self.range}"


@dataclass(frozen=True, slots=True)
class SourceLook:
    name: str
    upto: int  # the position up to which it is cut
    newest: int  # the last position that is visible
    mark: int  # no row can appear at or below this position any more
    held_back_by: tuple[OpenWriter, ...] = ()  # the transactions for which the mark waits
    error: str | None = None  # why it cannot be read; None: it can
    # The flow that the mark of an output waits for, in words; None: it waits for none
    upstream: str | None = None


@dataclass(frozen=True, slots=True)
class FlowLook:
    state: str
    next_step: int  # the first step that is not cut
    shards: Sequence[ShardLook]
    sources: Sequence[SourceLook] = ()
    # By stage, the shards for whose messages others wait in the step of the frontier
    unsent: Mapping[str, Sequence[BucketRange]] = field(default_factory=dict)
    missing: str | None = None  # which buckets have no shard, in words; None: each has one
    recorded: int = 0  # the frontier as it was known last, where shards are missing
    # By source, the position behind which the flow began, where there was one
    begins_after: Mapping[str, int] = field(default_factory=dict)
    # Which step has other events than it was done with, in words; None: none is known
    differs: str | None = None
    replicas: int = 0  # how many work on it

    @property
    def frontier(self) -> int:
        if self.missing is not None:
            return self.recorded
        return min(shard.step for shard in self.shards)


class StallKind(Enum):
    MISSING = "shards are missing"
    PARKED = "parked"
    FAILING = "failing"
    NO_HOLDER = "no holder"
    EXCHANGE = "waits for shard at stage"
    BUSY = "busy"
    SOURCE = "source"
    HIGH_WATER = "high-water mark"
    NOT_CUT = "not cut"


@dataclass(frozen=True, slots=True)
class Stall:
    """Why a flow does not advance: the kind, and the same in words, with who and where."""

    kind: StallKind
    text: str


def stall_of(before: FlowLook, now: FlowLook) -> Stall | None:
    """Return why a flow has not advanced between two looks; None if there is no reason."""
    if now.missing is not None:
        return Stall(StallKind.MISSING, now.missing)
    if now.frontier > before.frontier:
        return None
    if before.frontier < before.next_step:
        return stall_of_steps(now)
    if now.state == "running" and now.next_step == before.next_step:
        return stall_of_cuts(before, now)
    return None


def stall_of_steps(now: FlowLook) -> Stall:
    """Return why a step that is cut is not done."""
    step = now.frontier
    last = [shard for shard in now.shards if shard.step == step]
    if broken := parked_of(last) or _failing(last):
        return broken
    free = [shard for shard in last if not shard.is_held]
    if free:
        return Stall(StallKind.NO_HOLDER, f"no replica holds {_all_of(free)}, at step {step}")
    for stage, ranges in now.unsent.items():
        if ranges:
            names = _all_of([shard for shard in last if shard.range in ranges])
            text = f"shards wait in step {step} at stage {stage!r} for {names}"
            return Stall(StallKind.EXCHANGE, text)
    return Stall(StallKind.BUSY, _busy(last, step))


def _busy(shards: Sequence[ShardLook], step: int) -> str:
    """Return which of the shards that are at work takes longest, and at what."""
    calls = [
        f"{shard} is busy with step {step} at {shard.replica}: {shard.busy}"
        for shard in sorted(shards, key=lambda one: one.busy.seconds if one.busy else 0.0)[::-1]
        if shard.busy is not None
    ]
    if calls:
        more = len(calls) - NAMES_MAX
        return "; ".join(calls[:NAMES_MAX]) + f"; and {more} more" * (more > 0)
    slow = max(shards, key=lambda shard: shard.seconds or 0.0)
    took = "" if slow.seconds is None else f"; its last step took {slow.seconds:.1f} s"
    return f"{slow} is busy with step {step} at {slow.replica}{took}"


def parked_of(shards: Sequence[ShardLook]) -> Stall | None:
    """Return which of `shards` are parked, and by what; None: none is."""
    parked = [shard for shard in shards if shard.parked is not None]
    if not parked:
        return None
    first, more = parked[0], len(parked) - 1
    text = f"{first} is parked at step {first.step}: {first.parked}"
    return Stall(StallKind.PARKED, text + f"; and {more} more are parked" * (more > 0))


def _failing(shards: Sequence[ShardLook]) -> Stall | None:
    failing = [shard for shard in shards if not shard.is_held and shard.error is not None]
    if not failing:
        return None
    first, more = failing[0], len(failing) - 1
    times = f" {first.failures} time{'s' * (first.failures != 1)}" * (first.failures > 0)
    text = f"{first} has failed{times} at step {first.step}, and is tried again: {first.error}"
    # What all of them need, such as a column, is in the error of each.
    return Stall(StallKind.FAILING, text + f"; and {more} more have failed" * (more > 0))


def _all_of(shards: Sequence[ShardLook]) -> str:
    if len(shards) == 1:
        return str(shards[0])
    return f"{len(shards)} shards, of which the first has buckets {shards[0].range}"


def stall_of_cuts(before: FlowLook, now: FlowLook) -> Stall | None:
    """Return why rows that were there are not cut; None: there were none."""
    known = {source.name: source for source in before.sources}
    for source in now.sources:
        if source.error is not None:
            return Stall(StallKind.SOURCE, source.error)
        earlier = known.get(source.name)
        if earlier is None or source.upto >= earlier.newest:
            continue
        stream = f"the stream {source.name!r}"
        if earlier.mark > source.upto:
            if not any(shard.is_held for shard in now.shards):
                return _without_holder(now, stream)
            text = f"{stream} has rows up to position {source.mark}, and no step is cut for them"
            return Stall(StallKind.NOT_CUT, text)
        who = _holder_of(source)
        if source.mark <= source.upto and who is not None:
            text = (
                f"{stream} is complete up to position {source.upto} of {source.newest}: it waits"
                f" for {who}"
            )
            return Stall(StallKind.HIGH_WATER, text)
    return None


def _without_holder(now: FlowLook, stream: str) -> Stall:
    """Return why no step is cut where no replica holds a shard."""
    # What parks a shard holds, also where it has done all steps: it was to repeat some.
    if parked := parked_of(now.shards):
        return parked
    # The last error of a shard that is not behind is over.
    behind = [one for one in now.shards if one.step < now.next_step or one.is_to_replay]
    text = f"no replica holds a shard, so no step is cut for the new rows of {stream}"
    return _failing(behind) or Stall(StallKind.NO_HOLDER, text)


def _holder_of(source: SourceLook) -> str | None:
    """Return what the mark of a source waits for; None: nothing."""
    if not source.held_back_by:
        return source.upstream
    more = len(source.held_back_by) - 1
    return f"the transaction of {source.held_back_by[0]}" + (f" and {more} more" if more else "")
