"""A worker takes an item, has it processed, and decides its outcome; the settler carries that out.

A worker has a place: one task that works on row after row, each in context variables of its own.
The place takes a row's first step by hand. A row that does not wait ends there, without a task or
a wake-up; when a row waits, the next place is woken. A task for each row would cost more than all
else that is done here for it.

Every way in which an attempt can end leads to a decision. No session is open while the host's code
runs.
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
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock import events
from rowlock.clock import exponential, monotonic
from rowlock.database.batcher import Batcher, Retries
from rowlock.database.faults import is_of_the_schema, is_transient
from rowlock.errors import HOST_ERRORS, ProcessCancelledError, describe
from rowlock.leases.claim import load_rows, row_hidden
from rowlock.leases.item import PipelineItem
from rowlock.leases.renew import tokens_still_held
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import Call, Ended, Raised, RestOfCall, Result, contained, first_step
from rowlock.pipelines.context import FRESH_S_MAX, PipelineContext
from rowlock.pipelines.decisions import Decision, decide, decide_unread, record_unreadable
from rowlock.pipelines.heartbeater import Heartbeater
from rowlock.pipelines.outcomes import SUCCESSES, Park
from rowlock.pipelines.settler import Settler
from rowlock.pipelines.statistics import LOADER
from rowlock.rows.leased_table import ModelT
from rowlock.rows.lock_tokens import deaths_of
from rowlock.tasks import RESTART_DELAY_S, RESTART_DELAY_S_MAX, tell_replaced

logger = get_logger(__name__)

ROWS_DIFFER_S = 60.0
"""For so long after a row could be read, a failure is one row's own, in seconds."""
TOKENS_GONE_MAX = 10
"""After so many trusted leases in a row whose tokens were gone, the pipeline is unhealthy."""

HIDDEN: Any = object()
"""Stands for a row that is there under its token and was not returned."""


