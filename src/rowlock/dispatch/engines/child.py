"""What a worker process does with a task: runs its handler and sends the events, with a beat from a
thread of its own.

It begins, and goes on from a `StageDone`, when the dispatcher asks for what comes next: what was
before is recorded by then. If nobody listens any more, the dispatcher is dead, and another one may
have the row by now: the process ends at once, and takes along what its handler has started.

Not here: how a process is started and killed (``process_line.py``).
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from rowlock.dispatch.engines.framing import ACK, frame_of
from rowlock.dispatch.engines.group import end, kept_from_forks, lead, redirected_streams
from rowlock.dispatch.engines.stream import is_last
from rowlock.dispatch.task import AttemptEvent, Failed, Heartbeat, StageDone, Task

NOBODY_LISTENS = 70
"""Exit code of a process whose dispatcher is gone."""


class DispatcherConnection:
    """The way back to the dispatcher; handler and beat take turns on it."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._send_lock = threading.Lock()

    def fileno(self) -> int:
        """Return the socket's number."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Send an event, or what else is said; does not come back if nobody listens."""
        frame = frame_of(message)
        try:
            with self._send_lock:
                self._socket.sendall(frame)
        except OSError:
            end(NOBODY_LISTENS)

    def wait(self) -> None:
        """Wait until the dispatcher asks for what comes next; does not come back if nobody
        listens.
        """
        try:
            answer = self._socket.recv(len(ACK))
        except OSError:
            answer = b""
        if not answer:
            end(NOBODY_LISTENS)

    async def wait_on_loop(self) -> None:
        """Do the same, while the handler's other tasks go on."""
        loop, answered = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._socket, answered.set)
        try:
            await answered.wait()
        finally:
            loop.remove_reader(self._socket)
        self.wait()

    def beat(self, every_s: float, ended: threading.Event) -> None:
        """Send a `Heartbeat` again and again."""
        while not ended.wait(every_s):
            self.send(Heartbeat())

    def close(self) -> None:
        """Hang up."""
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
    # Here, where a None is still what the handler has said: on the line it is the end.
    if isinstance(message, AttemptEvent):
        return message
    return Failed("internal", f"the handler gave a {type(message).__name__}, which is no event")
