"""A worker process: what it does with a task, the frames that it sends, and the group that ends
with it.

A handler begins, and goes on from a `StageDone`, when the dispatcher asks for what comes next: what
was before is recorded by then. Beats come from a thread of their own. If the connection is gone,
the dispatcher is dead, and another one may have the row by now: the process ends at once, with all
that its handler has started.

A process that is killed sends no last message, so nothing may depend on one: its subprocesses are
found by their group, and hold none of the pipes and sockets by whose end its death is noticed.

Worker processes import this module. Not here: how a process is started and killed
(``process.py``), and subprocesses that leave the group, which cannot be found.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

from rowlock.dispatch.attempt import is_last
from rowlock.dispatch.engine import AttemptEvent, Failed, Heartbeat, StageDone, Task

# ---------------------------------------------------------------- frames


FRAME_BYTES_MAX = 16 * 2**20
"""Largest event, in bytes."""
ACK = b"\x01"
"""What the dispatcher answers to the process's id and to each `StageDone`, when it asks for what
comes next; to nothing else.
"""

_LENGTH = struct.Struct(">I")


def frame_of(message: object) -> bytes:
    body = pickle.dumps(message)
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(
            f"an event of {len(body):,} bytes is too large to be sent; the limit is"
            f" {FRAME_BYTES_MAX:,}"
        )
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """Return the next message; None, which is never sent, if the other side is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        # From a child of this very process.
        return pickle.loads(await reader.readexactly(length))  # noqa: S301
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


# ---------------------------------------------------------------- its group of processes


STREAMS: Final = (0, 1, 2)
"""Standard input and output, by which anyio gives orders and gets answers, and the output for
errors, which it never reads.
"""
_OWN: list[int] = []


def lead() -> None:
    """Make this process the head of a group, in its own session: no terminal stops or ends it."""
    if os.getpgrp() != os.getpid():
        os.setsid()


def kill(head: int) -> None:
    """Kill what is left of the group of `head`, which may be dead itself."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(head, signal.SIGKILL)


def end(code: int) -> NoReturn:
    """End this process at once, and the group that it heads."""
    # A fork of the head is not the head: there is no such group, and it ends alone.
    kill(os.getpid())
    os._exit(code)


@contextmanager
def redirected_streams() -> Iterator[list[int]]:
    """Give the block an empty input and an output without a reader; gives the real ones.

    What a subprocess prints would be taken for an answer, or fill a pipe until the subprocess
    stands still. And as long as one lives, the death of this process would go unnoticed.
    """
    real = [os.dup(stream) for stream in STREAMS]
    try:
        _to_nowhere(STREAMS, inheritable=True)
        yield real
    finally:
        for stream, kept in zip(STREAMS, real, strict=True):
            os.dup2(kept, stream)
            os.close(kept)


@contextmanager
def kept_from_forks(*files: int) -> Iterator[None]:
    """Let no fork of this process have `files`: as subprocesses, which lose them by themselves."""
    _watch_forks()
    _OWN.extend(files)
    try:
        yield
    finally:
        _OWN.clear()


@cache
def _watch_forks() -> None:
    # There is no way back.
    os.register_at_fork(after_in_child=lambda: _to_nowhere(_OWN, inheritable=False))


def _to_nowhere(files: tuple[int, ...] | list[int], *, inheritable: bool) -> None:
    """Not closed: a number that is free is soon another file's, and would be closed once more."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for file in files:
        os.dup2(nowhere, file, inheritable)
    os.close(nowhere)


# ---------------------------------------------------------------- a task in it


NOBODY_LISTENS = 70
"""Exit code of a process whose dispatcher is gone."""


class DispatcherConnection:
    """The way back to the dispatcher, shared by handler and beat. Without a dispatcher no method
    returns: the process ends.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._send_lock = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: object) -> None:
        frame = frame_of(message)
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

    def close(self) -> None:
        self._socket.close()


def run_task(path: str, pickled: bytes, beat_s: float) -> None:
    """Run a pickled task and send its events to the socket at `path`; before them, the id of this
    process.

    What goes wrong before that is raised: it is a slip of this machine and no failure of the task.
    """
    # Ctrl-C in a terminal is for the dispatcher, which ends its attempts in order. Subprocesses
    # would inherit SIG_IGN.
    signal.signal(signal.SIGINT, lambda *_: None)
    lead()
    ended = threading.Event()
    with (
        as_before(),
        redirected_streams() as streams,
        closing(DispatcherConnection(path)) as dispatcher,
        kept_from_forks(*streams, dispatcher.fileno()),
    ):
        beats = threading.Thread(target=dispatcher.beat, args=(beat_s, ended), daemon=True)
        beats.start()
        try:
            dispatcher.send(os.getpid())
            dispatcher.wait()
            # From the process that started this one.
            _run(pickle.loads(pickled), dispatcher)  # noqa: S301
        # The handler is host code and may raise anything.
        except BaseException as error:  # noqa: BLE001
            dispatcher.send(Failed.of(error))
        finally:
            ended.set()
            # Cut off in the middle of a beat, it would take the dispatcher for dead.
            beats.join()


@contextmanager
def as_before() -> Iterator[None]:
    """Leave the current folder and the environment's variables to the next attempt as they were."""
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        folder = Path("/")
    variables = dict(os.environ)
    try:
        yield
    finally:
        try:
            os.chdir(folder)
        except OSError:
            os.chdir("/")
        if os.environ != variables:
            os.environ.clear()
            os.environ.update(variables)


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
