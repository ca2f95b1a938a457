"""What a worker of wool does with a task: runs its handler in a thread of its own, in a folder of
its own.

The one idea: the worker's event loop belongs to all attempts there and to wool itself, so no
handler runs on it. The loop hands events on, one at a time, and beats while the handler is silent,
also while it blocks; a handler goes on from a ``yield`` when the dispatcher asks for the next
event, so that its event is recorded by then (wool fetches: a worker's generator takes no step
unasked). Events and tasks travel pickled, so that what cannot be pickled is the
attempt's failure, not the worker's.

A thread cannot be killed: a handler that is cancelled ends at its next ``await`` or ``yield``, and
its worker has no room until then.

Not here: anything of wool. This is a plain async generator, which wool runs over there.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cloudpickle

from rowlock.dispatch.attempt import PREFIX, is_last
from rowlock.dispatch.engine import AttemptEvent, Failed, Heartbeat, Task
from rowlock.logs import get_logger

logger = get_logger(__name__)

PICKLE_BYTES_MAX = 16 * 2**20
"""Largest task and largest event, in bytes."""


def pickled(thing: object) -> bytes:
    body: bytes = cloudpickle.dumps(thing)
    if len(body) > PICKLE_BYTES_MAX:
        raise ValueError(
            f"a {type(thing).__name__} of {len(body):,} bytes is too large to be sent; the limit is"
            f" {PICKLE_BYTES_MAX:,}"
        )
    return body


async def run_task(task: bytes, beat_s: float) -> AsyncGenerator[bytes, None]:
    """Run a pickled task and yield pickled events: a `Heartbeat` first, and every `beat_s`."""
    attempt = HandlerThread(task)
    try:
        if (begun := await attempt.next_event(None)) is not None:
            yield begun
        while (event := await attempt.next_event(beat_s)) is not None:
            yield event
    finally:
        await attempt.close()


class HandlerThread:
    """A handler in a thread, and its events, handed to the loop on which this was made."""

    def __init__(self, task: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._event: bytes | None = None
        self._acknowledged: concurrent.futures.Future[None] | None = None
        self._is_closed = False
        self._error: Exception | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._handler: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        threading.Thread(
            target=self._run, args=(task,), name="rowlock handler", daemon=True
        ).start()

    # On the loop ----------------------------------------------------------------------------------

    async def next_event(self, within_s: float | None) -> bytes | None:
        """The next event, a `Heartbeat` if none comes `within_s`, or None after the last one."""
        self._acknowledge()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._wake.wait()
        if self._event is not None:
            self._wake.clear()
            event, self._event = self._event, None
            return event
        if self._error is not None:
            raise self._error
        return None if self._ended.done() else pickle.dumps(Heartbeat())

    def _acknowledge(self) -> None:
        """Let the handler go on: asking for another event says that the last is recorded."""
        if self._acknowledged is None or self._event is not None:
            return
        acknowledged, self._acknowledged = self._acknowledged, None
        if acknowledged.set_running_or_notify_cancel():
            acknowledged.set_result(None)

    async def close(self) -> None:
        self._is_closed = True
        if self._acknowledged is not None:
            self._acknowledged.cancel()
        if self._handler is not None:
            loop, handler = self._handler
            with suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(handler.cancel)
        await asyncio.shield(self._ended)

    def _arrived(self, event: bytes, acknowledged: concurrent.futures.Future[None]) -> None:
        if self._is_closed:
            acknowledged.cancel()
            return
        self._event, self._acknowledged = event, acknowledged
        self._wake.set()

    def _end(self) -> None:
        self._ended.set_result(None)
        self._wake.set()

    # In the thread --------------------------------------------------------------------------------

    def _run(self, body: bytes) -> None:
        # After a cancellation events are refused, which is right, and when the worker ends there
        # is no loop to take them.
        with suppress(concurrent.futures.CancelledError, RuntimeError):
            try:
                with TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
                    # What goes wrong from here on is the attempt's failure, and not this machine's.
                    self._emit(Heartbeat()).result()
                    self._work(body, Path(folder))
            except OSError as error:
                self._error = error
            finally:
                self._loop.call_soon_threadsafe(self._end)

    def _work(self, body: bytes, folder: Path) -> None:
        try:
            # A client that wool lets in may run code here anyway.
            task: Task[Any] = pickle.loads(body)  # noqa: S301
            self._handle(replace(task, workdir=folder))
        # The handler is host code and may raise anything.
        except BaseException as error:  # noqa: BLE001
            self._emit(Failed.of(error)).result()

    def _handle(self, task: Task[Any]) -> None:
        events: Any = task.handler(task)
        if not isinstance(events, Iterator):
            asyncio.run(self._follow(events))
            return
        try:
            for event in events:
                self._emit(event).result()
                if is_last(event):
                    return
        finally:
            getattr(events, "close", lambda: None)()

    async def _follow(self, events: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handler = (asyncio.get_running_loop(), task)
        # Closed before there was anything to cancel.
        if self._is_closed:
            raise asyncio.CancelledError
        try:
            async for event in events:
                await asyncio.wrap_future(self._emit(event))
                if is_last(event):
                    return
        finally:
            if hasattr(events, "aclose"):
                await events.aclose()

    def _emit(self, event: AttemptEvent) -> concurrent.futures.Future[None]:
        """Hand `event` over; the future is done when it was taken, cancelled when it is not."""
        acknowledged: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self._arrived, pickled(event), acknowledged)
        return acknowledged
