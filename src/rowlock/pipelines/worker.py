"""A worker takes an item, has it processed, and decides its outcome; the settler carries that out.

A worker has a place: one loop that works on row after row, each in context variables of its own.
The place takes a row's first step by hand. A row that does not wait ends there, without a task or
a wake-up; when a row waits, the next place is woken. A task for each row would cost more than all
else that is done here for it. Every way in which an attempt can end leads to a decision.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Generic

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import events
from rowlock.clock import monotonic
from rowlock.database.batcher import Batcher, Retries
from rowlock.database.faults import is_of_the_schema, is_transient
from rowlock.errors import HOST_ERRORS, ProcessCancelledError, describe
from rowlock.leases.claim import load_rows, row_hidden
from rowlock.leases.item import PipelineItem
from rowlock.leases.renew import tokens_still_held
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import Call, Ended, Raised, RestOfCall, Result, contained, first_step
from rowlock.pipelines.context import FRESH_S_MAX, PipelineContext
from rowlock.pipelines.heartbeater import Heartbeater
from rowlock.pipelines.outcomes import SUCCESSES, Park
from rowlock.pipelines.planner import Decision, decide, decide_unread, record_unreadable
from rowlock.pipelines.settler import Settler
from rowlock.pipelines.statistics import LOADER
from rowlock.rows.leased_table import ModelT
from rowlock.rows.lock_tokens import deaths_of
from rowlock.tasks import Supervisor

logger = get_logger(__name__)

ROWS_DIFFER_S = 60.0
"""For so long after a row could be read, a failure is one row's own, in seconds."""
TOKENS_GONE_MAX = 10
"""After so many trusted leases in a row whose tokens were gone, the pipeline is unhealthy: one is a
person's doing, many a trigger's.
"""

HIDDEN: Any = object()
"""Stands for a row that is there under its token and was not returned."""


class Loader(Generic[ModelT]):
    def __init__(self, context: PipelineContext[ModelT]) -> None:
        self.context = context
        self._others_load_until = -math.inf
        self._tokens_gone = 0
        self._batcher: Batcher[PipelineItem[ModelT], ModelT | None] = Batcher(
            self._load_together,
            name=f"{context.name} reads rows",
            timeout=context.settings.database_timeout,
            is_grace_over=lambda: context.grace_over,
        )

    def check_fresh(self, item: PipelineItem[ModelT], now: float) -> bool:
        """Whether work on `item` may begin with its claim's row, sent a moment before `now`."""
        queue, sent_at = self.context.queue, item.claimed_at
        # Time of a busy loop does not count: a slow drain would read each row twice, and be slower.
        waited_s = max(item.queued_at or now, queue.held_until) - sent_at
        queue.starts_soon = waited_s < queue.fresh_s and now - sent_at < FRESH_S_MAX
        return queue.starts_soon and item.has_row and item.is_trusted(now)

    async def load(self, item: PipelineItem[ModelT]) -> bool:
        """Read the row of `item` into it; False if the lease is no longer its own. A transient
        error is waited out for `lock_timeout` at most; a filter of the host's that hides the row
        raises `NoResultFound`.
        """
        wait_s = self.context.settings.lock_timeout.total_seconds()
        retries = Retries(lambda failed_at: failed_at + wait_s)
        while item.is_trusted():
            try:
                row = await self._batcher.submit(item)
            except Exception as error:
                retries.failed()
                if self.concerns_all_rows(error):
                    self.context.failures.failed(LOADER, describe(error))
                if not is_transient(error) or retries.are_over or self.context.grace_over:
                    raise
                text = "%(pipeline)s: reading row %(row_id)s is tried again"
                logger.warning(text, self.context.of(item, tries=retries.count), exc_info=error)
                await retries.rest()
                continue
            if row is HIDDEN:
                raise row_hidden()
            if row is None:
                self._tokens_gone += item.is_trusted()
                if self._tokens_gone >= TOKENS_GONE_MAX:
                    text = (
                        f"{self._tokens_gone} leases in a row were gone before work began: does a"
                        " trigger or a service clear lock_token?"
                    )
                    self.context.failures.failed(LOADER, text)
                return False
            self._tokens_gone = 0
            if LOADER in self.context.failures.errors:
                self._others_load_until = monotonic() + ROWS_DIFFER_S
                self.context.failures.succeeded(LOADER)
            item.row = row
            return True
        return False

    def concerns_all_rows(self, error: Exception) -> bool:
        # One kind of rows may have its own table.
        return is_of_the_schema(error) and monotonic() >= self._others_load_until

    async def _load_together(self, items: Sequence[PipelineItem[ModelT]]) -> list[ModelT | None]:
        async def host_options() -> Any:
            return self.context.pipeline.options()

        options = await contained(host_options)

        async def work(session: AsyncSession, connection: AsyncConnection) -> list[ModelT | None]:
            context = self.context
            self._batcher.begun()
            rows = await load_rows(
                session, context.leased, items, options=options, compared=context.intent
            )
            if None not in rows:
                return rows
            held = await tokens_still_held(connection, context.leased, items)
            return [
                HIDDEN if row is None and item.lock_token in held else row
                for row, item in zip(rows, items, strict=True)
            ]

        return await self.context.transact(work, purpose="read rows", writes=False, autocommit=True)


