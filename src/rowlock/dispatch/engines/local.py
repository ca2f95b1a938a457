"""Engines of this process: attempts on the event loop, or in a thread for each.

A `LocalEngine` has a fixed set of workers, and counts the attempts of each. `LoopEngine` is for
work that waits for others most of the time, `ThreadEngine` for a plain ``def`` handler that blocks.
A thread cannot be cancelled: when an attempt is, its handler is closed at its next ``yield``; until
then its worker counts as busy.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from rowlock.dispatch.attempt import Stream
from rowlock.dispatch.engine import (
    TASKS_MAX,
    AttemptEvent,
    Backpressure,
    BackpressureContext,
    Events,
    Failed,
    Heartbeat,
    Task,
    TaskCountBackpressure,
    WorkerView,
)
from rowlock.errors import ConfigurationError, SettingsError, WorkerBusy, WorkerGone
from rowlock.tasks import ENDED, LEFT_BEHIND, DaemonThreads


class LocalEngine(ABC):
    """Workers of one kind on this machine, each with one attempt at a time unless `backpressure`
    says otherwise.
    """

    kind: ClassVar[str]  # what its workers are called
    # As many attempts may run at once, and so many workers there may be
    attempts_max: ClassVar[int] = TASKS_MAX
    beats_itself: ClassVar[bool] = False  # whether `run` yields beats while nothing else comes
    # Whether an attempt needs something that this machine may lack. Then the first thing that `run`
    # yields is a `Heartbeat`, when it has that; what it raises before is no failure of the row, and
    # is raised out of `offer`.
    needs_something: ClassVar[bool] = False

    def __init__(self, workers: int = 1, *, backpressure: Backpressure | None = None) -> None:
        if (
            isinstance(workers, bool)
            or not isinstance(workers, int)
            or not 1 <= workers <= self.attempts_max
        ):
            name = type(self).__name__
            raise SettingsError(
                f"{name} takes a number of workers from 1 to {self.attempts_max}, not {workers!r}",
                settings=("workers",),
            )
        self._refuses: Backpressure = (
            TaskCountBackpressure() if backpressure is None else backpressure
        )
        digits = len(str(workers))
        self._active = {f"{self.kind}-{number:0{digits}}": 0 for number in range(1, workers + 1)}
        self._on_loops: dict[asyncio.AbstractEventLoop, Counter[str]] = {}
        self._undoing: set[asyncio.Task[None]] = set()

    def workers(self) -> Mapping[str, WorkerView]:
        tags = frozenset({self.kind})
        self._forget()
        return {worker: WorkerView(active, tags) for worker, active in self._active.items()}

    async def offer(self, worker: str, task: Task[Any]) -> Events:
        """Offer `task`. Cancelled, it returns at once; the worker is busy until all is undone."""
        self._forget()
        if worker not in self._active:
            raise WorkerGone(worker, "there is no such worker")
        if self._refuses(BackpressureContext(self._active[worker], task)):
            raise WorkerBusy(worker)
        if sum(self._active.values()) >= self.attempts_max:
            raise WorkerBusy(worker)
        loop = asyncio.get_running_loop()
        self._on_loops.setdefault(loop, Counter())[worker] += 1
        self._active[worker] += 1
        left = partial(self._left_on, loop, worker)
        attempt = self.run(worker, task)
        if self.needs_something:
            # And a generator that was begun is closed properly, whatever happens next.
            await self._begun(attempt, left)
        beat_s = None if self.beats_itself else task.heartbeat_s
        return Stream(attempt, beat_s=beat_s, on_end=left)

    @abstractmethod
    def run(self, worker: str, task: Task[Any]) -> AsyncGenerator[AttemptEvent, None]:
        """Run the task's handler and yield its events."""

    async def _begun(
        self, attempt: AsyncGenerator[AttemptEvent, None], left: Callable[[], None]
    ) -> None:
        has_all = asyncio.create_task(anext(attempt), name="rowlock: begin an attempt")
        try:
            await asyncio.wait({has_all})
        except asyncio.CancelledError:
            undoing = asyncio.create_task(_undo(has_all, attempt), name="rowlock: give up")
            # The loop itself remembers no task that waits.
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            undoing.add_done_callback(lambda _: left())
            raise
        try:
            has_all.result()
        except BaseException:  # a cancellation as well: the worker would stay busy
            left()
            raise

    def _left_on(self, loop: asyncio.AbstractEventLoop, worker: str) -> None:
        if loop in self._on_loops:
            self._on_loops[loop][worker] -= 1
            self._left(worker)

    def _left(self, worker: str) -> None:
        self._active[worker] -= 1

    def _forget(self) -> None:
        """Count attempts no more that have ended with their event loop."""
        for loop in [loop for loop in self._on_loops if loop.is_closed()]:
            for worker in self._on_loops.pop(loop).elements():
                self._left(worker)


