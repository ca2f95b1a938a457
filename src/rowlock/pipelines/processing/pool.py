"""Gives queued items to free workers.

Nobody waits in a task of its own for the next item: whoever puts items into the queue, and each
piece of work that ends, begins what can be begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Generic

from rowlock.backoff import exponential
from rowlock.containment import contained_task
from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.host_code.call import Ended
from rowlock.pipelines.processing.worker import Worker
from rowlock.pipelines.settling.settler import Settler
from rowlock.rows.leased_table import ModelT
from rowlock.supervisor import RESTART_DELAY_S, RESTART_DELAY_S_MAX, tell_replaced

logger = get_logger(__name__)


class Pool(Generic[ModelT]):
    """The workers of one pipeline.

    Attributes:
        context: what the actors of the pipeline share.
        restarts: how often something has escaped from a worker, which then rested.
        is_open: whether it begins work.
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

    def __repr__(self) -> str:
        return f"<Pool of {self.context.name}, {len(self._idle)} of {len(self._names)} idle>"

    def start(self) -> None:
        """Work from now on, with the context variables of the caller."""
        self.is_open = True
        self._variables = copy_context()
        self._idle = list(self._names)
        self.feed()

    def alive(self) -> dict[str, bool]:
        """Return each worker's name and whether it takes items: it rests when something has
        escaped from it.
        """
        return {
            name: self.is_open and worker not in self._resting
            for worker, name in self._names.items()
        }

    def feed(self) -> None:
        """Begin work on what is queued, as long as a worker is free and there is room for what
        comes of it.
        """
        if self._is_feeding:
            # A task that begins within the call which makes it may end there, too: who feeds goes
            # on by itself, and no deeper.
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
        """Wait until nobody works; asked for when the queue is closed."""
        while self._busy:
            if self._idle_again is None or self._idle_again.done():
                self._idle_again = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle_again)

    def stop(self) -> None:
        """Begin nothing more, and have nobody come back from a rest."""
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
        # `process` and `work` may be properties of the host's, which raise anything.
        except BaseException as error:  # noqa: BLE001
            # If it cannot be handed over, it is a stray, and found as one.
            self.context.in_progress.discard(item)
            with suppress(BaseException):
                self._settler.settle_later(item, Ended.INTERRUPTED)
            self._on_worker_done(worker, error)

    def _begin_host_work(
        self, worker: Worker[ModelT], item: PipelineItem[ModelT], *, variables: Context
    ) -> None:
        work = worker.work(item)
        # A host's own may begin with something else, and the item is in hand before that.
        self.context.in_progress.add(item)
        task = contained_task(work, name="rowlock: work", context=variables)
        # The event loop itself keeps no task that waits: one that nobody else has is collected, and
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
        """Let `worker` begin nothing for a while: a bug, or a cancellation that was meant for
        somebody else.
        """
        deaths = self._deaths[worker] = self._deaths.get(worker, 0) + 1
        self.restarts += 1
        delay_s = exponential(deaths, first_s=RESTART_DELAY_S, most_s=RESTART_DELAY_S_MAX)
        self._resting[worker] = asyncio.get_running_loop().call_later(delay_s, self._rested, worker)
        # Who logs or listens may raise anything.
        with suppress(BaseException):
            tell_replaced(self.context.name, self._names[worker], error)

    def _rested(self, worker: Worker[ModelT]) -> None:
        del self._resting[worker]
        self._make_idle(worker)
