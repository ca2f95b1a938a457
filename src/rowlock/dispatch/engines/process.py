"""Attempts in processes of this machine: for work that computes, blocks, or may crash.

Each attempt has a process of its own, the head of a group that is killed with it: whatever its
handler has started ends with the attempt. Events come back over a socket, with beats from a thread
of the child: a process that was killed is noticed at once, one that hangs when its beats stay away.

The one idea: a process is up when it has imported the host's main module. Whatever keeps it from
that is an error of this machine and raised; what comes later is the attempt's.

Not on Windows, which has no such groups. Not here: what the process does (``child.py``).
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from multiprocessing.spawn import get_preparation_data
from typing import Any, ClassVar, Final

from rowlock.dispatch.engine import (
    AttemptEvent,
    Completed,
    Failed,
    Heartbeat,
    StageDone,
    Task,
)
from rowlock.dispatch.engines import child
from rowlock.dispatch.engines.child import ACK, frame_of, read_frame
from rowlock.dispatch.engines.local import LocalEngine
from rowlock.errors import ConfigurationError, WorkerGone, describe
from rowlock.logs import get_logger
from rowlock.tasks import finish

logger = get_logger(__name__)

START_S_MAX = 120.0
"""How long a process may take to start and to import the host's main module, in seconds."""
SLOW_START_S = 10.0
"""When a process is not up after so long, the log says so, in seconds."""
PROCESS_END_S_MAX = 3.0
"""How long a process may take to end when it has nothing more to say, in seconds; then it is
killed.
"""

_PROGRAM: Final = "from rowlock.dispatch.engines.child import main; main()"


@asynccontextmanager
async def started(pickled: bytes, *, beat_s: float) -> AsyncIterator[WorkerConnection]:
    """Give the connection with a process that runs a pickled task; it ends with the block."""
    ours, theirs = socket.socketpair()
    async with AsyncExitStack() as stack:
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            stack.callback(writer.close)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", _PROGRAM, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
            )
        connection = WorkerConnection(reader, writer, process)
        stack.push_async_callback(lambda: finish(connection.end(), purpose="end a worker process"))
        await connection.open(pickled, beat_s)
        yield connection


class WorkerConnection:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, process: Process
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._process = process
        self._is_waiting = True
        self._is_over = False
        self._watch = asyncio.create_task(self._kill_group(), name="rowlock: a worker process")

    async def _kill_group(self) -> None:
        """Kill what a process that has ended has started: a fork of it would keep its socket."""
        await self._process.wait()
        # Processes of its group keep its id from being another's.
        child.kill(self._process.pid)

    async def open(self, pickled: bytes, beat_s: float) -> None:
        preparation = get_preparation_data("rowlock worker")
        preparation.pop("authkey", None)
        self._writer.write(frame_of((preparation, pickled, beat_s)))
        slow = asyncio.get_running_loop().call_later(SLOW_START_S, _tell_of_slow_start)
        try:
            async with asyncio.timeout(START_S_MAX):
                while isinstance(problem := await read_frame(self._reader), Heartbeat):
                    pass
        except TimeoutError:
            raise ChildProcessError(
                f"a worker process was not up within {START_S_MAX:g} s"
            ) from None
        finally:
            slow.cancel()
        if problem is None:
            raise ChildProcessError("a worker process has ended before it began")
        if problem != child.UP:
            raise ChildProcessError(f"a worker process did not start: {problem}")

    async def next_event(self) -> AttemptEvent | None:
        """Return the next event, or None if the process has hung up or died."""
        # The call implies that the event before is recorded.
        if self._is_waiting:
            self._writer.write(ACK)
        event: AttemptEvent | None = await read_frame(self._reader)
        self._is_waiting = isinstance(event, StageDone)
        self._is_over = self._is_over or isinstance(event, Completed | Failed)
        return event

    async def has_ended_well(self) -> bool:
        """Wait for the end of a process that has hung up."""
        await asyncio.wait({self._watch}, timeout=PROCESS_END_S_MAX)
        return self._process.returncode == 0

    async def end(self) -> None:
        """Kill the process group, unless its attempt is over and it ends by itself."""
        try:
            if self._is_over:
                await asyncio.wait({self._watch}, timeout=PROCESS_END_S_MAX)
        finally:
            if self._process.returncode is None:
                child.kill(self._process.pid)
            await self._process.wait()


def _tell_of_slow_start() -> None:
    logger.warning(
        "A worker process is slow to start. It imports the host's main module, which must start"
        " nothing but under `if __name__ == '__main__'`",
        {"waited_s": SLOW_START_S},
    )


class ProcessEngine(LocalEngine):
    """Runs a handler, ``def`` or ``async def``, in a process of its own for each attempt.

    The handler, the row and the values of `Completed` are pickled: the handler is a function of a
    module. Each process imports the main module, which must start nothing then: ``if __name__ ==
    "__main__"``. That is the price of an attempt, so it is for work of seconds, not of
    milliseconds. What the process prints goes nowhere.

    Args:
        workers: how many attempts run at once.
        backpressure: how many each of them takes; one by default.
    """

    kind: ClassVar[str] = "process"
    beats_itself: ClassVar[bool] = True
    needs_something: ClassVar[bool] = True

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
            if not await connection.has_ended_well():
                raise WorkerGone(worker, "its process died")
