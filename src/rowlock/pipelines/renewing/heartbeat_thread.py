"""Where leases are renewed: on an event loop of their own, in a thread of its own, over connections
of their own.

The one idea: code of the host that blocks its event loop, for a second or for a minute, must not
cost the leases of everything else that this replica has in hand. So what keeps leases alive needs
neither the host's loop nor its connections.

It needs the interpreter: an extension that keeps the global lock stops this thread too, and so does
a process that is frozen. And where the time is not real, in a test that moves it, there is no
thread: leases are renewed on the loop that has the time.

Not here: when to renew what, and when to stop renewing for a loop that never comes back
(``pipelines/renewing/heartbeater.py``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.clock import sleep
from rowlock.containment import without_exits
from rowlock.database.separate_pool import SeparatePool
from rowlock.database.stalled_transactions import abort_stalled
from rowlock.logs import get_logger
from rowlock.pipelines.renewing.loop_monitor import LoopMonitor

logger = get_logger(__name__)

CLOSE_S_MAX = 5.0
"""How long what runs over there may take to end, and then its connections to close, in seconds
each.
"""


class HeartbeatThread:
    """The thread, the loop and the connections of one replica. Made and stopped on the host's loop.

    Attributes:
        monitor: watches the host's loop, which must not be needed.
        sessions: makes sessions on connections of its own; for use over here only.
    """

    def __init__(
        self, session_factory: async_sessionmaker[AsyncSession], *, renew_timeout: timedelta
    ) -> None:
        self.monitor = LoopMonitor()
        self.sessions = SeparatePool(session_factory, file_wait=renew_timeout / 2)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._asking: Future[None] = Future()
        self._keeping: Future[None] = Future()
        self._limit_s = self._look_every_s = renew_timeout.total_seconds()

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` over there, from the host's loop, until it ends; cancelling this cancels it,
        without waiting for its end.

        Raises:
            HostCodeError: a listener of the host's raised what would have ended its whole event
                loop here.
        """
        await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(without_exits(work), self._running_loop())
        )

    def abort_after(self, limit: timedelta, *, look_every: timedelta) -> None:
        """End what the host's loop keeps locked once it has stood still for `limit`: its leases
        could not be renewed.

        Of several limits the shortest holds for all: whose locks they are cannot be told from here.
        """
        self._limit_s = min(self._limit_s, limit.total_seconds())
        self._look_every_s = min(self._look_every_s, look_every.total_seconds())

    async def stop(self) -> None:
        """Wait for the end of what runs over there, close the connections, and end the thread.
        Twice does no harm.
        """
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        self._asking.cancel()
        self._keeping.cancel()
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close(), loop))
        finally:
            self._stopping = True
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join, CLOSE_S_MAX)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._live, args=(self._loop,), name="rowlock heartbeats", daemon=True
            )
            self._thread.start()
            self._asking = asyncio.run_coroutine_threadsafe(self._end_with_host_loop(), self._loop)
            self._keeping = asyncio.run_coroutine_threadsafe(self._abort_stalled(), self._loop)
        return self._loop

    async def _abort_stalled(self) -> None:
        async def abort() -> None:
            await abort_stalled(
                self.sessions, thread=self.monitor.thread, older_than_s=self._limit_s
            )

        while True:
            await sleep(self._look_every_s)
            if self.monitor.stalled_s >= self._limit_s:
                try:
                    await without_exits(abort)
                except Exception as error:
                    logger.warning(
                        "What the event loop keeps locked could not be ended", exc_info=error
                    )

    async def _end_with_host_loop(self) -> None:
        await self.monitor.ask()
        # It ended without a drain: nobody will ever stop this thread, or what runs in it.
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await self._close()
        self._stopping = True
        asyncio.get_running_loop().stop()

    async def _close(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
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

    def _live(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while not self._stopping:
            try:
                loop.run_forever()
            except BaseException:
                # A SystemExit out of any task ends the turning, but not the loop: it goes on, and
                # the task's caller hears of it.
                logger.exception("The loop for heartbeats was interrupted")
        loop.close()
