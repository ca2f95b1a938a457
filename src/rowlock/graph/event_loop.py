"""The lanes of a run in the event loop: coroutines, and functions that are called there; and calls
of host code, in every place.

Nothing that a call raises leaves this module, whatever its kind: it becomes the error of the node,
and the run ends with it.

The loop is a worker like the threads: where a call has ended, the loop itself asks which calls are
next. Consecutive coroutines never leave it, and a node that gets its next value at once continues
in the same task. One iteration of the loop asks a bounded number of nodes and begins no call when
its time is over, so that the host's other tasks go on.

On a loop whose time is moved by a test, calls of threads are made here as well, one in each
iteration, so that their order depends on the program alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Final

from rowlock.errors import GraphInterrupted
from rowlock.graph.fix_point import Hand
from rowlock.graph.host_code import KeepGoing, add_check, goes_on
from rowlock.graph.processor import NodeStatus
from rowlock.graph.scheduler import RUNNING, Scheduler, take_ticket
from rowlock.graph.topology import Node, Topology, add_place
from rowlock.tasks import as_ordinary

ASKS_MAX: Final = 256
"""How many nodes are asked in one iteration of the loop."""

ITERATION_S_MAX: Final = 0.002
"""After this time no call is begun in an iteration, in seconds."""

REPORT_S_MAX: Final = 0.0001
"""After this time the calls that have ended are reported, though others wait, in seconds."""

ASYNC = NodeStatus.ASYNC


class LoopLanes:
    """Makes calls in one event loop; what the scheduler asks of the loop is done here."""

    def __init__(
        self,
        graph: Topology,
        *,
        context: Context,
        keep_going: KeepGoing | None = None,
        on_stop: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        """`on_stop` is called in the loop when the run ends early, `on_end` at its end."""
        self.scheduler = Scheduler(graph, outside=self, stopwatch=graph.stopwatch)
        self.submit_to_threads: Callable[[list[Node]], None] | None = None
        self._graph = graph
        self._stopwatch = graph.stopwatch
        self._context = context
        add_check(context, lambda: self.scheduler.phase is not RUNNING)
        if keep_going is not None:
            add_check(context, lambda: not goes_on(keep_going))
        self._keep_going = keep_going
        self._loop = asyncio.get_running_loop()
        self._on_stop = on_stop
        self._on_end = on_end
        self._ready: deque[Node] = deque()
        self._tasks: dict[Node, asyncio.Task[None]] = {}
        self._timers: dict[Node, asyncio.TimerHandle] = {}
        self._is_due = False
        self._is_advance_due = False
        self._iteration = 0
        self._is_counting = False
        self._idle: dict[Node, asyncio.Future[bool]] = {}
        self._idle_for_long: dict[Node, asyncio.Future[bool]] = {}
        self._kept: dict[Node, asyncio.Event] = {}

    # What follows is called in any thread.

    def call(self, node: Node) -> bool:
        """Make a call that is no coroutine; return False if it was withdrawn."""
        node.started_at = self._stopwatch()
        if not take_ticket(node):
            return False
        if (self._keep_going is None and self.scheduler.phase is RUNNING) or self._is_wanted(node):
            processor = node.processor
            act = processor.close if node.is_closing else processor.process
            try:
                (processor.context or self._context).copy().run(act)
            except BaseException as error:  # noqa: BLE001  # a run must not end its thread or loop
                self._failed(node, error)
        node.ended_at = self._stopwatch()
        return True

    async def _await_call(self, node: Node) -> None:
        if self._is_wanted(node):
            processor = node.processor
            act = processor.async_close if node.is_closing else processor.async_process
            try:
                await act()
            except BaseException as error:  # noqa: BLE001  # a run must not end its thread or loop
                self._failed(node, error)
        node.ended_at = self._stopwatch()

    def _is_wanted(self, node: Node) -> bool:
        """Whether the result of a call is wanted; stops the run once `keep_going` returns False."""
        if node.is_closing:
            return True
        if self.scheduler.phase is not RUNNING:
            return False
        if self._keep_going is None:
            return True
        try:
            is_wanted = goes_on(self._keep_going)
        except BaseException as error:  # noqa: BLE001  # it is code of the host
            self.scheduler.stop(as_ordinary(error))
            return False
        if not is_wanted:
            self.scheduler.stop(GraphInterrupted(self._graph.name))
        return is_wanted

    def _failed(self, node: Node, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError) and (
            self.scheduler.phase is not RUNNING or not self._is_wanted(node)
        ):
            return  # its answer to the end of the run
        # Without the frame of this file, which would keep the node alive with the error. Not by an
        # assignment, which an error that is a frozen data class refuses.
        error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        node.error = as_ordinary(error)
        add_place(node.error, node.processor)

    def advance_soon(self) -> None:
        if not self._is_advance_due:
            self._is_advance_due = True
            self._in_loop(self._iterate_soon)

    def set_timer(self, node: Node, number: int, seconds: float) -> None:
        self._in_loop(partial(self._set_timer, node, number, seconds))

    def cancel_timer(self, node: Node) -> None:
        self._in_loop(partial(self._cancel_timer, node))

    def cancel_calls(self) -> None:
        self._in_loop(self._cancel_calls)

    def ended(self) -> None:
        self._in_loop(self._ended_run)

    def submit(self, nodes: list[Node]) -> None:
        self._ready.extend(nodes)
        self._in_loop(self._iterate_soon)

    def nodes(self) -> list[Node]:
        return [node for node in self._tasks if not node.ticket]

    def _in_loop(self, act: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and waits for nothing any more
            self._loop.call_soon_threadsafe(act)

    # What follows runs in the loop.

    def _iterate_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._iterate)

    def _iterate(self) -> None:
        self._is_due = False
        scheduler, ready = self.scheduler, self._ready
        until = self._stopwatch() + ITERATION_S_MAX
        asks_end = scheduler.asks + ASKS_MAX
        if self._is_advance_due:
            self._is_advance_due = False
            self._advance(ASKS_MAX)
        report_at = 0.0
        while ready and scheduler.asks < asks_end:
            node = ready.popleft()
            if node.status is ASYNC:
                self._begin(node)
                continue
            if not self.call(node):
                continue
            is_last = self.submit_to_threads is None or node.ended_at >= until
            if node.hand is not None and node.hand.is_prompt:
                asks_end -= 1
                self._go_on(node, asks_end - scheduler.asks)
            else:
                scheduler.call_ended(node)
                report_at = report_at or node.started_at + REPORT_S_MAX
                if is_last or not ready or node.ended_at >= report_at:
                    report_at = 0.0
                    self._advance(asks_end - scheduler.asks)
            if is_last:
                break
        if report_at:
            self._advance(asks_end - scheduler.asks)
        if ready:
            self._iterate_soon()

    def _go_on(self, node: Node, asks_max: int) -> None:
        """Advance after the call of a lane at a resize."""
        # Its value goes on before others, so that these do not fill the slots first, which would
        # have each of them wait to be asked.
        found = self.scheduler.advance_after(node, wait=False, asks_max=asks_max)
        hand: Hand = node.hand
        if found and hand.goes_to(found[0]) and is_of_loop(found[0]):
            self._ready.appendleft(found.pop(0))
        if found:
            self._dispatch(found)

    def _advance(self, asks_max: int) -> None:
        found = self.scheduler.advance(wait=False, asks_max=asks_max)
        if found:
            self._dispatch(found)

    def _dispatch(self, nodes: list[Node]) -> None:
        if self.submit_to_threads is None:
            self._ready.extend(nodes)
        else:
            elsewhere: list[Node] = []
            for node in nodes:
                if node.status is ASYNC or node.processor.place == "loop":
                    self._ready.append(node)
                else:
                    elsewhere.append(node)
            if elsewhere:
                try:
                    self.submit_to_threads(elsewhere)
                except RuntimeError as error:  # no thread can be begun; the calls are withdrawn
                    self.scheduler.stop(error)
        if self._ready:
            self._iterate_soon()

    def _begin(self, node: Node) -> None:
        is_wanted = self._kept.pop(node, None)
        if is_wanted is not None:
            is_wanted.set()
            return
        waiter = self._idle.pop(node, None) or self._idle_for_long.pop(node, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(self._continues(node))
            if self._continues(node):
                return
        context = (node.processor.context or self._context).copy()
        work = self._await_calls(node)
        task = asyncio.create_task(work, name=f"rowlock: {node.operator}", context=context)
        self._tasks[node] = task
        task.add_done_callback(partial(self._task_done, node))

    async def _await_calls(self, node: Node) -> None:
        if not self._takes_ticket(node):
            return
        is_of_caller = node.processor.context is not None
        until, iteration = node.started_at + ITERATION_S_MAX, self._counted()
        while True:
            await self._await_call(node)
            found = self.scheduler.advance_after(node, wait=False, asks_max=ASKS_MAX)
            is_next = node in found and self._continues(node)
            if is_next:
                found.remove(node)
            if found:
                self._dispatch(found)
            is_wanted = is_next or (not is_of_caller and await self._is_used_again(node))
            if not is_wanted or not await self._begins(node):
                return
            if node.started_at >= until:
                if self._iteration == iteration:
                    # Coroutines that never suspend would keep the loop for themselves.
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(0)
                    node.started_at = self._stopwatch()
                until, iteration = node.started_at + ITERATION_S_MAX, self._counted()

    def _takes_ticket(self, node: Node) -> bool:
        node.started_at = self._stopwatch()
        return take_ticket(node)

    async def _begins(self, node: Node) -> bool:
        """Begin a further call in this task; False if there is none for it."""
        while not self._takes_ticket(node):
            # Withdrawn; what a node reads from is closed in the same task nevertheless.
            if not (self._keeps_task(node) and await self._is_kept(node)):
                return False
        return True

    async def _is_used_again(self, node: Node) -> bool:
        """Wait for the next call of a node: if it comes soon, no task is begun for it."""
        if self._keeps_task(node):
            return await self._is_kept(node)
        if node.is_busy:
            return False
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._idle[node] = waiter
        self._counted()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.cancelled() or not waiter.result():
                return False  # it has no call that this could end
            raise

    def _keeps_task(self, node: Node) -> bool:
        return node.processor.keeps_task and not node.is_abandoned

    async def _is_kept(self, node: Node) -> bool:
        """Wait for the next call of a node, however long; False at the end of the run."""
        # Until then it has one more: the run closes what it reads from.
        is_wanted = self._kept[node] = asyncio.Event()
        while not is_wanted.is_set():
            try:
                await is_wanted.wait()
            except asyncio.CancelledError as error:
                node.processor.cancellation = error.with_traceback(None)
        return self._kept.pop(node, None) is None

    def _ended_run(self) -> None:
        for is_wanted in self._kept.values():
            is_wanted.set()
        self._on_end()

    def _counted(self) -> int:
        """Return the number of this iteration of the loop, and have the next one counted."""
        if not self._is_counting:
            self._is_counting = True
            self._loop.call_soon(self._count)
        return self._iteration

    def _count(self) -> None:
        """Count an iteration; tasks that had nothing to do in the one before it end."""
        self._is_counting = False
        self._iteration += 1
        for waiter in self._idle_for_long.values():
            if not waiter.done():
                waiter.set_result(False)
        self._idle_for_long, self._idle = self._idle, {}
        if self._idle_for_long:
            self._counted()

    def _continues(self, node: Node) -> bool:
        own = node.processor.context
        return node.status is ASYNC and own is None and not node.is_closing

    def _task_done(self, node: Node, task: asyncio.Task[None]) -> None:
        if self._tasks.get(node) is task:
            del self._tasks[node]
        # Cancelled by another before its first step, the call was never begun.
        if task.cancelled() and take_ticket(node):
            self._failed(node, asyncio.CancelledError())
            node.started_at = node.ended_at = self._stopwatch()
            self.scheduler.call_ended(node)
            self._advance(ASKS_MAX)

    def _cancel_calls(self) -> None:
        self._on_stop()
        for node, task in list(self._tasks.items()):
            if not node.ticket and node not in self._kept:
                task.cancel()

    # Threads hand these two in outside of the mutex, so in another order than they were decided in:
    # what is late must not take away a timer that was set since.

    def _set_timer(self, node: Node, number: int, seconds: float) -> None:
        if node.timer == number and node.has_timer:
            self._drop_timer(node)
            self._timers[node] = self._loop.call_later(seconds, self._fire, node, number)

    def _cancel_timer(self, node: Node) -> None:
        if not node.has_timer:
            self._drop_timer(node)

    def _drop_timer(self, node: Node) -> None:
        handle = self._timers.pop(node, None)
        if handle is not None:
            handle.cancel()

    def _fire(self, node: Node, number: int) -> None:
        del self._timers[node]
        self.scheduler.timer_fired(node, number)
        self._advance(ASKS_MAX)


def is_of_loop(node: Node) -> bool:
    return node.status is ASYNC or node.processor.place == "loop"
