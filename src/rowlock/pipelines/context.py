"""What the actors of one pipeline share: its table, settings, hooks, queue, counters, way to the
database, and short tasks that are waited for when the pipeline stops.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy import Column
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock import events
from rowlock.clock import JITTER
from rowlock.database.transaction import in_transaction
from rowlock.hints import PipelineHinter
from rowlock.leases.item import PipelineItem, StopSignal
from rowlock.leases.related import RelatedLocker
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import Attempt, HostCalls
from rowlock.pipelines.hooks import NO_SEAMS, ExpectedErrors, Seams
from rowlock.pipelines.item_queue import ItemQueue
from rowlock.pipelines.lock_graph import Hooks
from rowlock.pipelines.schedules import RowSchedules
from rowlock.pipelines.settings import PipelineSettings
from rowlock.pipelines.statistics import Counters, Failures, Histograms
from rowlock.rows.eligibility import LockingPipeline
from rowlock.rows.leased_table import LeasedTable, ModelT

logger = get_logger(__name__)

T = TypeVar("T")


class BackgroundTasks:
    """Begins tasks, and keeps them until they have ended: the event loop keeps none that waits."""

    def __init__(self, name: str, *, check_ending: Callable[[], bool]) -> None:
        self._name = name
        self._check_ending = check_ending
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def wait_for_one(self, timeout_s: float | None = None) -> None:
        """Wait until one of them has ended, for `timeout_s` at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    def begin(self, work: Coroutine[Any, Any, T], *, purpose: str) -> asyncio.Task[T]:
        """Run `work` without waiting for it. What it raises is logged."""
        task = asyncio.create_task(work, name=f"rowlock: {purpose}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, purpose))
        return task

    def _ended(self, purpose: str, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None and not (task.cancelled() and not self._check_ending()):
            return
        what = "failed" if error else "was cancelled from outside"
        extra = {"pipeline": self._name, "purpose": purpose}
        text = f"%s: a background task {what}: %s"
        logger.error(text, self._name, purpose, extra=extra, exc_info=error)


LEFT_OUT_MAX = 1000
"""Most rows that are remembered: each is a value in the statement of every claim."""
FETCH_S = 1.0
"""Time for the fetch itself, beyond the rest between two, in seconds."""
LEFT_OUT_S_MAX = 300.0
"""Longest time for which a row is left out at once, in seconds; it doubles each time."""


class LeftOut:
    """Rows that this replica cannot read, by key, and for how long its claims leave them to others.

    The error does not show whether a value is damaged or only newer than this code, but another
    replica does: such a row is released as if it had never been claimed, and stays out of this
    replica's claims for longer than another one rests between two fetches. If it comes back, no
    replica has read it. Each of the `kinds` of errors was logged once.
    """

    def __init__(self, settings: PipelineSettings) -> None:
        self._first_s = (1 + JITTER) * max(settings.fetch_delays_s) + FETCH_S
        self._rows: dict[Any, tuple[float, float]] = {}
        self.kinds: set[str] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def add(self, key: object, now: float) -> bool:
        """Leave the row of `key` out from `now` on; False if no more can be remembered."""
        if key not in self._rows and len(self._rows) >= LEFT_OUT_MAX:
            return False
        _, last_s = self._rows.get(key, (now, self._first_s / 2))
        rest_s = min(2 * last_s, max(LEFT_OUT_S_MAX, self._first_s))
        self._rows[key] = (now + rest_s, rest_s)
        return True

    def discard(self, key: object) -> None:
        if self._rows:
            self._rows.pop(key, None)

    def next_at(self, now: float) -> float:
        """Return when the next row after `now` is no longer left out; infinity if there is none."""
        return min((until for until, _ in self._rows.values() if until > now), default=math.inf)

    def keys(self, now: float) -> frozenset[Any]:
        """Return what a claim leaves out `now`; forgets what has not come back for long."""
        if not self._rows:
            return frozenset()
        for key in [k for k, (until, _) in self._rows.items() if until + LEFT_OUT_S_MAX < now]:
            del self._rows[key]
        return frozenset(key for key, (until, _) in self._rows.items() if now < until)


@dataclass(eq=False)
class PipelineContext(Generic[ModelT]):
    """Built when a pipeline starts, dropped when it has stopped.

    Attributes:
        name: the pipeline's class name, which is also the owner in its leases.
        locking_pipelines: returns which pipelines lock rows of this model as related rows.
        intent: columns that services own.
        schedules: when rows are due by themselves; None if they are not.
        allows_none: whether `process` says by its annotation that it may return None.
        checks_rows: whether it is a failure to change ``item.row``.
        claims_rows: whether a claim can give whole rows: the host wants no options, and the model
            is plain.
        check_ending: whether the event loop ends everything; set by the run.
        database_ahead_s: by how much the database's clock, in seconds since the epoch, is ahead of
            the monotonic one, as of the last claim that brought rows; None before.
        in_progress: items that workers have in hand.
        running: attempts by lock token; the worker that began one adds it, and takes it out when it
            has ended.
        trial: held while `tried` is tried alone, over which holders have died in crowds, until its
            outcome is written.
        stop: given when the pipeline shuts down: work is to end soon.
        grace_over: the grace of a shutdown is over; nothing is waited out any more.
        background: short tasks that must end before the pipeline has stopped.
    """

    name: str
    leased: LeasedTable
    settings: PipelineSettings
    hooks: Hooks[ModelT]
    session_factory: async_sessionmaker[AsyncSession]
    hinter: PipelineHinter
    queue: ItemQueue[ModelT]
    locker: RelatedLocker
    locking_pipelines: Callable[[], Sequence[LockingPipeline]]
    expected_errors: ExpectedErrors
    schedules: RowSchedules | None
    intent: Sequence[Column[Any]]
    allows_none: bool
    checks_rows: bool
    claims_rows: bool
    seams: Seams = NO_SEAMS
    check_ending: Callable[[], bool] = field(init=False)
    counters: Counters = field(default_factory=Counters)
    histograms: Histograms = field(init=False)
    database_ahead_s: float | None = None
    failures: Failures = field(default_factory=Failures)
    in_progress: set[PipelineItem[ModelT]] = field(default_factory=set)
    running: dict[Any, Attempt] = field(default_factory=dict)
    left_out: LeftOut = field(init=False)
    trial: asyncio.Lock = field(default_factory=asyncio.Lock)
    tried: PipelineItem[ModelT] | None = None
    stop: StopSignal = field(default_factory=StopSignal)
    grace_over: bool = False
    background: BackgroundTasks = field(init=False)
    calls: HostCalls = field(init=False)

    def __post_init__(self) -> None:
        self.histograms = Histograms(self.name)
        self.left_out = LeftOut(self.settings)
        self.calls = HostCalls(self.name, self.settings)

    async def transact(
        self,
        work: Callable[[AsyncSession, AsyncConnection], Awaitable[T]],
        *,
        purpose: str,
        writes: bool = True,
        autocommit: bool = False,
        timeout: timedelta | None = None,
    ) -> T:
        """Run `work` in one transaction of its own, bounded by `timeout` (default
        `database_timeout`) and shielded from cancellation.
        """
        return await in_transaction(
            self.session_factory,
            self.leased,
            work,
            purpose=purpose,
            timeout=timeout or self.settings.database_timeout,
            writes=writes,
            autocommit=autocommit,
        )

    def tell(self, kind: type[events.ClaimEvent], item: PipelineItem[ModelT]) -> None:
        of = (self.name, item.id, item.lock_token)
        events.emit(kind(*of, attempt=item.begun_attempt, waited_s=item.waited_s))

    def run_after_settling(self, item: PipelineItem[ModelT]) -> None:
        """Begin what waited until the outcome of `item` was settled."""
        act, item.after_settling = item.after_settling, None
        if act is not None:
            self.background.begin(act(), purpose="see to what waited for an outcome")
