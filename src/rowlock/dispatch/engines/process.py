"""Attempts in processes of this machine: for work that computes, blocks, or may crash.

The pool is anyio's: a process is started when one is needed, kept for the next attempt, and killed if its attempt is cancelled.
Events come back over a socket, with beats from a thread of the child: a process that was killed is noticed at once, one that
hangs when its beats stay away.

Not on Windows, which has no such sockets in asyncio.

Source: anyio, "Running code in worker processes".
"""

from __future__ import annotations

import asyncio
import pickle
import tempfile
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from anyio import BrokenWorkerProcess, CapacityLimiter, to_process

from rowlock.dispatch.engines.child import run_task
from rowlock.dispatch.engines.frames import read_event
from rowlock.dispatch.engines.local import LocalEngine
from rowlock.dispatch.task import Event, Failed, Task
from rowlock.errors import WorkerGone, describe

SOCKET = "events"


class ProcessEngine(LocalEngine):
    """Runs a handler, ``def`` or ``async def``, in a process of its own.

    The handler, the row and the values of `Completed` are pickled: the handler is a function of a module.

    Args:
        workers: how many attempts run at once.
        backpressure: how many each of them takes; one by default.
    """

    kind: ClassVar[str] = "process"
    beats_itself: ClassVar[bool] = True

    async def run(self, worker: str, task: Task[Any]) -> AsyncGenerator[Event, None]:
        """Run the task's handler and yield its events."""
        try:
            pickled = pickle.dumps(task)
        except Exception as error:  # noqa: BLE001 - whatever the host's objects raise when they are pickled
            yield Failed("internal", f"the task cannot be sent to a process: {describe(error)}")
            return
        # Not in the attempt's own folder: the path of a socket must be short.
        with tempfile.TemporaryDirectory(prefix="rowlock-") as folder:
            path = str(Path(folder, SOCKET))
            connected: asyncio.Future[asyncio.StreamReader] = asyncio.get_running_loop().create_future()
            server = await asyncio.start_unix_server(lambda reader, _: _connect(connected, reader), path)
            call = asyncio.create_task(_call(path, pickled), name="rowlock: a worker process")
            first: set[asyncio.Future[Any]] = {connected, call}
            try:
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                if connected.done():
                    while (event := await read_event(connected.result())) is not None:
                        yield event
                # Nobody is on the line any more: the call says why.
                await call
            except BrokenWorkerProcess as broken:
                raise WorkerGone(worker, "its process died") from broken
            finally:
                call.cancel()
                server.close()
                with suppress(BaseException):
                    await call


def _connect(connected: asyncio.Future[asyncio.StreamReader], reader: asyncio.StreamReader) -> None:
    if not connected.done():
        connected.set_result(reader)


async def _call(path: str, pickled: bytes) -> None:
    # The engine has counted already.
    await to_process.run_sync(run_task, path, pickled, cancellable=True, limiter=CapacityLimiter(1))
