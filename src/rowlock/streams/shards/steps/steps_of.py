"""Steps that some shards do together, and what each of them did: values that are handed around."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rowlock.hints.hinter import Wake
from rowlock.streams.committing.step_write import PartRow
from rowlock.streams.computing.compute import Computed, PoisonedKey
from rowlock.streams.computing.context import NOTHING_YET, HandedOut
from rowlock.streams.computing.digests import combined
from rowlock.streams.computing.messages import SentMessages
from rowlock.streams.computing.rows import input_digest
from rowlock.streams.cutting.flow_view import RecordedCut
from rowlock.streams.exchanging.exchange import Exchange
from rowlock.streams.outputs.output import ResultRow
from rowlock.streams.shards.own_shard import OwnShard
from rowlock.streams.shards.steps.slow_calls import SLOW_S, SlowCalls
from rowlock.streams.state.cache import ShardCache

NO_INPUT = input_digest(())


@dataclass(eq=False)
class StepsOf:
    """Consecutive steps that some shards do next, stage by stage.

    Attributes:
        shards: all at the first of these steps.
        before: the cut before them.
        cuts: the steps.
        in_memory: the shards are all of the flow, and what they send each other stays in memory; so
            all of them write these steps in one transaction, or none does.
        exchange: where messages go to; None in a flow of one stage.
        stage: the number of the stage that is done next.
        did: what each shard has done of them.
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
        """The numbers of the steps."""
        return [cut.step for cut in self.cuts]


@dataclass(slots=True)
class StagesDone:
    """What one shard has done of one step, up to some stage.

    Attributes:
        rows: how many rows of the sources it has.
        input_digest: of these.
        digests: of what followed, of each stage; empty where a stage had nothing to do.
        outputs: how many results there are.
        seconds: how long it was computed.
        handed_out: results and messages, of all stages.
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
        shard: which one.
        steps: that it was to do.
        cache: its states in memory.
        step: the step behind the last one that it did.
        done: each step, up to the stage that was done last.
        sent: messages, by the name of the stage that gets them, the step, and the number of the
            stage that has sent them.
        parts: the record of each step with something to do.
        results: by the name of the output.
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
        """Whether these steps were written before: nothing but states is kept, and all is
        compared.
        """
        return self.steps.cuts[0].step < self.shard.step

    @property
    def has_failed(self) -> bool:
        """Whether the shard cannot go on."""
        return self.poisoned is not None or self.differs is not None


class StageThread:
    """A thread that computes something of a stage of some steps, for one shard after the other.

    Attributes:
        is_slow: a handler is called for longer than `SLOW_S`; it is not waited for.
    """

    def __init__(
        self,
        dids: Iterable[tuple[ShardDid, Any]],
        compute: Callable[[ShardDid, Any], None],
        *,
        calls: SlowCalls,
        wake: Wake,
    ) -> None:
        """Begin.

        Args:
            dids: what each shard does, and its events.
            compute: does it for one of them.
            calls: sees which handler is called.
            wake: called when it has ended and was slow.
        """
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
        """Whether it has ended."""
        return self._ended.done()

    def _has_ended(self, _ended: asyncio.Future[None]) -> None:
        if self.is_slow:
            self._wake()

    async def wait(self) -> None:
        """Wait until it has ended, or is slow.

        Raises:
            Exception: any that is not a handler's.
        """
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
