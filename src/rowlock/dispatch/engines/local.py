"""What engines of this machine have in common: a fixed set of workers, and how many attempts each
has.

Not here: how a handler is run, which is all that tells them apart.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from rowlock.containment import contained_task
from rowlock.dispatch.backpressure import (
    TASKS_MAX,
    Backpressure,
    BackpressureContext,
    TaskCountBackpressure,
)
from rowlock.dispatch.engine import Events, WorkerView
from rowlock.dispatch.engines.stream import Stream
from rowlock.dispatch.task import AttemptEvent, Task
from rowlock.errors import SettingsError, WorkerBusy, WorkerGone


class LocalEngine(ABC):
    """Workers of one kind on this machine, each with one attempt at a time unless `backpressure`
    says otherwise.

    Attributes:
        kind: what its workers are called.
        attempts_max: as many attempts may run at once, and so many workers there may be.
        beats_itself: whether `run` yields beats while nothing else comes.
        needs_something: whether an attempt needs something that this machine may lack. Then the
            first thing that `run` yields is a `Heartbeat`, when it has that; what it raises before
            is no failure of the row, and is raised to whoever offers.
    """

    kind: ClassVar[str]
    attempts_max: ClassVar[int] = TASKS_MAX
    beats_itself: ClassVar[bool] = False
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

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {len(self._active)} workers, {sum(self._active.values())}"
            " attempts>"
        )

    def workers(self) -> Mapping[str, WorkerView]:
        """Return the workers, by id."""
        tags = frozenset({self.kind})
        self._forget()
        return {worker: WorkerView(active, tags) for worker, active in self._active.items()}

    async def offer(self, worker: str, task: Task[Any]) -> Events:
        """Offer `task` to `worker`. Cancelled, it returns at once, since nothing was begun; the
        worker is busy until all is undone.

        Raises:
            WorkerBusy: it has as much as it takes.
            WorkerGone: there is no such worker.
            OSError, RuntimeError: this machine has no folder, process or thread for it.
        """
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
        has_all = contained_task(anext(attempt), name="rowlock: begin an attempt")
        try:
            await asyncio.wait({has_all})
        except asyncio.CancelledError:
            undoing = contained_task(_undo(has_all, attempt), name="rowlock: give an attempt up")
            # The loop itself remembers no task that waits.
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            undoing.add_done_callback(lambda _: left())
            raise
        try:
            has_all.result()
        except BaseException:
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
    """Return the function that is run when `handler` is called: of those that wrap each other the
    outermost one that yields, or else the innermost.
    """
    while isinstance(handler, partial):
        handler = handler.func
    inner = inspect.unwrap(handler, stop=is_generator)
    return inner if inspect.isroutine(inner) else getattr(inner, "__call__", inner)  # noqa: B004


def is_generator(function: Any) -> bool:
    """Whether a call gives a generator, of either kind."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


async def _undo(
    begun: asyncio.Task[AttemptEvent], attempt: AsyncGenerator[AttemptEvent, None]
) -> None:
    begun.cancel()
    await asyncio.wait({begun})
    if not begun.cancelled():
        begun.exception()  # nobody wants to know
    await attempt.aclose()