class Worker(Generic[ModelT]):
    """Works on one item at a time."""

    def __init__(
        self,
        context: PipelineContext[ModelT],
        heartbeater: Heartbeater[ModelT],
        *,
        loader: Loader[ModelT],
        settler: Settler[ModelT],
    ) -> None:
        self.context = context
        self._heartbeater = heartbeater
        self._loader = loader
        self._settler = settler
        has_schedule, settings = context.leased.has_schedule, context.settings
        self._attempts_max = (settings.max_attempts if has_schedule else None) or sys.maxsize
        self._deaths_max = settings.max_deaths if has_schedule else None

    async def work(self, item: PipelineItem[ModelT]) -> None:
        """Process `item` and hand its outcome over to the settler; if that fails, the item is
        released. A worker of the host's own may do something before and after that.
        """
        # A host's own work may have waited before.
        self.context.queue.held_until = monotonic()
        await self._work(item)

    def begin(self, item: PipelineItem[ModelT], place: _Place[ModelT]) -> Awaitable[None] | None:
        """As `work`, in the task of `place`; return what is left after the first step, if any."""
        now = monotonic()
        if not self._is_ready(item, now) or self._is_to_be_tried(item):
            return self._work(item, place)
        return self._begin_attempt(item, now, place)

    async def _work(self, item: PipelineItem[ModelT], place: _Place[ModelT] | None = None) -> None:
        self.context.in_progress.add(item)
        try:
            decision = await self._prevented(item)
            if decision is not None:
                self._finish(item, decision)
            elif (rest := self._begin_attempt(item, monotonic(), place)) is not None:
                await rest
        except HOST_ERRORS:
            self._finish(item, Ended.INTERRUPTED)
            raise

    def _begin_attempt(
        self, item: PipelineItem[ModelT], now: float, place: _Place[ModelT] | None
    ) -> Awaitable[None] | None:
        if place is None:
            return self._attempt(item, self._start(item, now))
        call = place.variables.run(self._start, item, now)
        result = first_step(call, place.variables)
        if isinstance(result, RestOfCall):
            return self._attempt(item, lambda: result, place)
        self._end(item, result, place)
        return None

    async def _attempt(
        self, item: PipelineItem[ModelT], call: Call, place: _Place[ModelT] | None = None
    ) -> None:
        context = self.context
        attempt = context.running[item.lock_token] = context.calls.attempt(call)
        try:
            result: Result | None
            if place is None:
                result = await attempt.run()
            else:
                result = await attempt.run_here(partial(self._abandon, item, place))
            if result is not None:  # else it was left behind, and its settlement begun
                self._end(item, result, place)
        except HOST_ERRORS:
            # A bug, or a cancellation from outside: the row must not wait for its lease to expire.
            self._finish(item, Ended.INTERRUPTED)
            raise
        finally:
            # Last: the settler looks there for what it has to end, or to leave behind.
            context.running.pop(item.lock_token, None)

    def _is_ready(self, item: PipelineItem[ModelT], now: float) -> bool:
        return (
            self._loader.check_fresh(item, now)
            and item.unreadable is None
            and self._reason_to_give_up(item) is None
            and not self.context.grace_over
        )

    async def _prevented(self, item: PipelineItem[ModelT]) -> Decision | None:
        """Wait for what an attempt needs; return the decision if none can be made."""
        context = self.context
        if self._is_to_be_tried(item):
            await context.trial.acquire()
            context.tried, context.queue.held_until = item, monotonic()
            if context.stop.is_set():
                return Ended.INTERRUPTED
        if not self._is_ready(item, monotonic()):
            decision = await self._read(item)
            if decision is not None:
                return decision
        # A shutdown may have interrupted everything while this row was read: nothing would end
        # what begins now.
        if context.grace_over:
            return Ended.INTERRUPTED
        return Ended.LEASE_LOST if self._heartbeater.has_lost(item, monotonic()) else None

    async def _read(self, item: PipelineItem[ModelT]) -> Decision | None:
        context = self.context
        if item.unreadable is not None:
            return record_unreadable(context, item, item.unreadable)
        try:
            is_fresh = self._loader.check_fresh(item, monotonic())
            if not (is_fresh or await self._loader.load(item)):
                return Ended.LEASE_LOST
        # `options()` is host code, and the row may not be readable.
        except Exception as error:  # noqa: BLE001
            # Where no row can be read, it is not this one's failure: it is released, and the
            # fetcher knows.
            return (
                Ended.INTERRUPTED
                if self._loader.concerns_all_rows(error)
                else decide_unread(context, item, error)
            )
        context.left_out.discard(item.id)
        reason = self._reason_to_give_up(item)
        return None if reason is None else Park(reason)

    def _end(
        self, item: PipelineItem[ModelT], result: Result, place: _Place[ModelT] | None
    ) -> None:
        context, item.ended_at = self.context, monotonic()
        context.histograms.process.add(item.ended_at - item.begun_at)
        decision: Decision
        if (
            isinstance(result, Raised)
            and isinstance(result.error, ProcessCancelledError)
            and context.check_ending()
        ):
            # The end of the loop cancels every task: it was not the host's code that did.
            decision = Ended.INTERRUPTED
        else:
            decision = decide(context, item, result)
        if place is not None and isinstance(decision, SUCCESSES) and decision.also is not None:
            # It is written by a task of its own, in which `also` has what `process` has set.
            place.variables.run(self._finish, item, decision)
        else:
            self._finish(item, decision)

    def _finish(self, item: PipelineItem[ModelT], decision: Decision) -> None:
        # Unless it was taken out of this hand.
        if item in self.context.in_progress:
            self.context.in_progress.discard(item)
            self._settler.settle_later(item, decision)

    def _abandon(self, item: PipelineItem[ModelT], place: _Place[ModelT]) -> None:
        self._finish(item, Ended.ABANDONED)
        place.pool.replace(place)

    def _is_to_be_tried(self, item: PipelineItem[ModelT]) -> bool:
        # One at a time: another row that is tried may end this process, and must not be blamed.
        return item.prev_lock_expired and deaths_of(item.lock_token).are_trying(self._deaths_max)

    def _start(self, item: PipelineItem[ModelT], now: float) -> Call:
        context = self.context
        surround = context.seams.surround
        call = context.calls.call(context.pipeline.process, item, surround=surround)
        item.stop = context.stop
        context.counters.started += 1
        item.begun_at = now
        if item.queued_at:
            context.histograms.queue_wait.add(now - item.queued_at)
        if item.place > -math.inf and context.database_ahead_s is not None:
            item.waited_s = max(0.0, now + context.database_ahead_s - item.place)
            context.histograms.pickup.add(item.waited_s)
        if events.has_listeners(events.ItemStarted):
            events.emit(
                events.ItemStarted(
                    context.name,
                    item.id,
                    item.lock_token,
                    item.attempt,
                    recovered=item.prev_lock_expired,
                    waited_s=item.waited_s,
                )
            )
        if item.prev_lock_expired:
            context.emit_for(events.ItemRecovered, item)
        return call

    def _reason_to_give_up(self, item: PipelineItem[ModelT]) -> str | None:
        if item.attempt > self._attempts_max:
            return f"gave up after {item.attempt - 1} attempts: the last holder died"
        if not item.prev_lock_expired or self._deaths_max is None:
            return None
        deaths = deaths_of(item.lock_token)
        if deaths.counted < self._deaths_max:
            return None
        if deaths.are_trying(self._deaths_max):
            return (
                f"gave up: {deaths.in_crowds} holders in a row died with this row and many others,"
                " and the next ones when it ran alone"
            )
        return f"gave up: {deaths.counted} holders in a row died over this row"


