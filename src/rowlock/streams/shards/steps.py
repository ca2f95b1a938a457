"""Steps that some shards do together: what each of them did and is to write, as values that are
handed around; which steps are done together, and what a shard does next, as decisions alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple

from rowlock.spi import Wake
from rowlock.stream_errors import ShardStateError
from rowlock.streams.computing.compute import Computed, PoisonedKey
from rowlock.streams.computing.handlers import NOTHING_YET, HandedOut
from rowlock.streams.computing.hashing import BUCKETS, combined
from rowlock.streams.computing.rows import SentMessages, input_digest
from rowlock.streams.cut_plan import BYTES_TOGETHER_MAX, ROWS_TOGETHER_MAX, STEPS_TOGETHER_MAX, Cut
from rowlock.streams.cutter import FlowFacts, KnownFlow
from rowlock.streams.folds import FoldedRow
from rowlock.streams.key_states import ShardCache, StateWrite
from rowlock.streams.outputs import ResultRow
from rowlock.streams.shards.replicas import OwnShard
from rowlock.streams.shards.slow_calls import SLOW_S, SlowCalls


class PartRow(NamedTuple):
    """The record of a step of a shard; its output digest has results, messages and states."""

    step: int
    rows: int
    input_digest: str
    outputs: int
    output_digest: str
    seconds: float


@dataclass(slots=True)
class StepWrite:
    """What is to be written of a shard, beside what its row has."""

    shard: OwnShard
    step: int  # the step that it is to do next
    parts: list[PartRow] = field(default_factory=list)
    results: dict[str, list[ResultRow]] = field(default_factory=dict)
    states: list[StateWrite] = field(default_factory=list)
    # Of the host's tables, by the name of the stage that has folded into them
    rows: dict[str, list[FoldedRow]] = field(default_factory=dict)
    # As in `OwnShard`, once this is written
    version: int = field(init=False)
    snapshot: int | None = field(init=False)
    state_keys: int = field(init=False)

    def __post_init__(self) -> None:
        own = self.shard
        self.version, self.snapshot, self.state_keys = own.version, own.snapshot, own.state_keys


NO_INPUT = input_digest(())


@dataclass(eq=False)
class StepsOf:
    shards: list[OwnShard]  # all at the first of these steps
    before: Cut  # the cut before them
    cuts: Sequence[Cut]
    stage: int = 0  # the number of the stage that is done next
    did: dict[OwnShard, ShardDid] = field(default_factory=dict)
    # What replays are compared with, by `lo` and step
    parts: Mapping[tuple[int, int], Any] = field(default_factory=dict)
    # Of the stage that is done next, of each shard
    events: Mapping[OwnShard, Any] = field(default_factory=dict)
    # Of each shard, whose states that stage needs; None: they are known
    keys: dict[OwnShard, list[str]] | None = None
    # That finds these keys, or computes the stage; None while none does
    thread: StageThread | None = None

    @property
    def numbers(self) -> list[int]:
        return [cut.step for cut in self.cuts]


@dataclass(slots=True)
class StagesDone:
    """What one shard has done of one step, up to some stage."""

    rows: int = 0  # how many rows of the sources it has
    input_digest: str = NO_INPUT
    # Of what followed, of each stage; empty where a stage had nothing to do
    digests: list[str] = field(default_factory=list)
    outputs: int = 0
    seconds: float = 0.0
    handed_out: HandedOut = NOTHING_YET

    def add(self, computed: Computed | None, seconds: float) -> None:
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
    """What a shard did of some steps."""

    shard: OwnShard
    steps: StepsOf
    cache: ShardCache
    step: int  # the step behind the last one that it did
    # Each step, up to the stage that was done last
    done: dict[int, StagesDone] = field(default_factory=dict)
    # Messages, by the name of the stage that gets them, the step, and the number of the stage that
    # has sent them
    sent: dict[str, dict[int, dict[int, SentMessages]]] = field(default_factory=dict)
    # The record of each step with something to do
    parts: list[PartRow] = field(default_factory=list)
    results: dict[str, list[ResultRow]] = field(default_factory=dict)
    poisoned: PoisonedKey | None = None  # why it did no more; None: it did all
    # How a replay came out otherwise than the first time; None: it did not
    differs: str | None = None

    @property
    def is_replay(self) -> bool:
        """Whether these steps were written before: only states are kept, and all is compared."""
        return self.steps.cuts[0].step < self.shard.step

    @property
    def has_failed(self) -> bool:
        return self.poisoned is not None or self.differs is not None


class StageThread:
    """A thread that computes something of a stage of some steps, for one shard after the other."""

    # While `is_slow`, a handler is called for longer than `SLOW_S`, and it is not waited for.

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
        """Give up on the shard computed now: it ends there, another thread goes on; return both."""
        with self._lock:
            left, self._left = self._left, deque()
            assert self._at is not None
            return self._at, StageThread(left, self._compute, calls=self._calls, wake=self._wake)


# ---------------------------------------------------------------- steering


class NextAction(Enum):
    """What the loop of a shard does next.

    REPLAY: do the step `at` again, compare, and write no results.
    RUN: do the step `at`, which is cut, and write it.
    CUT: try to cut the step `at`.
    WAIT: until something changes.
    SPLIT: divide the shard; one half continues here.
    WRITE: write the state as the version `at`.
    LEAVE: release the lease.
    """

    REPLAY = "replay"
    RUN = "run"
    CUT = "cut"
    WAIT = "wait"
    SPLIT = "split"
    WRITE = "write"
    LEAVE = "leave"


def steer(shard: OwnShard, facts: FlowFacts, *, leaves: bool) -> None:
    """Have a shard end where it is to be released: it `leaves`, or the flow stops."""
    if shard.end is None and (leaves or facts.state == "stopped"):
        # A flow that stops does what is cut. A shard that leaves hands the rest on, behind the step
        # that is under way, but repeats all that is written: its states are those of that step.
        earliest = max(shard.at + (shard.doing is not None), shard.step)
        shard.end = earliest if leaves else facts.next_step


def next_action(shard: OwnShard, facts: FlowFacts, *, wanted: int) -> NextAction:
    """Return what the loop of a shard does next, of a flow that is to have `wanted` shards."""
    # The order is that in which it matters: what was written before is done again, then the shard
    # is divided, then what is cut is done, and only then is a step cut or waited for.
    furthest = max(shard.at, shard.step)
    if furthest > (facts.next_step if shard.end is None else shard.end):
        end = "" if shard.end is None else f", and was to end before {shard.end}"
        raise ShardStateError(
            f"the shard {shard.range} is at step {furthest}{end}; the next step of the flow is"
            f" {facts.next_step}"
        )
    if shard.at == shard.end:
        return NextAction.LEAVE if shard.version == shard.at else NextAction.WRITE
    if shard.at < shard.step:
        return NextAction.REPLAY
    may_change = shard.end is None and facts.state == "running"
    # Halves of a range that has sent would send the same again.
    if may_change and shard.range.width * wanted > BUCKETS and not shard.has_sent:
        return NextAction.SPLIT if shard.version == shard.at else NextAction.WRITE
    if shard.at < facts.next_step:
        return NextAction.RUN
    return NextAction.CUT if may_change else NextAction.WAIT


def new_steps(
    actions: Mapping[OwnShard, NextAction], known: KnownFlow, *, has_exchange: bool
) -> list[StepsOf]:
    """Return what shards with a step to do, and in none, do now: those alike together."""
    # Two replicas that do not begin several steps at once would wait for each other's messages.
    together_max = 1 if has_exchange else STEPS_TOGETHER_MAX
    groups: dict[tuple[int, int], list[OwnShard]] = {}
    for shard, action in actions.items():
        if action in (NextAction.RUN, NextAction.REPLAY) and shard.doing is None:
            end = shard.at + STEPS_TOGETHER_MAX if shard.end is None else shard.end
            end = shard.step if action is NextAction.REPLAY else end
            groups.setdefault((shard.at, min(end, shard.at + together_max)), []).append(shard)
    found = []
    for (at, end), shards in groups.items():
        before, cuts = known.cut(at - 1), known.consecutive(at, end - at)
        if before is not None and cuts:
            found.append(StepsOf(shards, before, together(known, before, cuts)))
    return found


def together(known: KnownFlow, before: Cut, cuts: Sequence[Cut]) -> list[Cut]:
    """Return the first of `cuts` done in one transaction; a snapshot's step is the last."""
    taken: list[Cut] = []
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
    return min((shard.at for shard in shards if shard.is_open), default=None)
