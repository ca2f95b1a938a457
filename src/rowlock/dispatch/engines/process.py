"""Attempts in processes of this machine: for work that computes, blocks, or may crash.

The pool is anyio's: a process is started when one is needed, kept for the next attempt, and killed
if its attempt is cancelled, with all that its handler has started. Events come back over a socket,
with beats from a thread of the child: a process that was killed is noticed at once, one that hangs
when its beats stay away.

Not on Windows, which has no such sockets in asyncio. Not here: how one process is spoken with
(``process_line.py``).

Source: anyio, "Running code in worker processes".
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, ClassVar

from anyio import BrokenWorkerProcess

from rowlock.dispatch.backpressure import Backpressure
from rowlock.dispatch.engines.local import LocalEngine
from rowlock.dispatch.engines.process_line import PREFIX, SOCKET, started
from rowlock.dispatch.task import AttemptEvent, Failed, Heartbeat, Task
from rowlock.errors import ConfigurationError, WorkerGone, describe

PATH_BYTES_MAX = 100
"""Longest path of a socket that all systems take, in bytes."""


class ProcessEngine(LocalEngine):
    """Runs a handler, ``def`` or ``async def``, in a process that has one attempt at a time.

    The handler, the row and the values of `Completed` are pickled: the handler is a function of a
    module. Each process imports the main module, which must start nothing then: ``if __name__ ==
    "__main__"``.

    A process serves many attempts, of whatever engine or `anyio.to_process` call of its event loop.
    After each, the current folder and ``os.environ`` are as before. All else stays until the
    process ends: memory that leaks, variables of modules, signal handlers, threads, the umask.

    Args:
        workers: how many attempts run at once.
        backpressure: how many each of them takes; one by default.

    Raises:
        ConfigurationError: the folder for temporary files has too long a path for a socket.
    """

    kind: ClassVar[str] = "process"
    beats_itself: ClassVar[bool] = True
    needs_something: ClassVar[bool] = True

    def __init__(self, workers: int = 1, *, backpressure: Backpressure | None = None) -> None:
        super().__init__(workers, backpressure=backpressure)
        _check_folder()

    def check_handler(self, handler: Callable[..., Any]) -> None:
        """Refuse a handler that cannot be sent to a process."""
        try:
            pickle.dumps(handler)
        except Exception as error:
            raise ConfigurationError(
                f"ProcessEngine sends its handler to another process, and {handler!r:.100} cannot"
                f" be pickled ({describe(error)}); define it at the top of a module"
            ) from error

    async def run(self, worker: str, task: Task[Any]) -> AsyncGenerator[AttemptEvent, None]:
        """Yield a `Heartbeat` when a process is up, then what the handler in it yields."""
        try:
            pickled = pickle.dumps(task)
        # Whatever the host's objects raise when they are pickled.
        except Exception as error:  # noqa: BLE001
            yield Heartbeat()
            yield Failed("internal", f"the task cannot be sent to a process: {describe(error)}")
            return
        async with started(pickled, beat_s=task.heartbeat_s) as connection:
            yield Heartbeat()
            while (event := await connection.next_event()) is not None:
                yield event
            # Nobody is on the line any more: how the process has ended says why.
            try:
                await connection.ended()
            except BrokenWorkerProcess as broken:
                raise WorkerGone(worker, "its process died") from broken


def _check_folder() -> None:
    example = Path(tempfile.gettempdir(), f"{PREFIX}12345678", SOCKET)
    if len(os.fsencode(example)) > PATH_BYTES_MAX:
        raise ConfigurationError(
            "ProcessEngine makes sockets in the folder for temporary files, and the path of"
            f" {tempfile.gettempdir()!r} is too long for one; set TMPDIR to a shorter one (a"
            f" socket's path has {PATH_BYTES_MAX} bytes at most)"
        )