YIELDS_AFTER_S = 0.002
"""So long a worker goes on with rows that do not wait until it lets other tasks run, in seconds."""


class _Place(Generic[ModelT]):
    """A loop in which a worker works on one row after another. The worker gets another place when
    the task of this one was cancelled, or when host code ignores its cancellation.
    """

    def __init__(self, pool: Pool[ModelT], worker: Worker[ModelT]) -> None:
        self.worker, self.pool = worker, pool
        self.woken = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.is_started = self.is_replaced = False
        self.variables: Context  # of the row in hand

    def begin(self, item: PipelineItem[ModelT]) -> Awaitable[None] | None:
        """Begin with `item`; return what is left of the work, unless it has ended."""
        worker = self.worker
        # A copy, since code that runs in one context cannot enter it again.
        self.variables = self.pool.variables.copy()
        if type(worker).work is Worker.work:
            return worker.begin(item, self)
        result = first_step(partial(worker.work, item), self.variables)
        if isinstance(result, Raised):
            raise result.error
        return result if isinstance(result, RestOfCall) else None


class Pool(Generic[ModelT]):
    """The workers of one pipeline; each row gets a copy of its context `variables`."""

    def __init__(
        self,
        context: PipelineContext[ModelT],
        workers: Sequence[Worker[ModelT]],
        *,
        settler: Settler[ModelT],
        supervisor: Supervisor,
    ) -> None:
        self.context = context
        self.is_open = self.is_over = self._is_held_up = False
        self.variables = Context()
        self._settler, self._supervisor = settler, supervisor
        self._names = {worker: f"worker {number}" for number, worker in enumerate(workers, start=1)}
        self._idle: list[_Place[ModelT]] = []
        self._waking: _Place[ModelT] | None = None
        self._in_hand: dict[_Place[ModelT], PipelineItem[ModelT]] = {}
        self._all_free = asyncio.Event()
        # The event loop itself refers to a task that waits by weak references alone.
        self._left: set[asyncio.Task[None]] = set()
        context.queue.idle = lambda: len(self._idle)
        context.queue.on_items = settler.on_room = self.feed

    def start(self) -> None:
        self.is_open = True
        self.variables = copy_context()
        self._idle = [_Place(self, worker) for worker in reversed(self._names)]

    def feed(self) -> None:
        """Wake one free worker, if there is an item and the settler has room: it goes on with what
        need not wait, and feeds when it waits. Called whenever one of these changes.
        """
        if self._waking is None and self._idle and self._may_begin() and len(self.context.queue):
            place = self._waking = self._idle.pop()
            place.woken.set()
            # A pipeline may have a thousand workers, and never more than a few rows at once.
            if not place.is_started:
                self._start(place)

    def replace(self, place: _Place[ModelT]) -> None:
        place.is_replaced = True
        self._in_hand.pop(place, None)
        self._note_waited()
        if place.task is not None:
            self._left.add(place.task)
            place.task.add_done_callback(self._left.discard)
        # At the end of the event loop this closes the pool: no row is begun any more.
        if not (self.context.check_ending() or self.is_over):
            self._idle.append(_Place(self, place.worker))
            # At once: the supervisor would wait for the task that it knows by this name.
            self._start(self._idle[-1])
        self._on_free()

    def _start(self, place: _Place[ModelT]) -> None:
        place.is_started, run = True, partial(self._run, place)
        self.variables.copy().run(self._supervisor.keep, self._names[place.worker], run)

    async def wait_until_idle(self) -> None:
        while self._in_hand:
            self._all_free.clear()
            await self._all_free.wait()

    async def _run(self, place: _Place[ModelT]) -> None:
        place.task = asyncio.current_task()
        try:
            while not place.is_replaced:
                # It may be woken before its first step.
                if place not in self._idle and not place.woken.is_set():
                    self._idle.append(place)
                    self._on_free()
                await place.woken.wait()
                place.woken.clear()
                self._waking = None
                await self._work(place)
        finally:
            # It was left, or it dies and the supervisor begins it anew.
            place.woken.clear()
            if place in self._idle:
                self._idle.remove(place)
            if self._waking is place:
                self._waking = None
            if place in self._in_hand:
                self._worked(place, Ended.INTERRUPTED)
            self._note_waited()
            self._on_free()

    async def _work(self, place: _Place[ModelT]) -> None:
        yields_at = monotonic() + YIELDS_AFTER_S
        while (item := self._next(place)) is not None:
            rest = place.begin(item)
            if rest is not None:
                self.feed()
                await rest
                self._note_waited()
                yields_at = monotonic() + YIELDS_AFTER_S
            if place.is_replaced:
                return
            self._worked(place)
            task = place.task
            # Before Python 3.13, `uncancel` leaves a request to be delivered: to the next row.
            if task is not None and (task.cancelling() or getattr(task, "_must_cancel", False)):
                self.replace(place)
                return
            # Noted when its attempt ended, so that the clock is not read once more.
            if item.ended_at >= yields_at:
                await asyncio.sleep(0)
                yields_at = monotonic() + YIELDS_AFTER_S

    def _may_begin(self) -> bool:
        if self.is_open and not self._settler.is_full:
            return True
        self._is_held_up = True
        return False

    def _next(self, place: _Place[ModelT]) -> PipelineItem[ModelT] | None:
        item = self.context.queue.get() if self._may_begin() else None
        if item is not None:
            if self._is_held_up:
                self._is_held_up, self.context.queue.held_until = False, monotonic()
            # In hand before the first step, in which a host's own work may do something else.
            self._in_hand[place] = item
            self.context.in_progress.add(item)
        return item

    def _note_waited(self) -> None:
        """Note that a worker was not free: with none idle beside it, queued rows have waited."""
        self._is_held_up = self._is_held_up or not self._idle

    def _worked(self, place: _Place[ModelT], ended: Ended | None = None) -> None:
        item = self._in_hand.pop(place)
        # A host's own work may have ended without handing it over. After an error it need not wait
        # until it is found as a stray.
        if item in self.context.in_progress:
            self.context.in_progress.discard(item)
            if ended is not None:
                self._settler.settle_later(item, ended)

    def _on_free(self) -> None:
        if not self._in_hand:
            self._all_free.set()
        self.feed()
        if self._idle and not self.context.queue.holds_ahead:
            self.context.queue.on_room()
