"""What a worker process does with a task: runs its handler and sends the events, with a beat from a thread of its own.

If nobody listens any more, the dispatcher is dead, and another one may have the row by now: the process ends at once.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from rowlock.dispatch.engines.frames import frame_of
from rowlock.dispatch.engines.stream import is_last
from rowlock.dispatch.task import Event, Failed, Heartbeat, Task
from rowlock.errors import describe

NOBODY_LISTENS = 70
"""Exit code of a process whose dispatcher is gone."""


class Line:
    """The way back to the dispatcher; handler and beat take turns on it."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._turn = threading.Lock()

    def send(self, event: Event) -> None:
        """Send `event`; does not come back if nobody listens."""
        frame = frame_of(event)
        try:
            with self._turn:
                self._socket.sendall(frame)
        except OSError:
            os._exit(NOBODY_LISTENS)

    def beat(self, every_s: float, ended: threading.Event) -> None:
        """Send a `Heartbeat` again and again."""
        while not ended.wait(every_s):
            self.send(Heartbeat())

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def run_task(path: str, pickled: bytes) -> None:
    """Run a pickled task and send its events to the socket at `path`."""
    # Ctrl-C in a terminal is for the dispatcher, which ends its attempts in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended = threading.Event()
    with closing(Line(path)) as line:
        try:
            task: Task[Any] = pickle.loads(pickled)  # noqa: S301 - from the process that started this one
            threading.Thread(target=line.beat, args=(task.heartbeat_s, ended), daemon=True).start()
            _run(task, line)
        except BaseException as error:  # noqa: BLE001 - the handler is host code and may raise anything
            line.send(Failed("internal", describe(error)))
        finally:
            ended.set()


def _run(task: Task[Any], line: Line) -> None:
    events: Any = task.handler(task)
    if isinstance(events, Iterator):
        for event in events:
            line.send(event)
            if is_last(event):
                return
    else:
        asyncio.run(_run_async(events, line))


async def _run_async(events: Any, line: Line) -> None:  # noqa: ANN401 - an async generator of the host's
    async for event in events:
        line.send(event)
        if is_last(event):
            return
