"""What the actors of one pipeline share: its table, settings, hooks, queue, counters, way to the
database, and short tasks that are waited for when the pipeline stops.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Generic, TypeVar

from sqlalchemy import Column
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock import events
from rowlock.clock import JITTER, monotonic
from rowlock.database.transaction import in_transaction
from rowlock.hints import PipelineHinter
from rowlock.leases.item import PipelineItem
from rowlock.leases.related import RelatedLocker
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import NO_SEAMS, Attempt, ErrorRules, HostCalls
from rowlock.pipelines.lock_graph import LockGraph
from rowlock.pipelines.schedules import RowSchedules
from rowlock.pipelines.settings import PipelineSettings
from rowlock.pipelines.statistics import Counters, Failures, Histograms
from rowlock.rows.leased_table import LeasedTable, ModelT

logger = get_logger(__name__)

T = TypeVar("T")


FRESH_S, FRESH_S_MAX = 0.1, 1.0
"""Least and most time, in seconds, after which a claimed row is read again before work begins on
it: three times as long as its claim took, or the most if only a busy event loop kept it waiting.
"""
AHEAD_MAX = 500
"""Most rows in a queue that has grown."""
GROWS_BELOW_S = 0.02
"""The capacity grows while every row starts this soon after it was queued, in seconds."""
SHRINKS_ABOVE_S = 0.05
"""The capacity shrinks when a row starts later than this after it was queued, in seconds.

