"""Attempts in processes of this machine: for work that computes, blocks, or may crash.

Each attempt has a process of its own, the head of a group that is killed with it: whatever its
handler has started ends with the attempt. Events come back over a socket, with beats from a thread
of the child: a process that was killed is noticed at once, one that hangs when its beats stay away.

The one idea: a process is up when it has imported the host's main module. Whatever keeps it from
that is an error of this machine and raised; what comes later is the attempt's.

A handler begins, and goes on from a `StageDone`, when the dispatcher asks for what comes next: what
was before is recorded by then. If the connection is gone, the dispatcher is dead, and another one
may have the row by now: the process ends at once, with its group.

Not on Windows, which has no such groups.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from multiprocessing import spawn
from typing import Any, ClassVar, Final, NoReturn

from rowlock.dispatch.attempt import is_last
from rowlock.dispatch.engine import AttemptEvent, Failed, Heartbeat, StageDone, Task
from rowlock.dispatch.engines.local import LocalEngine
from rowlock.errors import ConfigurationError, WorkerGone, describe
from rowlock.logs import get_logger
from rowlock.tasks import finish

logger = get_logger(__name__)

START_S_MAX = 120.0
"""How long a process may take to start and to import the host's main module, in seconds."""
SLOW_START_S = 10.0
"""When a process is not up after so long, the log says so, in seconds."""
SLOW_START = (
    "A worker process is slow to start. It imports the host's main module, which must start"
    " nothing but under `if __name__ == '__main__'`"
)
PROCESS_END_S_MAX = 3.0
"""How long a process may take to end when it has nothing more to say, in seconds; then it is
killed.
"""

FRAME_BYTES_MAX = 16 * 2**20
"""Largest event, in bytes."""
ACK = b"\x01"
"""What the dispatcher answers when the process is up, and to each `StageDone`, when it asks for
what comes next; to nothing else.
"""
UP = ""
"""What the process sends when it has imported the host's main module; otherwise, why it has not."""
NOBODY_LISTENS = 70
"""Exit code of a process whose dispatcher is gone."""

_LENGTH = struct.Struct(">I")
_PROGRAM: Final = "from rowlock.dispatch.engines.process import main; main()"


def frame_of(message: object) -> bytes:
    body = pickle.dumps(message)
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """Return the next message; None, which is never sent, if the other side is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        # From a child of this very process.
        return pickle.loads(await reader.readexactly(length))  # noqa: S301
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def kill(head: int) -> None:
    """Kill what is left of the group of `head`, which may be dead itself."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(head, signal.SIGKILL)


def end(code: int) -> NoReturn:
    """End this process at once, and the group that it heads."""
    # A fork of the head is not the head: there is no such group, and it ends alone.
    kill(os.getpid())
    os._exit(code)


# In the dispatcher's process ------------------------------------------------------------------


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
        kill(self._process.pid)

    async def open(self, pickled: bytes, beat_s: float) -> None:
        preparation = spawn.get_preparation_data("rowlock worker")
        preparation.pop("authkey", None)
        self._writer.write(frame_of((preparation, pickled, beat_s)))
        waited = {"waited_s": SLOW_START_S}
        slow = asyncio.get_running_loop().call_later(
            SLOW_START_S, logger.warning, SLOW_START, waited
        )
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
        if problem != UP:
            raise ChildProcessError(f"a worker process did not start: {problem}")

    async def next_event(self) -> AttemptEvent | None:
        """Return the next event, or None if the process has hung up or died."""
        # The call implies that the event before is recorded.
        if self._is_waiting:
            self._writer.write(ACK)
        event: AttemptEvent | None = await read_frame(self._reader)
        self._is_waiting = isinstance(event, StageDone)
        self._is_over = self._is_over or (event is not None and is_last(event))
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
                kill(self._process.pid)
            await self._process.wait()


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


# In the worker process ------------------------------------------------------------------------


class DispatcherConnection:
    """The way back to the dispatcher, shared by handler and beat."""

    # Without a dispatcher no method returns: the process ends.

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        # As long as a subprocess had it, the death of this process would go unnoticed.
        self._socket.set_inheritable(False)
        self._send_lock = threading.Lock()
        self._pid = os.getpid()

    def receive(self) -> Any:
        with self._socket.makefile("rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            # From the process that started this one.
            return pickle.loads(file.read(length))  # noqa: S301

    def send(self, message: object) -> None:
        if os.getpid() != self._pid:  # a fork that has left the handler would answer for it
            end(NOBODY_LISTENS)
        frame = frame_of(message)
        if len(frame) > FRAME_BYTES_MAX:
            raise ValueError(
                f"an event of {len(frame):,} bytes is too large to be sent; the limit is"
                f" {FRAME_BYTES_MAX:,}"
            )
        try:
            with self._send_lock:
                self._socket.sendall(frame)
        except OSError:
            end(NOBODY_LISTENS)

    def wait(self) -> None:
        """Wait until the dispatcher asks for what comes next."""
        try:
            answer = self._socket.recv(len(ACK))
        except OSError:
            answer = b""
        if not answer:
            end(NOBODY_LISTENS)

    async def wait_on_loop(self) -> None:
        """The same, while the handler's other tasks go on."""
        loop, answered = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._socket, answered.set)
        try:
            await answered.wait()
        finally:
            loop.remove_reader(self._socket)
        self.wait()

    def beat(self, every_s: float, ended: threading.Event) -> None:
        while not ended.wait(every_s):
            self.send(Heartbeat())


def main() -> None:
    """Run the task that comes by the socket whose number is the program's argument."""
    # Subprocesses would inherit SIG_IGN, and tools that are ended by Ctrl-C not be.
    signal.signal(signal.SIGINT, lambda *_: None)
    dispatcher = DispatcherConnection(int(sys.argv[1]))
    preparation, pickled, beat_s = dispatcher.receive()
    try:
        spawn.prepare(preparation)
    # The host's main module may raise anything.
    except BaseException as error:  # noqa: BLE001
        dispatcher.send(describe(error))
        return
    ended = threading.Event()
    beats = threading.Thread(target=dispatcher.beat, args=(beat_s, ended), daemon=True)
    beats.start()
    try:
        dispatcher.send(UP)
        dispatcher.wait()
        _run(pickle.loads(pickled), dispatcher)  # noqa: S301
    # The handler is host code and may raise anything.
    except BaseException as error:  # noqa: BLE001
        dispatcher.send(Failed.of(error))
    finally:
        ended.set()
        # Cut off in the middle of a beat, it would take the dispatcher for dead.
        beats.join()


def _run(task: Task[Any], dispatcher: DispatcherConnection) -> None:
    events: Any = task.handler(task)
    if isinstance(events, Iterator):
        for event in map(_event_of, events):
            dispatcher.send(event)
            if isinstance(event, StageDone):
                dispatcher.wait()
            if is_last(event):
                return
    else:
        asyncio.run(_run_async(events, dispatcher))


async def _run_async(events: Any, dispatcher: DispatcherConnection) -> None:
    async for message in events:
        dispatcher.send(event := _event_of(message))
        if isinstance(event, StageDone):
            await dispatcher.wait_on_loop()
        if is_last(event):
            return


def _event_of(message: object) -> AttemptEvent:
    # Here, where a None is still the handler's: over the socket it is the end.
    if isinstance(message, AttemptEvent):
        return message
    return Failed("internal", f"the handler gave a {type(message).__name__}, which is no event")