class Loader(Generic[ModelT]):
    """Reads rows for workers under their tokens, many at a time."""

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
                self._record_token_gone(item)
                return False
            self._tokens_gone = 0
            if LOADER in self.context.failures.errors:
                self._others_load_until = monotonic() + ROWS_DIFFER_S
                self.context.failures.succeeded(LOADER)
            item.row = row
            return True
        return False

    def _record_token_gone(self, item: PipelineItem[ModelT]) -> None:
        """Count trusted leases that were lost: one is a person's doing, many a trigger's."""
        if not item.is_trusted():
            return
        self._tokens_gone += 1
        if self._tokens_gone >= TOKENS_GONE_MAX:
            self.context.failures.failed(
                LOADER,
                f"{self._tokens_gone} leases in a row were gone before work began: does a trigger"
                " or a service clear lock_token?",
            )

    def concerns_all_rows(self, error: Exception) -> bool:
        """Whether no row can be read; one kind of rows may have its own table."""
        return is_of_the_schema(error) and monotonic() >= self._others_load_until

    async def _load_together(self, items: Sequence[PipelineItem[ModelT]]) -> list[ModelT | None]:
        options = await contained(self._options)

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

    async def _options(self) -> Sequence[LoaderOption]:
        return self.context.hooks.options()


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
        released.

        A worker of the host's own may do something before and after that.
        """
        # A host's own work may have waited before.
        self.context.queue.held_until = monotonic()
        await self._work(item)

    def begin(self, item: PipelineItem[ModelT], place: _Place[ModelT]) -> Awaitable[None] | None:
        """As `work`, in the task of `place`; return what is left after the first step, if any."""
        now = monotonic()
        if not self._is_ready(item, now) or (
            item.prev_lock_expired and (self._is_to_be_tried(item) or self._reason_to_give_up(item))
        ):
            return self._work(item, place)
        return self._begin_attempt(item, now, place)

    async def _work(self, item: PipelineItem[ModelT], place: _Place[ModelT] | None = None) -> None:
        self.context.in_progress.add(item)
        try:
            if await self._prepare(item):
                rest = self._begin_attempt(item, monotonic(), place)
                if rest is not None:
                    await rest
        except HOST_ERRORS:
            self._finish(item, Ended.INTERRUPTED)
            raise

    def _begin_attempt(
        self, item: PipelineItem[ModelT], now: float, place: _Place[ModelT] | None
    ) -> Awaitable[None] | None:
        if place is None:
            return self._attempt(item, self._start(item, now))
        variables = place.variables()
        result = first_step(variables.run(self._start, item, now), variables)
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
                result = await attempt.run_here(partial(self._abandon, item, place), item.begun_at)
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
        """Whether nothing is to be read, or waited for, before an attempt at `item`."""
        return (
            self._loader.check_fresh(item, now)
            and item.unreadable is None
            and item.attempt <= self._attempts_max
            and not self.context.grace_over
        )

    async def _prepare(self, item: PipelineItem[ModelT]) -> bool:
        """Wait for what an attempt needs; settle the item and return False if none can be made."""
        context = self.context
        if item.prev_lock_expired and self._is_to_be_tried(item):
            await context.trial.acquire()
            context.tried, context.queue.held_until = item, monotonic()
        decision, now = None, monotonic()
        if not self._is_ready(item, now) or (
            item.prev_lock_expired and self._reason_to_give_up(item)
        ):
            decision, now = await self._prevented(item), monotonic()
        if decision is None and (context.grace_over or self._heartbeater.has_lost(item, now)):
            # A shutdown has interrupted everything while this row was read: nothing would end
            # what begins now.
            decision = Ended.INTERRUPTED if context.grace_over else Ended.LEASE_LOST
        if decision is not None:
            self._finish(item, decision)
        return decision is None

    def _end(
        self, item: PipelineItem[ModelT], result: Result, place: _Place[ModelT] | None
    ) -> None:
        item.ended_at = monotonic()
        self.context.histograms.process.add(item.ended_at - item.begun_at)
        decision = self._decide(item, result)
        if place is not None and isinstance(decision, SUCCESSES) and decision.also is not None:
            # It is written by a task of its own, in which `also` has what `process` has set.
            place.of_row.run(self._finish, item, decision)
        else:
            self._finish(item, decision)

    def _finish(self, item: PipelineItem[ModelT], decision: Decision) -> None:
        # Unless it was taken out of this hand.
        if item in self.context.in_progress:
            self.context.in_progress.discard(item)
            self._settler.settle_later(item, decision)

    def _abandon(self, item: PipelineItem[ModelT], place: _Place[ModelT]) -> None:
        self._finish(item, Ended.ABANDONED)
        place.leave()

    def _is_to_be_tried(self, item: PipelineItem[ModelT]) -> bool:
        # One at a time: another row that is tried may end this process, and must not be blamed.
        return deaths_of(item.lock_token).are_trying(self._deaths_max)

    def _start(self, item: PipelineItem[ModelT], now: float) -> Call:
        """Record the start of an attempt, and return what it calls."""
        context = self.context
        call = context.calls.call(context.hooks.process, item, context.seams.surround)
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

    def _decide(self, item: PipelineItem[ModelT], result: Result) -> Decision:
        context = self.context
        if (
            isinstance(result, Raised)
            and isinstance(result.error, ProcessCancelledError)
            and context.check_ending()
        ):
            # The end of the loop cancels every task: it was not the host's code that did.
            return Ended.INTERRUPTED
        return decide(context, item, result)

    async def _prevented(self, item: PipelineItem[ModelT]) -> Decision | None:
        """Read the row; return the decision if no attempt can be made at it."""
        context = self.context
        if context.stop.is_set() and item.prev_lock_expired and self._is_to_be_tried(item):
            return Ended.INTERRUPTED
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
        if item.attempt > self._attempts_max:
            return Park(f"gave up after {item.attempt - 1} attempts: the last holder died")
        reason = self._reason_to_give_up(item) if item.prev_lock_expired else None
        return None if reason is None else Park(reason)

    def _reason_to_give_up(self, item: PipelineItem[ModelT]) -> str | None:
        deaths_max, deaths = self._deaths_max, deaths_of(item.lock_token)
        if deaths_max is None or deaths.counted < deaths_max:
            return None
        if deaths.are_trying(deaths_max):
            return (
                f"gave up: {deaths.in_crowds} holders in a row died with this row and many others,"
                " and the next ones when it ran alone"
            )
        return f"gave up: {deaths.counted} holders in a row died over this row"


YIELDS_AFTER_S = 0.002
"""So long a place goes on with rows that do not wait until it lets other tasks run, in seconds."""


class _Place(Generic[ModelT]):
    """Where a worker works: one task, for one row after another.

    A place ends with its row if its task was cancelled, or if host code ignores its cancellation.
    The worker gets a new place.
    """

    __slots__ = ("_is_left", "_pool", "_woken", "item", "of_row", "task", "worker")

    def __init__(self, pool: Pool[ModelT], worker: Worker[ModelT]) -> None:
        self.worker, self._pool, self._is_left = worker, pool, False
        self.item: PipelineItem[ModelT] | None = None
        self.task: asyncio.Task[None] | None = None
        self._woken: asyncio.Future[None] | None = None

    def give(self, item: PipelineItem[ModelT]) -> None:
        """Work on `item` from the next iteration of the event loop on."""
        self.item = item
        if self.task is None:
            self.task = asyncio.create_task(
                self._run(), name="rowlock: process", context=self._pool.variables.copy()
            )
            self.task.add_done_callback(self._on_task_done)
        else:
            self.wake()

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def leave(self, error: BaseException | None = None) -> None:
        self._is_left = True
        self._pool.on_left(self, error)

    async def _run(self) -> None:
        pool, task = self._pool, asyncio.current_task()
        assert task is not None
        yields_at = monotonic() + YIELDS_AFTER_S
        while True:
            item, rest, error = self.item, None, None
            if item is None:
                if pool.is_over:
                    return
                self._woken = asyncio.get_running_loop().create_future()
                await self._woken
                yields_at = monotonic() + YIELDS_AFTER_S
                continue
            pool.is_waking = False
            try:
                rest = self._begin(item)
                if rest is not None:
                    # Not at once: an eager task could await the same future, half taken by now.
                    asyncio.get_running_loop().call_soon(pool.feed)
                    await rest
                    pool.on_waited()
                    yields_at = monotonic() + YIELDS_AFTER_S
            # A worker's own `work` is the host's, and so is the property that `process` may be.
            except HOST_ERRORS as raised:
                error = raised
            if self._is_left:
                return
            self.item = None
            # Before Python 3.13, `uncancel` leaves a request to be delivered: to the next row.
            if task.cancelling() or getattr(task, "_must_cancel", False):
                pool.on_worked(item, error)
                self.leave(error)
                return
            pool.go_on(self, item, error)
            # Noted when its attempt ended, so that the clock is not read once more.
            if item.ended_at >= yields_at:
                await asyncio.sleep(0)
                yields_at = monotonic() + YIELDS_AFTER_S

    def variables(self) -> Context:
        """Return those of the next row, which stay in `of_row` until the one behind it."""
        # A copy, since code that runs in one context cannot enter it again.
        self.of_row: Context = self._pool.variables.copy()
        return self.of_row

    def _begin(self, item: PipelineItem[ModelT]) -> Awaitable[None] | None:
        """Begin with `item`; return what is left of the work, unless it has ended."""
        worker = self.worker
        if type(worker).work is Worker.work:
            return worker.begin(item, self)
        rest = RestOfCall(worker.work(item), self.variables())
        try:
            rest.begin()
        except StopIteration:
            return None
        return rest

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not self._is_left:
            self._is_left = True
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            self._pool.on_place_gone(self, error)


class Pool(Generic[ModelT]):
    """The workers of one pipeline; gives them queued items while it `is_open`.

    Attributes:
        restarts: how many errors have escaped from workers.
        is_over: whether places that have nothing to do end.
        is_waking: whether a place was given an item and has not begun with it.
        variables: the context variables that each row gets a copy of.
    """

    def __init__(
        self,
        context: PipelineContext[ModelT],
        workers: Sequence[Worker[ModelT]],
        *,
        settler: Settler[ModelT],
    ) -> None:
        self.context = context
        self.restarts = 0
        self.is_open = self.is_over = self.is_waking = False
        self.variables: Context = Context()
        self._settler = settler
        self._names = {worker: f"worker {number}" for number, worker in enumerate(workers, start=1)}
        self._idle: list[Worker[ModelT]] = []
        self._busy = 0
        self._is_feeding = self._is_held_up = False
        self._resting: dict[Worker[ModelT], asyncio.TimerHandle] = {}
        self._deaths: dict[Worker[ModelT], int] = {}
        self._idle_again: asyncio.Future[None] | None = None
        # The event loop itself keeps no task that waits: one without a reference is collected, and
        # never ends.
        self._places: dict[Worker[ModelT], _Place[ModelT]] = {}
        self._left: set[asyncio.Task[None]] = set()
        context.queue.idle = lambda: len(self._idle)
        context.queue.on_items = settler.on_room = self.feed

    def start(self) -> None:
        """Work from now on, with the context variables of the caller."""
        self.is_open = True
        self.variables = copy_context()
        self._idle = list(self._names)
        self.feed()

    def alive(self) -> dict[str, bool]:
        """Return each worker's name and whether it takes items: after an escape it rests."""
        return {
            name: self.is_open and worker not in self._resting
            for worker, name in self._names.items()
        }

    def feed(self) -> None:
        """Begin work on what is queued, while a worker is free and the settler has room.

        One place is woken at a time: it goes on with what need not wait, and feeds when it waits.
        Called whenever one of these changes: items arrive, a worker is free or rests, the settler
        has room.
        """
        if self._is_feeding or self.is_waking:
            # An eager task may end within the call that makes it: the outer call goes on, without
            # recursion.
            return
        self._is_feeding = True
        try:
            while self._idle and not self.is_waking and (item := self._next()) is not None:
                worker = self._idle.pop()
                self._busy += 1
                self.is_waking = True
                place = self._places.get(worker)
                if place is None:
                    place = self._places[worker] = _Place(self, worker)
                place.give(item)
        finally:
            self._is_feeding = False

    def on_waited(self) -> None:
        """Note that a worker was not free: with none idle beside it, queued rows have waited."""
        self._is_held_up = self._is_held_up or not self._idle

    def _next(self) -> PipelineItem[ModelT] | None:
        if not self.is_open or self._settler.is_full:
            self._is_held_up = True
            return None
        item = self.context.queue.get()
        if item is not None:
            if self._is_held_up:
                self._is_held_up, self.context.queue.held_until = False, monotonic()
            # In hand before the first step, in which a host's own work may do something else.
            self.context.in_progress.add(item)
        return item

    def go_on(
        self, place: _Place[ModelT], worked: PipelineItem[ModelT], error: BaseException | None
    ) -> None:
        """Give `place` its next item, if there is one."""
        self.on_worked(worked, error)
        if error is None and (item := self._next()) is not None:
            self._deaths.pop(place.worker, None)
            place.item = item
        else:
            self._on_worker_done(place.worker, error)

    def on_worked(self, item: PipelineItem[ModelT], error: BaseException | None) -> None:
        # A host's own work may have ended without handing it over. After an error it need not wait
        # until it is found as a stray.
        if item in self.context.in_progress:
            self.context.in_progress.discard(item)
            if error is not None:
                self._settler.settle_later(item, Ended.INTERRUPTED)

    def on_left(self, place: _Place[ModelT], error: BaseException | None) -> None:
        self.on_waited()
        del self._places[place.worker]
        if place.task is not None:
            self._left.add(place.task)
            place.task.add_done_callback(self._left.discard)
        # At the end of the event loop this closes the pool: no row is begun any more.
        self.context.check_ending()
        self._on_worker_done(place.worker, error)

    def on_place_gone(self, place: _Place[ModelT], error: BaseException | None) -> None:
        """Release the item of a place whose task has ended with it in hand."""
        del self._places[place.worker]
        item, place.item = place.item, None
        if item is None:
            return
        self.is_waking = False
        self.context.in_progress.discard(item)
        self._settler.settle_later(item, Ended.INTERRUPTED)
        self._on_worker_done(place.worker, error)

    async def wait_until_idle(self) -> None:
        """Wait until no worker is busy; called when the queue is closed."""
        while self._busy:
            if self._idle_again is None or self._idle_again.done():
                self._idle_again = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle_again)

    def stop(self) -> None:
        self.is_open, self.is_over = False, True
        for timer in self._resting.values():
            timer.cancel()
        for place in self._places.values():
            place.wake()

    def _on_worker_done(self, worker: Worker[ModelT], error: BaseException | None) -> None:
        self._busy -= 1
        if error is not None and not self.context.check_ending():
            self._rest(worker, error)
            self.feed()
        else:
            self._deaths.pop(worker, None)
            self._make_idle(worker)
        if self._idle_again is not None and not self._idle_again.done():
            self._idle_again.set_result(None)

    def _make_idle(self, worker: Worker[ModelT]) -> None:
        self._idle.append(worker)
        self.feed()
        if self._idle and not self.context.queue.holds_ahead:
            self.context.queue.on_room()

    def _rest(self, worker: Worker[ModelT], error: BaseException) -> None:
        """Let `worker` begin nothing for a while: a bug, or a stray cancellation."""
        deaths = self._deaths[worker] = self._deaths.get(worker, 0) + 1
        self.restarts += 1
        delay_s = exponential(deaths, first_s=RESTART_DELAY_S, most_s=RESTART_DELAY_S_MAX)
        self._resting[worker] = asyncio.get_running_loop().call_later(delay_s, self._rested, worker)
        tell_replaced(self.context.name, self._names[worker], error)

    def _rested(self, worker: Worker[ModelT]) -> None:
        self.on_waited()
        del self._resting[worker]
        self._make_idle(worker)
