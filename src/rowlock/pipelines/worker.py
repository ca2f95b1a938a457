"""A worker takes an item, has it processed, and decides its outcome; the settler carries that out.

A worker is a place for one item at a time, not a task: each item has a task of its own, in which
the host's code runs, and with it context variables of its own. Every way in which an attempt can
end leads to a decision. No session is open while the host's code runs.

The pool gives queued items to free workers. No task waits for the next item: each put into the
queue, and each piece of work that ends, begins what can be begun.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Generic

from rowlock import events
from rowlock.clock import exponential, monotonic
from rowlock.errors import HOST_ERRORS, ProcessCancelledError
from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import Attempt, Ended, Raised, Result
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.decisions import Decision, decide, decide_unread, record_unreadable
from rowlock.pipelines.heartbeater import Heartbeater
from rowlock.pipelines.loader import Loader
from rowlock.pipelines.outcomes import Park
from rowlock.pipelines.settler import Settler
from rowlock.rows.leased_table import ModelT
from rowlock.rows.lock_tokens import deaths_of
from rowlock.tasks import RESTART_DELAY_S, RESTART_DELAY_S_MAX, tell_replaced

logger = get_logger(__name__)


class Worker(Generic[ModelT]):
    """Works on one item at a time.

    Attributes:
        context: what the actors of the pipeline share.
    """

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
        await self._work(_RunningItem(item, self._attempt_at(item), settler=self._settler))

    def begin(
        self,
        item: PipelineItem[ModelT],
        on_done: Callable[[Worker[ModelT], BaseException | None], None],
        *,
        variables: Context | None = None,
    ) -> None:
        """Work on `item` in a task of its own from now on.

        Args:
            item: is in hand until it is handed over to the settler.
            on_done: called once with this worker, when it is free again: also if the host's code
                still runs, since it ignored its cancellation. Gets what has escaped, if anything
                has.
            variables: the context variables of the task; a copy of the caller's if None.
        """
        running = _RunningItem(
            item, self._attempt_at(item), settler=self._settler, worker=self, on_done=on_done
        )
        task = asyncio.create_task(self._work(running), name="rowlock: process", context=variables)
        task.add_done_callback(running.on_task_done)

    def _attempt_at(self, item: PipelineItem[ModelT]) -> Attempt:
        context = self.context
        item.stop = context.stop
        attempt = context.calls.attempt(context.hooks.process, item, context.seams.surround)
        context.in_progress.add(item)
        return attempt

    async def _work(self, running: _RunningItem[ModelT]) -> None:
        context, item, attempt = self.context, running.item, running.attempt
        decision: Decision | None = None
        try:
            if item.prev_lock_expired and self._is_to_be_tried(item):
                await context.trial.acquire()
                context.tried = item
            now = monotonic()
            if (
                not self._loader.check_fresh(item, now)
                or item.unreadable is not None
                or item.attempt > self._attempts_max
                or (item.prev_lock_expired and self._reason_to_give_up(item))
            ):
                decision, now = await self._prevented(item), monotonic()
            if decision is None and (context.grace_over or self._heartbeater.has_lost(item, now)):
                # A shutdown has interrupted everything while this row was read: nothing would end
                # what begins now.
                decision = Ended.INTERRUPTED if context.grace_over else Ended.LEASE_LOST
            if decision is None:
                self._record_start(item, now)
                context.running[item.lock_token] = attempt
                result = await (
                    attempt.run() if running.is_with_host else attempt.run_here(running.abandon)
                )
                if result is None:
                    # Its settlement was begun when it was left behind.
                    return
                item.ended_at = monotonic()
                context.histograms.process.add(item.ended_at - item.begun_at)
                decision = self._decide(item, result)
            running.finish(decision)
        except HOST_ERRORS as error:
            # A bug, or a cancellation from outside: the row must not wait for its lease to expire.
            running.release(error)
            if running.is_with_host or isinstance(error, asyncio.CancelledError):
                raise
        finally:
            # Last: the settler looks there for what it has to end, or to leave behind.
            context.running.pop(item.lock_token, None)

    def _is_to_be_tried(self, item: PipelineItem[ModelT]) -> bool:
        # One at a time: another row that is tried may end this process, and must not be blamed.
        return deaths_of(item.lock_token).are_trying(self._deaths_max)

    def _record_start(self, item: PipelineItem[ModelT], now: float) -> None:
        context = self.context
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
            context.tell(events.ItemRecovered, item)

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
        if context.stop.is_given and item.prev_lock_expired and self._is_to_be_tried(item):
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


class _RunningItem(Generic[ModelT]):
    """An item in hand, with its attempt, until the settler has it; `is_with_host`: the host's own
    `work` waits for it.
    """

    __slots__ = (
        "_in_progress",
        "_on_done",
        "_settler",
        "_worker",
        "attempt",
        "is_with_host",
        "item",
    )

    def __init__(
        self,
        item: PipelineItem[ModelT],
        attempt: Attempt,
        *,
        settler: Settler[ModelT],
        worker: Worker[ModelT] | None = None,
        on_done: Callable[[Worker[ModelT], BaseException | None], None] | None = None,
    ) -> None:
        self.item, self.attempt, self.is_with_host = item, attempt, worker is None
        self._settler, self._in_progress, self._worker, self._on_done = (
            settler,
            settler.context.in_progress,
            worker,
            on_done,
        )

    def finish(self, decision: Decision, error: BaseException | None = None) -> None:
        """Have `decision` settled, unless the item was taken out of this hand."""
        if self.item in self._in_progress:
            self._in_progress.discard(self.item)
            self._settler.settle_later(self.item, decision)
        on_done, worker, self._on_done = self._on_done, self._worker, None
        if on_done is not None and worker is not None:
            on_done(worker, error)

    def abandon(self) -> None:
        """Go on without the attempt, which has ignored its cancellation."""
        self.finish(Ended.ABANDONED)

    def release(self, error: BaseException) -> None:
        """Release the item."""
        self.finish(Ended.INTERRUPTED, error)

    def on_task_done(self, task: asyncio.Task[None]) -> None:
        """Release the item of a task that was cancelled before its first step."""
        if self._on_done is not None and task.cancelled():
            self.release(asyncio.CancelledError())


class Pool(Generic[ModelT]):
    """The workers of one pipeline; `restarts` counts escapes. Begins work while `is_open`."""

    def __init__(
        self,
        context: PipelineContext[ModelT],
        workers: Sequence[Worker[ModelT]],
        *,
        settler: Settler[ModelT],
    ) -> None:
        self.context = context
        self.restarts = 0
        self.is_open = False
        self._settler = settler
        self._names = {worker: f"worker {number}" for number, worker in enumerate(workers, start=1)}
        self._idle: list[Worker[ModelT]] = []
        self._busy = 0
        self._is_feeding = False
        self._resting: dict[Worker[ModelT], asyncio.TimerHandle] = {}
        self._deaths: dict[Worker[ModelT], int] = {}
        self._variables: Context = Context()
        self._idle_again: asyncio.Future[None] | None = None
        self._host_work: set[asyncio.Task[None]] = set()
        context.queue.idle = lambda: len(self._idle)
        context.queue.on_items = settler.on_room = self.feed
        # Bound once: one for each row would be an object of each row.
        self._done = self._on_worker_done

    def start(self) -> None:
        """Work from now on, with the context variables of the caller."""
        self.is_open = True
        self._variables = copy_context()
        self._idle = list(self._names)
        self.feed()

    def alive(self) -> dict[str, bool]:
        """Return each worker's name and whether it takes items: after an escape it rests."""
        return {
            name: self.is_open and worker not in self._resting
            for worker, name in self._names.items()
        }

    def feed(self) -> None:
        """Begin work on what is queued, while a worker is free and the settler has room."""
        if self._is_feeding:
            # An eager task may end within the call that makes it: the outer call goes on, without
            # recursion.
            return
        queue, self._is_feeding = self.context.queue, True
        try:
            while (
                self._idle
                and self.is_open
                and not self._settler.is_full
                and (item := queue.get()) is not None
            ):
                self._begin(self._idle.pop(), item)
        finally:
            self._is_feeding = False

    async def wait_until_idle(self) -> None:
        """Wait until no worker is busy; called when the queue is closed."""
        while self._busy:
            if self._idle_again is None or self._idle_again.done():
                self._idle_again = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle_again)

    def stop(self) -> None:
        self.is_open = False
        for timer in self._resting.values():
            timer.cancel()

    def _begin(self, worker: Worker[ModelT], item: PipelineItem[ModelT]) -> None:
        self._busy += 1
        # A copy, since code that runs in one context cannot enter it again.
        variables = self._variables.copy()
        try:
            if type(worker).work is Worker.work:
                worker.begin(item, self._done, variables=variables)
            else:
                self._begin_host_work(worker, item, variables=variables)
        # `work` is the host's, and so is the property that `process` may be.
        except Exception as error:  # noqa: BLE001
            self.context.in_progress.discard(item)
            self._settler.settle_later(item, Ended.INTERRUPTED)
            self._on_worker_done(worker, error)

    def _begin_host_work(
        self, worker: Worker[ModelT], item: PipelineItem[ModelT], *, variables: Context
    ) -> None:
        work = worker.work(item)
        # A host's own may begin with something else, and the item is in hand before that.
        self.context.in_progress.add(item)
        task = asyncio.create_task(work, name="rowlock: work", context=variables)
        # The event loop itself keeps no task that waits: one without a reference is collected, and
        # never ends.
        self._host_work.add(task)
        task.add_done_callback(partial(self._on_host_work_done, item, worker))

    def _on_host_work_done(
        self, item: PipelineItem[ModelT], worker: Worker[ModelT], task: asyncio.Task[None]
    ) -> None:
        self._host_work.discard(task)
        self.context.in_progress.discard(item)
        self._on_worker_done(
            worker, asyncio.CancelledError() if task.cancelled() else task.exception()
        )

    def _on_worker_done(self, worker: Worker[ModelT], error: BaseException | None) -> None:
        self._busy -= 1
        if error is not None and not self.context.check_ending():
            self._rest(worker, error)
        else:
            if self._deaths:
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
        del self._resting[worker]
        self._make_idle(worker)
