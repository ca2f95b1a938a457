"""Where leases are renewed: on an event loop of their own, in a thread of its own, over connections
of their own, so that code that blocks the host's event loop costs no leases. From there the host's
loop is watched: `LoopMonitor` puts a question that it must answer itself.

It needs the interpreter: an extension that keeps the global lock stops this thread too, and so does
a process that is frozen. And where the time is not real, in a test that moves it, there is no
thread: leases are renewed on the loop that has the time.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.clock import monotonic, sleep
from rowlock.database.pools import SeparatePool
from rowlock.database.transaction import abort_stalled
from rowlock.logs import get_logger
from rowlock.tasks import log_in_thread

logger = get_logger(__name__)

ASK_EVERY_S = 0.5
"""How often the loop is asked, in seconds."""
LOGGED_AFTER_S = 5.0
"""A loop that has stalled for so long is logged, once for each stall, in seconds."""
FRAMES_MAX = 6
"""Most lines of the stack that are logged: the innermost ones."""


class LoopMonitor:
    """Made on the host's loop, used by both sides. `longest_stall_s` is right to half a second."""

    def __init__(self) -> None:
        self.longest_stall_s = 0.0
        self._loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self._asked_at: float | None = None
        self._is_logged = False

    @property
    def stalled_s(self) -> float:
        """For how long the loop has not turned, in seconds; asked from another thread."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else monotonic() - asked_at

    def do(self, act: Callable[[], None]) -> None:
        """Call `act` on the loop: now if this is the loop, else soon; never if it has ended."""
        if threading.get_ident() == self.thread:
            act()
            return
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act)

    async def ask(self) -> None:
        """Runs on another loop, until that of the host has ended."""
        while not self._loop.is_closed():
            stalled_s = self.stalled_s
            self.longest_stall_s = max(self.longest_stall_s, stalled_s)
            if self._asked_at is None:
                self._asked_at = monotonic()
                self.do(self._answer)
            elif stalled_s >= LOGGED_AFTER_S and not self._is_logged:
                self._is_logged = True
                text = (
                    "The event loop has been stalled for %(stalled_s).0f s, at %(where)s; leases"
                    " are renewed meanwhile"
                )
                extra = {"stalled_s": stalled_s, "where": self.where()}
                log_in_thread(logger.warning, text, extra)
            await sleep(ASK_EVERY_S)

    def where(self) -> str:
        frame = sys._current_frames().get(self.thread)
        if frame is None:
            return "its thread has ended"
        lines = traceback.extract_stack(frame)[-FRAMES_MAX:]
        return " > ".join(f"{Path(line.filename).name}:{line.lineno} {line.name}" for line in lines)

    def _answer(self) -> None:
        self._asked_at, self._is_logged = None, False


CLOSE_S_MAX = 5.0
"""How long tasks there may take to end, and connections to close, in seconds each."""
ENDS_S_MAX = 4 * CLOSE_S_MAX
LOOKS_PER_LIMIT = 5


class HeartbeatThread:
    """One replica's thread, loop and connections; `sessions` is for the thread only.

    Open transactions are aborted once the host's loop has stalled for `renew_timeout`.
    """

    def __init__(
        self, session_factory: async_sessionmaker[AsyncSession], *, renew_timeout: timedelta
    ) -> None:
        self.monitor = LoopMonitor()
        self.sessions = SeparatePool(session_factory, file_wait=renew_timeout / 2)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopped = asyncio.Event()
        self._limit_s = renew_timeout.total_seconds()

    async def run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run `work` in the thread until it ends. Cancelling cancels it without waiting."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._running_loop()))

    async def stop(self) -> None:
        """Wait for what runs in the thread, close its connections, and end it. Idempotent."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(self._is_stopped.set)
            await asyncio.to_thread(thread.join, ENDS_S_MAX)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop, self._is_stopped = asyncio.new_event_loop(), asyncio.Event()
            self._thread = threading.Thread(
                target=_live,
                args=(self._loop, self._serve(self._is_stopped)),
                name="rowlock heartbeats",
                daemon=True,
            )
            self._thread.start()
        return self._loop

    async def _serve(self, is_stopped: asyncio.Event) -> None:
        """Watch the host's loop until it has ended, or this is stopped; then end all else here."""
        ends = [asyncio.create_task(work) for work in (is_stopped.wait(), self.monitor.ask())]
        aborting = asyncio.create_task(self._abort_stalled())
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        # Without a drain nothing else will stop what runs here.
        for task in [*ends, aborting] if is_stopped.is_set() else others:
            task.cancel()
        _, overdue = await asyncio.wait(others, timeout=CLOSE_S_MAX)
        for task in overdue:
            task.cancel()
        if overdue:
            await asyncio.wait(overdue, timeout=CLOSE_S_MAX)
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self.sessions.close()
        except Exception as error:
            logger.warning("The connections for heartbeats could not be closed", exc_info=error)

    async def _abort_stalled(self) -> None:
        while True:
            await sleep(self._limit_s / LOOKS_PER_LIMIT)
            if self.monitor.stalled_s >= self._limit_s:
                thread, limit_s = self.monitor.thread, self._limit_s
                try:
                    await abort_stalled(self.sessions.connect, thread=thread, older_than_s=limit_s)
                except Exception as error:
                    text = "Transactions of the stalled event loop could not be aborted"
                    logger.warning(text, exc_info=error)


def _live(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()
