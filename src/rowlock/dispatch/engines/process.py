"""Attempts in processes of this machine: for work that computes, blocks, or may crash.

The pool is anyio's: a process is started when one is needed, kept for the next attempt, and killed if its attempt is cancelled.
Events come back over a socket, with beats from a thread of the child: a process that was killed is noticed at once, one that
hangs when its beats stay away.

Not on Windows, which has no such sockets in asyncio.

Source: anyio, "Running code in worker processes".
"""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, ClassVar

from anyio import BrokenWorkerProcess, CapacityLimiter, to_process

from rowlock.dispatch.backpressure import Backpressure
from rowlock.dispatch.engines.child import run_task
from rowlock.dispatch.engines.frames import read_event
from rowlock.dispatch.engines.local import LocalEngine
from rowlock.dispatch.task import Event, Failed, Heartbeat, Task
from rowlock.errors import ConfigurationError, WorkerGone, describe

SOCKET = "events"
PATH_BYTES_MAX = 100
"""Longest path of a socket that all systems take, in bytes."""
START_S_MAX = 120.0
"""How long a process may take to start and to import what it needs, in seconds; then its silence counts."""


class ProcessEngine(LocalEngine):
    """Runs a handler, ``def`` or ``async def``, in a process of its own.

    The handler, the row and the values of `Completed` are pickled: the handler is a function of a module.

    Args:
        workers: how many attempts run at once.
        backpressure: how many each of them takes; one by default.

    Raises:
        ConfigurationError: the folder for temporary files has too long a path for a socket.
    """

    kind: ClassVar[str] = "process"
    beats_itself: ClassVar[bool] = True

    def __init__(self, workers: int = 1, *, backpressure: Backpressure | None = None) -> None:
        super().__init__(workers, backpressure=backpressure)
        _check_folder()

    async def run(self, worker: str, task: Task[Any]) -> AsyncGenerator[Event, None]:
        """Run the task's handler and yield its events."""
        try:
            pickled = pickle.dumps(task)
        except Exception as error:  # noqa: BLE001 - whatever the host's objects raise when they are pickled
            yield Failed("internal", f"the task cannot be sent to a process: {describe(error)}")
            return
        # Not in the attempt's own folder: the path of a socket must be short (`_check_folder`).
        with tempfile.TemporaryDirectory(prefix="rowlock-") as folder:
            path = str(Path(folder, SOCKET))
            line = _Line()
            server = await asyncio.start_unix_server(line.answer, path)
            call = asyncio.create_task(_call(path, pickled), name="rowlock: a worker process")
            try:
                async for event in line.events(call, beat_s=task.heartbeat_s):
                    yield event
                # Nobody is on the line any more: the call says why.
                await asyncio.shield(call)
            except BrokenWorkerProcess as broken:
                raise WorkerGone(worker, "its process died") from broken
            finally:
                await line.hang_up(call)
                server.close()


def _check_folder() -> None:
    example = Path(tempfile.gettempdir(), "rowlock-12345678", SOCKET)
    if len(os.fsencode(example)) > PATH_BYTES_MAX:
        raise ConfigurationError(
            f"ProcessEngine makes sockets in the folder for temporary files, and the path of {tempfile.gettempdir()!r} is too long "
            f"for one; set TMPDIR to a shorter one (a socket's path has {PATH_BYTES_MAX} bytes at most)"
        )


class _Line:
    """The dispatcher's end of the socket."""

    def __init__(self) -> None:
        self._connected: asyncio.Future[asyncio.StreamReader] = asyncio.get_running_loop().create_future()
        self._writer: asyncio.StreamWriter | None = None

    def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take the child's call; there is one."""
        self._writer = writer
        self._connected.set_result(reader)

    async def events(self, call: asyncio.Task[None], *, beat_s: float) -> AsyncGenerator[Event, None]:
        """Yield what the child says, until it hangs up or dies; and beats while it starts, which may take long."""
        for _ in range(math.ceil(START_S_MAX / beat_s)):
            if await self._wait_for(call, timeout_s=beat_s):
                break
            yield Heartbeat()
        if self._connected.done():
            while (event := await read_event(self._connected.result())) is not None:
                yield event

    async def hang_up(self, call: asyncio.Task[None]) -> None:
        """Kill the child if it still works, and wait for its end."""
        # anyio forgets a process that it is cancelled over while that starts.
        await self._wait_for(call)
        call.cancel()
        await asyncio.wait({call})
        if not call.cancelled():
            call.exception()  # told already, or nobody wants to know
        if self._writer is not None:
            self._writer.close()

    async def _wait_for(self, call: asyncio.Task[None], *, timeout_s: float | None = None) -> bool:
        first: set[asyncio.Future[Any]] = {self._connected, call}
        done, _ = await asyncio.wait(first, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)


async def _call(path: str, pickled: bytes) -> None:
    # The engine has counted already.
    await to_process.run_sync(run_task, path, pickled, cancellable=True, limiter=CapacityLimiter(1))
