"""A shard that is held here: its lease, its state, and what is known of its row."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from rowlock.leases.item import PipelineItem
from rowlock.pipelines.outcomes import Outcome
from rowlock.streams.computing.buckets import BucketRange
from rowlock.streams.cutting.plan import ShardProgress
from rowlock.streams.shards.failures import StepFailures
from rowlock.streams.shards.next_action import ShardView
from rowlock.streams.shards.states import Claimed, HeldState, ShardState, Stopped, advance
from rowlock.streams.state.cache import ShardCache


@dataclass(slots=True, eq=False)
class OwnShard:
    """A shard under a lease of this replica.

    Attributes:
        item: the lease.
        range: its buckets.
        outcome: what `process` of the lease is to return, or raise.
        state: what its loop is about to do.
        step: the step that its row says it does next.
        version: the step at whose start its states in the database are.
        snapshot: of the older version that is kept; None if there is none.
        failures: what its row says of failures.
        cache: its states in memory.
        sent: step and name of each stage that it has sent messages to through the database.
        is_open: all of the above are as its row says; otherwise it has to be read.
        is_unrecorded: it has done steps since its version whose messages stayed in memory, so
            no shard could do them again without all others.
        doing: the steps that are under way.
        is_computed: a thread that is not waited for computes them, from `cache`.
        state_keys: how many keys have a state in the database, at least.
        redone: how often in a row its next step was not written, since the host had changed rows
            that it was computed from.
    """

    item: PipelineItem[Any]
    range: BucketRange
    outcome: asyncio.Future[Outcome]
    cache: ShardCache
    state: ShardState = field(default_factory=Stopped)
    step: int = 0
    version: int = 0
    snapshot: int | None = None
    failures: StepFailures = field(default_factory=StepFailures)
    sent: set[tuple[int, str]] = field(default_factory=set)
    is_open: bool = False
    is_unrecorded: bool = False
    doing: object = None
    is_computed: bool = False
    state_keys: int = 0
    redone: int = 0

    @property
    def is_leaving(self) -> bool:
        """Whether what `process` returns is known already."""
        return self.outcome.done()

    @property
    def at(self) -> int:
        """The step that it does next."""
        assert isinstance(self.state, HeldState)
        return self.state.at

    @property
    def view(self) -> ShardView:
        """What the decision about the next action needs."""
        has_sent = any(step == self.at for step, _ in self.sent)
        return ShardView(self.range, self.version, has_sent=has_sent)

    @property
    def progress(self) -> ShardProgress:
        """How far it is, for the plan of a cut."""
        timer_at = None if self.is_computed else self.cache.earliest_timer
        return ShardProgress(self.step, timer_at=timer_at)

    def open(self, row: Any, cache: ShardCache) -> None:
        """Begin anew with what the shard's row says; what it has sent is to be read."""
        self.range = BucketRange(row.lo, row.hi)
        self.step, self.version, self.snapshot = row.step, row.version, row.snapshot
        self.failures = StepFailures(row.failures, row.failed_step)
        self.cache, self.sent = cache, set()
        self.state = advance(Stopped(), Claimed(row.version, row.step))
        self.is_open = True

    def drop(self) -> None:
        """Forget what is in memory: whether it is what the database has is unknown."""
        self.state = Stopped()
        self.is_open = self.is_unrecorded = self.is_computed = False
        self.doing = None

    def leave(self, outcome: Outcome) -> None:
        """Have `process` of the lease return `outcome`."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def fail(self, error: BaseException) -> None:
        """Have `process` of the lease raise `error`."""
        self.drop()
        if not self.outcome.done():
            self.outcome.set_exception(error)
