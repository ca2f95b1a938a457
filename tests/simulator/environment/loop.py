"""The event loop of a simulation: virtual time, and no turn for processes that are dead or frozen.

The one idea: the loop takes each callback from one queue, and each callback knows the context in
which it was made. The queue hands out those of running processes; what belongs to another is kept
with its process, which may be thawed.

Source: `asyncio.base_events.BaseEventLoop._run_once`, which passes over handles that are cancelled.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from rowlock.testing import VirtualTimeLoop

from .processes import Process, current_process

ASYNCIO: Final = str(Path(asyncio.__file__).parent)


class SimulationLoop(VirtualTimeLoop):
    """A virtual-time loop that gives no turn to processes that do not run, and knows which of
    their tasks have died unasked.
    """

    def __init__(self, *, max_virtual_s: float, max_iterations: int) -> None:
        super().__init__(max_virtual_s=max_virtual_s, max_iterations=max_iterations)
        self._ready = _Iterations(self)
        self._died: list[Death] = []

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        task.add_done_callback(
            partial(self._ended, file=_starter()), context=options.get("context")
        )
        return task

    def unasked(self) -> list[Death]:
        """Return those tasks of living processes that ended with an exception which nobody has
        asked for.
        """
        return [death for death in self._died if death.process.is_alive and _is_unasked(death.task)]

    def _ended(self, task: asyncio.Task[Any], *, file: str) -> None:
        process = current_process.get()
        if process is not None and _is_unasked(task):
            self._died.append(Death(task, process, file))


class Death(NamedTuple):
    """A task that ended with an exception, its process, and the file of whoever started it."""

    task: asyncio.Task[Any]
    process: Process
    file: str


def _starter() -> str:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(ASYNCIO):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


def _is_unasked(task: asyncio.Task[Any]) -> bool:
    # What asyncio itself goes by when it says "Task exception was never retrieved", which depends
    # on the garbage collector.
    return bool(task._log_traceback)


class _Iterations(deque[asyncio.Handle]):
    def __init__(self, loop: SimulationLoop) -> None:
        super().__init__()
        self._nothing = asyncio.Handle(lambda: None, (), loop)
        self._nothing.cancel()

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        process = handle._context.get(current_process)  # type: ignore[attr-defined]
        if process is None or process.is_running:
            return handle
        process.held.append(handle)
        return self._nothing
