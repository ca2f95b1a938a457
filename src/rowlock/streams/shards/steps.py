"""Steps that some shards do together: what each of them did and is to write, as values that are
handed around; which steps are done together, and what requests make of the states of shards, as
decisions alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

from rowlock import PipelineItem
from rowlock.spi import Wake
from rowlock.streams.computing.compute import Computed, PoisonedKey
from rowlock.streams.computing.handlers import NOTHING_YET, HandedOut
from rowlock.streams.computing.hashing import BucketRange, combined
from rowlock.streams.computing.rows import SentMessages, input_digest
from rowlock.streams.cut_plan import (
    BYTES_TOGETHER_MAX,
    ROWS_TOGETHER_MAX,
    STEPS_TOGETHER_MAX,
)
from rowlock.streams.exchanging import Exchange
from rowlock.streams.flow_view import FlowFacts, KnownFlow, RecordedCut
from rowlock.streams.folds import FoldedRow
from rowlock.streams.key_states import ShardCache, StateWrite
from rowlock.streams.outputs import ResultRow
from rowlock.streams.shards.replicas import OwnShard
from rowlock.streams.shards.slow_calls import SLOW_S, SlowCalls
from rowlock.streams.shards.states import (
    HeldState,
    NextAction,
    Pause,
    Paused,
    PauseRequested,
    ResumeRequested,
    Run,
    ShardState,
    StepFailures,
    Stop,
    StopRequested,
    TopReached,
    advance,
    earliest_end,
    is_replay,
)
from rowlock.streams.statements import has_all


class PartRow(NamedTuple):
    """The record of what a shard did in a step; its output digest is of results, messages and
    changed states.
    """

    step: int
    rows: int
    input_digest: str
    outputs: int
    output_digest: str
    seconds: float


@dataclass(slots=True)
class StepWrite:
    """What is written for one shard, under its token.

    Attributes:
        before: the step that its row says it does next.
        step: the step that it is to do next.
        version: the step at whose start the states are that are in the database then.
        snapshot: of the older version that is kept; None if there is none.
        rows: of the host's tables, by the name of the stage that has folded into them.
        state_keys: how many keys have a state then, at least.
    """

    item: PipelineItem[Any]
    range: BucketRange
    before: int
    step: int
    version: int
    snapshot: int | None
    replica: UUID
    failures: StepFailures = field(default_factory=StepFailures)
    parts: list[PartRow] = field(default_factory=list)
    results: dict[str, list[ResultRow]] = field(default_factory=dict)
    states: list[StateWrite] = field(default_factory=list)
    rows: dict[str, list[FoldedRow]] = field(default_factory=dict)
    state_keys: int = 0


NO_INPUT = input_digest(())


@dataclass(eq=False)
class StepsOf:
    """Consecutive steps that some shards do next, stage by stage.

    Attributes:
        shards: all at the first of these steps.
        before: the cut before them.
        in_memory: the shards are all of the flow, and what they send each other stays in
            memory; so all of them write these steps in one transaction, or none does.
        stage: the number of the stage that is done next.
        parts: what replays are compared with, by `lo` and step.
        events: of the stage that is done next, of each shard.
        keys: of each shard, whose states that stage needs; None: they are known.
        thread: that finds these keys, or computes the stage; None while none does.
    """

    shards: list[OwnShard]
    before: RecordedCut
    cuts: Sequence[RecordedCut]
    in_memory: bool = False
    exchange: Exchange | None = None
    stage: int = 0
    did: dict[OwnShard, ShardDid] = field(default_factory=dict)
    parts: Mapping[tuple[int, int], Any] = field(default_factory=dict)
    events: Mapping[OwnShard, Any] = field(default_factory=dict)
    keys: dict[OwnShard, list[str]] | None = None
    thread: StageThread | None = None

    @property
    def numbers(self) -> list[int]:
        return [cut.step for cut in self.cuts]


@dataclass(slots=True)
class StagesDone:
    """What one shard has done of one step, up to some stage.

    Attributes:
        rows: how many rows of the sources it has.
        digests: of what followed, of each stage; empty where a stage had nothing to do.
    """

    rows: int = 0
    input_digest: str = NO_INPUT
    digests: list[str] = field(default_factory=list)
    outputs: int = 0
    seconds: float = 0.0
    handed_out: HandedOut = NOTHING_YET

    def add(self, computed: Computed | None, seconds: float) -> None:
        """Add a stage; None: it had nothing to do."""
        if computed is None:
            self.digests.append("")
            return
        if not self.digests:
            self.rows, self.input_digest = computed.rows, computed.input_digest
        self.digests.append(computed.output_digest)
        self.outputs += len(computed.results)
        self.seconds += seconds
        self.handed_out = computed.handed_out

    def part(self, step: int) -> PartRow | None:
        """Return the record of the step; None if there was nothing to do."""
        if not any(self.digests):
            return None
        digest = combined(self.digests)
        return PartRow(step, self.rows, self.input_digest, self.outputs, digest, self.seconds)


@dataclass(slots=True)
class ShardDid:
    """What a shard did of some steps.

    Attributes:
        step: the step behind the last one that it did.
        done: each step, up to the stage that was done last.
        sent: messages, by the name of the stage that gets them, the step, and the number of
            the stage that has sent them.
        parts: the record of each step with something to do.
        poisoned: why it did no more; None: it did all.
        differs: how a replay came out otherwise than the first time; None: it did not.
    """

    shard: OwnShard
    steps: StepsOf
    cache: ShardCache
    step: int
    done: dict[int, StagesDone] = field(default_factory=dict)
    sent: dict[str, dict[int, dict[int, SentMessages]]] = field(default_factory=dict)
    parts: list[PartRow] = field(default_factory=list)
    results: dict[str, list[ResultRow]] = field(default_factory=dict)
    poisoned: PoisonedKey | None = None
    differs: str | None = None

    @property
    def is_replay(self) -> bool:
        """Whether these steps were written before: only states are kept, and all is compared."""
        return self.steps.cuts[0].step < self.shard.step

    @property
    def has_failed(self) -> bool:
        return self.poisoned is not None or self.differs is not None


class StageThread:
    """A thread that computes something of a stage of some steps, for one shard after the other.
    While `is_slow`, a handler is called for longer than `SLOW_S`, and it is not waited for.
    """

    def __init__(
        self,
        dids: Iterable[tuple[ShardDid, Any]],
        compute: Callable[[ShardDid, Any], None],
        *,
        calls: SlowCalls,
        wake: Wake,
    ) -> None:
        self.is_slow = False
        self._left = deque(dids)
        self._compute = compute
        self._calls = calls
        self._wake = wake
        self._at: ShardDid | None = None
        self._lock = threading.Lock()
        self._ended = calls.begin(self._work)
        self._ended.add_done_callback(self._has_ended)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._left:
                    return
                did, events = self._left.popleft()
                self._at = did
            self._compute(did, events)

    @property
    def is_done(self) -> bool:
        return self._ended.done()

    def _has_ended(self, _ended: asyncio.Future[None]) -> None:
        if self.is_slow:
            self._wake()

    async def wait(self) -> None:
        """Wait until it has ended, or is slow."""
        while not (self.is_done or self.is_slow):
            at = self._at
            await asyncio.wait({self._ended}, timeout=SLOW_S)
            self.is_slow = self._at is at
        if self.is_done:
            self._ended.result()

    def leave(self) -> tuple[ShardDid, StageThread]:
        """Have it end behind the shard that it computes, and another thread go on behind that;
        return the two.
        """
        with self._lock:
            left, self._left = self._left, deque()
            assert self._at is not None
            return self._at, StageThread(left, self._compute, calls=self._calls, wake=self._wake)


# ---------------------------------------------------------------- steering


def steered(shard: OwnShard, facts: FlowFacts, *, leaves: bool) -> ShardState:
    """Return the state of a shard at the top of the loop, after what is requested of it. It
    `leaves` if it is to be released: by a shutdown, or since it is another replica's.
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
    messages stayed in memory, and another shard that took part in them is not here any more, or
    has begun anew. It needs these messages again.
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
    """Return what shards that have a step to do, and are not within one, are to do now. In steps
    before `memory_from`, messages do not stay in memory.
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
