"""Attempts in processes of this machine: for work that computes, blocks, or may crash.

The pool is anyio's: a process is started when one is needed, kept for the next attempt, and killed
if its attempt is cancelled, with all that its handler has started. Events come back over a socket,
with beats from a thread of the child: a process that was killed is noticed at once, one that hangs
when its beats stay away.

The one idea: a process is up when it has called back with its id. Whatever keeps it from that is an
error of this machine and raised; what comes later is the attempt's.

Not on Windows, which has no such sockets in asyncio. Not here: what the process does
(``child.py``).

Source: anyio, "Running code in worker processes"; its ``to_process`` for what a cancellation does
in each phase.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from anyio import BrokenWorkerProcess, CapacityLimiter, to_process

from rowlock.clock import monotonic
from rowlock.dispatch.engine import (
    AttemptEvent,
    Backpressure,
    Completed,
    Failed,
    Heartbeat,
    StageDone,
    Task,
)
from rowlock.dispatch.engines import child
from rowlock.dispatch.engines.child import ACK, read_frame, run_task
from rowlock.dispatch.engines.local import LocalEngine
from rowlock.errors import ConfigurationError, WorkerGone, describe
from rowlock.logs import get_logger
from rowlock.tasks import finish

logger = get_logger(__name__)

PREFIX = "rowlock-"
SOCKET = "events"
START_S_MAX = 120.0
"""How long a process may take to start and to import the host's main module, in seconds."""
SLOW_START_S = 10.0
"""When a process is not up after so long, the log says so, in seconds."""
INTERPRETER_S_MAX = 21.0
"""For how long a process that has not called yet is not killed, in seconds: anyio forgets one
over whose start it is cancelled, and allows 20 s for that.
"""
PROCESS_END_S_MAX = 3.0
"""How long a process may take to be ready for the next attempt when it has nothing more to say,
in seconds; then it is killed.
"""

_Ends: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def started(pickled: bytes, *, beat_s: float) -> AsyncIterator[WorkerConnection]:
    """Give the connection with a process that is up and runs a pickled task; it ends with the
    block.
    """
    connected: asyncio.Future[_Ends] = asyncio.get_running_loop().create_future()
    async with AsyncExitStack() as stack:
        # Not in the attempt's own folder: the path of a socket must be short (`process.py`).
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
        )
        path = str(Path(folder, SOCKET))
        # As long as it does not serve it comes without a suspension: no cancellation can lose it.
        server = await asyncio.start_unix_server(
            lambda *ends: connected.set_result(ends), path, start_serving=False
        )
        stack.callback(server.close)
        await server.start_serving()
        connection = WorkerConnection(
            connected,
            asyncio.create_task(_call(path, pickled, beat_s), name="rowlock: a worker process"),
        )
        stack.push_async_callback(
            lambda: finish(connection.hang_up(), purpose="end a worker process")
        )
        await connection.open()
        yield connection


class WorkerConnection:
    def __init__(self, connected: asyncio.Future[_Ends], call: asyncio.Task[None]) -> None:
        self._connected = connected
        self._call = call
        self._kept_until = monotonic() + INTERPRETER_S_MAX
        self._pid: int | None = None
        self._is_waiting = True
        self._is_over = False

    async def open(self) -> None:
        try:
            async with asyncio.timeout(START_S_MAX):
                if not await self._wait_for_either(SLOW_START_S):
                    logger.warning(
                        "A worker process is slow to start. It imports the host's main module,"
                        " which must start nothing but under `if __name__ == '__main__'`",
                        extra={"waited_s": SLOW_START_S},
                    )
                    await self._wait_for_either()
                if self._connected.done():
                    reader, _ = self._connected.result()
                    while isinstance(message := await read_frame(reader), Heartbeat):
                        pass
                    self._pid = message
                if self._pid is None:
                    await self.ended()
                    raise ChildProcessError("a worker process has ended before it began")
        except TimeoutError:
            raise ChildProcessError(
                f"a worker process was not up within {START_S_MAX:g} s"
            ) from None
        except BrokenWorkerProcess as broken:
            why = describe(broken.__cause__ or broken)
            raise ChildProcessError(f"a worker process did not start: {why}") from broken

    async def next_event(self) -> AttemptEvent | None:
        """Return the next event, or None if the process has hung up or died. The call implies that
        the event before is recorded.
        """
        reader, writer = self._connected.result()
        if self._is_waiting:
            writer.write(ACK)
        event: AttemptEvent | None = await read_frame(reader)
        self._is_waiting = isinstance(event, StageDone)
        self._is_over = self._is_over or isinstance(event, Completed | Failed)
        return event

    async def ended(self) -> None:
        """Wait until the process is ready for its next attempt."""
        await asyncio.wait({self._call}, timeout=PROCESS_END_S_MAX)
        if not self._call.done():
            raise BrokenWorkerProcess("it has hung up, and somebody holds its streams")
        self._call.result()

    async def hang_up(self) -> None:
        """Kill the process group unless it is ready for its next attempt, and wait for its end."""
        is_ready = False
        try:
            await self._wait_for_either(max(0.0, self._kept_until - monotonic()))
            if self._is_over:
                await asyncio.wait({self._call}, timeout=PROCESS_END_S_MAX)
            is_ready = self._is_ready()
            self._call.cancel()
            await asyncio.wait({self._call})
        finally:
            # Processes of its group keep its id from being another's. Not before: it would be
            # reaped twice.
            if self._pid is not None and not is_ready:
                child.kill(self._pid)
            if self._call.done() and not self._call.cancelled():
                self._call.exception()  # raised already, or not wanted
            if self._connected.done():
                _, writer = self._connected.result()
                writer.close()

    def _is_ready(self) -> bool:
        if not self._call.done() or self._call.cancelled():
            return False
        return not isinstance(self._call.exception(), BrokenWorkerProcess)

    async def _wait_for_either(self, timeout_s: float | None = None) -> bool:
        first: set[asyncio.Future[_Ends] | asyncio.Task[None]] = {self._connected, self._call}
        done, _ = await asyncio.wait(first, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)


async def _call(path: str, pickled: bytes, beat_s: float) -> None:
    # The engine has counted already.
    await to_process.run_sync(
        run_task, path, pickled, beat_s, cancellable=True, limiter=CapacityLimiter(1)
    )


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
            # The process has hung up; how it has ended is the reason.
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