More than twice `GROWS_BELOW_S`, or a capacity that has doubled would shrink again. Together with
the time of a claim it is less than `FRESH_S`, so that work begins with the rows that claims bring.
"""
_UNKNOWN_S = -1.0


class ItemQueue(Generic[ModelT]):
    """The bounded queue between fetcher and workers: oldest due first, whenever it was fetched;
    closed at shutdown. Below the low watermark the fetcher fetches.

    A queue that `grows` doubles its capacity while the rows of full claims start within
    `GROWS_BELOW_S`, and is back at its size when one has waited for longer than `SHRINKS_ABOVE_S`,
    or when a claim brings less than was asked for: a claim takes the same few round trips for one
    row and for hundreds, but where work takes seconds another replica could have begun a row that
    waits here.

    Attributes:
        size: the capacity of a queue that has not grown.
        holds_ahead: whether there is room for items that no worker waits for.
        fresh_s: for how long the rows of a claim are fresh, in seconds.
        held_until: when a row was last taken that had waited for a worker, or for the settler.
        starts_soon: whether items start in that time; if not, claims skip the rows.
        on_room, on_items: wake the fetcher and the pool.
        idle: returns how many workers wait for items.
    """

    def __init__(
        self, size: int, low_watermark: int, *, holds_ahead: bool = True, grows: bool = False
    ) -> None:
        self.size = self.capacity = self._wanted = size
        self.low_watermark = self._low_watermark_of_size = low_watermark
        self.holds_ahead = holds_ahead
        self.grows = grows
        self._longest_wait_s = _UNKNOWN_S
        self._is_filled = False
        self.starts_soon, self.fresh_s, self.held_until = True, FRESH_S, -math.inf
        self.on_room: Callable[[], None] = lambda: None
        self.on_items: Callable[[], None] = lambda: None
        self.idle: Callable[[], int] = lambda: 0
        self._items: list[PipelineItem[ModelT]] = []
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def waiting(self) -> list[PipelineItem[ModelT]]:
        return [*self._items]

    @property
    def room(self) -> int:
        if self.holds_ahead:
            return self.places
        return max(0, min(self.places, self.idle() - len(self._items)))

    @property
    def places(self) -> int:
        """How many items there is space for, whether or not a worker waits for them."""
        return 0 if self._closed else max(0, self.capacity - len(self._items))

    @property
    def is_low(self) -> bool:
        return len(self._items) < self.low_watermark if self.holds_ahead else self.room > 0

    def look_ahead(self) -> None:
        if not self.grows:
            return
        is_slow = self._longest_wait_s > SHRINKS_ABOVE_S
        if is_slow:
            self._wanted = self.size
        elif self.is_low and self._is_filled and 0 <= self._longest_wait_s <= GROWS_BELOW_S:
            self._wanted = max(self.size, min(2 * self._wanted, AHEAD_MAX))
        if is_slow or self.is_low:
            self._longest_wait_s, self._is_filled = _UNKNOWN_S, False
        self.low_watermark = self._low_watermark_of_size * self._wanted // self.size
        # What is queued already stays; and each item that is taken frees a place, or a hinted row
        # would wait for many of them.
        self.capacity = max(self._wanted, min(self.capacity, len(self._items) + 1))

    def claimed(self, *, is_full: bool) -> None:
        """Note whether a claim brought all that was asked for; if not, claims do not grow."""
        self._is_filled = is_full
        if not is_full:
            self._wanted = self.size

    def shrink(self, gone: Iterable[PipelineItem[ModelT]]) -> None:
        """Discard items that were claimed ahead in vain, and their places with them."""
        self._wanted, self._is_filled = self.size, False
        self.discard(gone)
        self.capacity = max(self.size, len(self._items))

    def put(self, items: Sequence[PipelineItem[ModelT]]) -> None:
        now = monotonic()
        for item in items:
            item.queued_at = now
        # Stable: of equals, the first that came is the first to leave.
        self._items = sorted([*self._items, *items], key=attrgetter("place"))
        self.on_items()

    def get(self) -> PipelineItem[ModelT] | None:
        if not self._items:
            return None
        item = self._items.pop(0)
        if self.grows:
            self._longest_wait_s = max(self._longest_wait_s, monotonic() - item.queued_at)
        self.on_room()
        return item

    def close(self) -> list[PipelineItem[ModelT]]:
        """Stop getting and putting; return what was never started."""
        self._closed = True
        left, self._items = self._items, []
        return left

    def discard(self, items: Iterable[PipelineItem[ModelT]]) -> None:
        gone = frozenset(items)
        kept = [item for item in self._items if item not in gone]
        if len(kept) < len(self._items):
            self._items = kept
            self.on_room()


class BackgroundTasks:
    """Starts tasks and refers to them until they end: an event loop has only weak references."""

    def __init__(self, name: str, *, check_ending: Callable[[], bool]) -> None:
        self._name, self._check_ending = name, check_ending
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def wait_for_one(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

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
        text = f"%(pipeline)s: a background task {what}: %(purpose)s"
        logger.error(text, extra, exc_info=error)


LEFT_OUT_MAX = 1000
"""Most rows that are remembered: each is a value in the statement of every claim."""
FETCH_S = 1.0
"""Time for the fetch itself, beyond the rest between two, in seconds."""
LEFT_OUT_S_MAX = 300.0
"""Longest time for which a row is left out at once, in seconds; it doubles each time."""


class LeftOut:
    """Rows that this replica cannot read, by key, and for how long its claims leave them to others.

    It is for longer than another replica rests between two fetches: a row that comes back has been
    read by none. Each of the `kinds` of errors was logged once.
    """

    def __init__(self, settings: PipelineSettings) -> None:
        self._first_s = (1 + JITTER) * max(settings.fetch_delays_s) + FETCH_S
        self._rows: dict[Any, tuple[float, float]] = {}
        self.kinds: set[str] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def add(self, key: object, now: float) -> bool:
        """Return False if no more can be remembered."""
        if key not in self._rows and len(self._rows) >= LEFT_OUT_MAX:
            return False
        _, last_s = self._rows.get(key, (now, self._first_s / 2))
        rest_s = min(2 * last_s, max(LEFT_OUT_S_MAX, self._first_s))
        self._rows[key] = (now + rest_s, rest_s)
        return True

    def discard(self, key: object) -> None:
        self._rows.pop(key, None)

    def next_at(self, now: float) -> float:
        """Return when the next row is no longer left out."""
        return min((until for until, _ in self._rows.values() if until > now), default=math.inf)

    def keys(self, now: float) -> frozenset[Any]:
        """Return what a claim leaves out `now`; forgets what has not come back for long."""
        for key in [k for k, (until, _) in self._rows.items() if until + LEFT_OUT_S_MAX < now]:
            del self._rows[key]
        return frozenset(key for key, (until, _) in self._rows.items() if now < until)


class PipelineContext(Generic[ModelT]):
    """Built when a pipeline starts, dropped when it has stopped.

    Attributes:
        pipeline: the host's `Pipeline`, whose hooks are called.
        lock_graph: the pipelines beside it, and whose rows each of them locks.
        allows_none: whether `process` says by its annotation that it may return None.
        claims_rows: whether a claim can give whole rows: the host wants no options, and the model
            is plain.
        check_ending: whether the event loop ends everything; set by the run, as is `background`.
        database_ahead_s: by how much the database's clock, in seconds since the epoch, is ahead of
            the monotonic one, as of the last claim that brought rows.
        in_progress: items that workers have in hand.
        running: attempts by lock token, and clean-ups by themselves, until they have ended.
        trial: held while `tried` is tried alone, over which holders have died in crowds, until its
            outcome is written.
        stop: given when the pipeline shuts down: work is to end soon.
        grace_over: the grace of a shutdown is over; nothing is waited out any more.
        background: short tasks that must end before the pipeline has stopped.
    """

    check_ending: Callable[[], bool]
    background: BackgroundTasks

    def __init__(
        self,
        pipeline: Any,
        session_factory: async_sessionmaker[AsyncSession],
        hinter: PipelineHinter,
        *,
        queue: ItemQueue[ModelT],
        lock_graph: LockGraph,
        allows_none: bool,
        claims_rows: bool,
    ) -> None:
        self.pipeline, self.name = pipeline, str(pipeline.name)
        self.leased: LeasedTable = pipeline.leased
        self.settings: PipelineSettings = pipeline.settings
        self.intent: Sequence[Column[Any]] = pipeline.intent_columns
        self.expected_errors: ErrorRules = pipeline.expected_errors
        self.schedules: RowSchedules | None = pipeline.schedules
        self.session_factory, self.hinter, self.queue = session_factory, hinter, queue
        self.lock_graph = lock_graph
        self.locker = RelatedLocker(
            session_factory,
            self.leased,
            owner=self.name,
            declared=[lock.leased for lock in pipeline.declared_locks],
            intent_of=lock_graph.intent_of,
            timeout=self.settings.database_timeout,
        )
        self.allows_none, self.claims_rows = allows_none, claims_rows
        self.checks_rows: bool = pipeline._checks_rows
        self.seams = NO_SEAMS
        self.counters, self.failures = Counters(), Failures()
        self.histograms = Histograms(self.name)
        self.database_ahead_s: float | None = None
        self.in_progress: set[PipelineItem[ModelT]] = set()
        self.running: dict[Any, Attempt] = {}
        self.left_out = LeftOut(self.settings)
        self.trial = asyncio.Lock()
        self.tried: PipelineItem[ModelT] | None = None
        self.stop = asyncio.Event()
        self.grace_over = False
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

    def of(self, item: PipelineItem[ModelT], **more: object) -> dict[str, object]:
        return {"pipeline": self.name, "row_id": item.id, **more}

    def emit_for(
        self, kind: Callable[..., events.ClaimEvent], item: PipelineItem[ModelT], **more: object
    ) -> None:
        """Emit an event of `kind` about the claim of `item`, with its own fields as `more`."""
        of = (self.name, item.id, item.lock_token)
        events.emit(kind(*of, attempt=item.begun_attempt, waited_s=item.waited_s, **more))
