"""A worker process: what it does with its task, the frames that it sends, and the group that ends
with it.

A handler begins, and goes on from a `StageDone`, when the dispatcher asks for what comes next: what
was before is recorded by then. Beats come from a thread of their own. If the connection is gone,
the dispatcher is dead, and another one may have the row by now: the process ends at once, with all
that its handler has started, which is found by its group.
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
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import spawn
from typing import Any, NoReturn

from rowlock.dispatch.attempt import is_last
from rowlock.dispatch.engine import AttemptEvent, Failed, Heartbeat, StageDone, Task
from rowlock.errors import describe

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