def called(handler: Any) -> Any:
    """The function that runs when `handler` is called: the outermost wrapper that yields."""
    while isinstance(handler, partial):
        handler = handler.func
    inner = inspect.unwrap(handler, stop=is_generator)
    return inner if inspect.isroutine(inner) else getattr(inner, "__call__", inner)  # noqa: B004


def is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


async def _undo(
    begun: asyncio.Task[AttemptEvent], attempt: AsyncGenerator[AttemptEvent, None]
) -> None:
    begun.cancel()
    await asyncio.wait({begun})
    if not begun.cancelled():
        begun.exception()  # the attempt was given up
    await attempt.aclose()


_NOT_ASYNC = "LoopEngine takes an `async def` handler with yield; use ThreadEngine for a `def`"


class LoopEngine(LocalEngine):
    """Runs an ``async def`` handler on the event loop; it must not block it.

    Args:
        workers: how many attempts run at once.
        backpressure: how many each of them takes; one by default.
    """

    kind: ClassVar[str] = "loop"

    def check_handler(self, handler: Callable[..., Any]) -> None:
        """Refuse a handler that would block the event loop."""
        if inspect.isgeneratorfunction(called(handler)):
            raise ConfigurationError(_NOT_ASYNC)

    def run(self, worker: str, task: Task[Any]) -> AsyncGenerator[AttemptEvent, None]:
        """Return the events of the task's handler: its own generator, so that it is one whole."""
        try:
            events: Any = task.handler(task)
        # The handler is host code, and fails as if it had begun.
        except Exception as error:  # noqa: BLE001
            return _fails(error)
        if not hasattr(events, "__anext__"):
            return _fails(ConfigurationError(_NOT_ASYNC))
        return events  # type: ignore[no-any-return]


async def _fails(error: Exception) -> AsyncGenerator[AttemptEvent, None]:
    yield Failed.of(error)


THREADS_MAX = 1_000
"""Most threads of one engine."""


_NOT_PLAIN = "ThreadEngine takes a `def` handler with yield; use LoopEngine for an `async def`"


class ThreadEngine(LocalEngine):
    """Runs a ``def`` handler with ``yield`` in a thread.

    Args:
        workers: how many attempts run at once; 1,000 at most.
        backpressure: how many each of them takes; one by default. All of them together take 1,000.
    """

    kind: ClassVar[str] = "thread"
    attempts_max: ClassVar[int] = THREADS_MAX
    needs_something: ClassVar[bool] = True

    def check_handler(self, handler: Callable[..., Any]) -> None:
        """Refuse a handler that needs an event loop."""
        if inspect.isasyncgenfunction(called(handler)):
            raise ConfigurationError(_NOT_PLAIN)

    async def run(self, worker: str, task: Task[Any]) -> AsyncGenerator[AttemptEvent, None]:
        """Yield a `Heartbeat` when there is a thread, then run the task's handler in it and
        yield its events.
        """
        thread = DaemonThreads(1, name="rowlock handler")
        try:
            # Starts it, or raises that there is none to be had.
            thread.submit(bool)
            yield Heartbeat()
            # A handler may also be a function that works first and returns an iterator.
            events = await _in(thread, task.handler, task)
            if not isinstance(events, Iterator):
                raise ConfigurationError(
                    f"{_NOT_PLAIN}; this one gave {type(events).__name__}: write"
                    " `yield Completed(...)` instead of returning it"
                )
            is_left_behind = False
            try:
                while (event := await _in(thread, next, events, None)) is not None:
                    yield event
            except asyncio.CancelledError as cancellation:
                is_left_behind = cancellation.args == (LEFT_BEHIND,)
                raise
            finally:
                if is_left_behind:
                    thread.submit(_close, events)
                else:
                    await _in(thread, _close, events)
        finally:
            thread.shutdown(wait=False)


async def _in(thread: DaemonThreads, function: Any, *args: Any) -> Any:
    """Call in `thread`, and return when the call is done, also if the attempt is closed."""
    call = asyncio.get_running_loop().run_in_executor(thread, function, *args)
    closed: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait({call})
        except asyncio.CancelledError as cancellation:
            if cancellation.args != (ENDED,):
                raise asyncio.CancelledError(LEFT_BEHIND) from None
            closed = cancellation
    if closed is not None:
        raise closed
    return call.result()


def _close(events: Any) -> None:
    if hasattr(events, "close"):
        events.close()
