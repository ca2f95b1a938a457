"""Computations in a thread, so that the event loop is free meanwhile; and calls of handlers that
take long, written into this replica's row, so that status shows their keys.

The one idea: nothing is measured where handlers are called. What each thread calls stands in one
place, and is looked at twice: a call that is there both times has been under way for as long as
that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import get_ident
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.clock import is_real
from rowlock.logs import get_logger
from rowlock.pipelines.context import BackgroundTasks
from rowlock.spi import database_time_after
from rowlock.streams.computing.handlers import StageHandler, StepContext, key_under_way
from rowlock.streams.flow_view import Transact
from rowlock.streams.program import FlowProgram
from rowlock.tasks import DaemonThreads

T = TypeVar("T")


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run `work`, which may hang, in a thread that no exit waits for; on virtual time, here."""
    loop = asyncio.get_running_loop()
    if is_real():
        thread = DaemonThreads(1, name="rowlock flow")
        return loop.run_in_executor(thread, copy_context().run, work)
    done: asyncio.Future[T] = loop.create_future()
    done.set_result(work())
    return done


logger = get_logger(__name__)

SLOW_S: Final = 1.0
"""A call that takes longer is shown, in seconds."""
NOT_BUSY: Final = {"busy_lo": None, "busy_stage": None, "busy_key": None, "busy_since": None}


class SlowCall(NamedTuple):
    """A call of a handler for the shard whose first bucket is `lo`; no key in a batch."""

    lo: int
    context: StepContext
    stage: str
    key: str | None


@dataclass(slots=True)
class _Called:
    lo: int
    context: StepContext | None = None
    stage: str = ""


class SlowCalls:
    def __init__(
        self,
        program: FlowProgram,
        transact: Transact,
        *,
        replica: UUID,
        background: BackgroundTasks,
    ) -> None:
        self._program = program
        self._transact = transact
        self._replica = replica
        self._background = background
        self._called: dict[int, _Called] = {}
        self._threads = 0
        self._seen: list[SlowCall] = []
        self._shown: SlowCall | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def watched(self, stage: StageHandler) -> StageHandler:
        """Return a handler whose calls are seen here."""
        call, name = stage.call, stage.name

        def watched_call(context: StepContext, *rest: Any) -> Any:
            called = self._called[get_ident()]
            called.context, called.stage = context, name
            return call(context, *rest)

        return replace(stage, call=watched_call)

    def computes(self, lo: int) -> None:
        """Note that this thread computes the shard whose first bucket is `lo`."""
        self._called[get_ident()] = _Called(lo)

    def begin(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Run `work`, which calls handlers, in a thread; on virtual time, here."""

        def watched() -> None:
            try:
                work()
            finally:
                self._called.pop(get_ident(), None)

        if not self._threads:
            self._look_later()
        self._threads += 1
        thread = in_thread(watched)
        thread.add_done_callback(self._has_ended)
        return thread

    def _has_ended(self, thread: asyncio.Future[None]) -> None:
        if not thread.cancelled():
            thread.exception()  # of a shard that is not held any more: nothing asks for it
        self._threads -= 1
        if not self._threads:
            assert self._timer is not None
            self._timer.cancel()
            self._seen = []
            if self._shown is not None:
                self._show(None)

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SLOW_S, self._look)

    def _look(self) -> None:
        calls = [
            SlowCall(one.lo, context, one.stage, key_under_way(context))
            for one in list(self._called.values())
            if (context := one.context) is not None
        ]
        slow = [one for one in calls if one in self._seen]
        if self._shown not in slow and (slow or self._shown is not None):
            self._show(slow[0] if slow else None)
        self._seen = calls
        self._look_later()

    def _show(self, call: SlowCall | None) -> None:
        self._shown = call
        work = self._write(call, behind=self._writing)
        self._writing = self._background.begin(work, purpose="show a slow call")

    async def _write(self, call: SlowCall | None, *, behind: asyncio.Task[None] | None) -> None:
        if behind is not None:
            await asyncio.wait([behind])
        values: dict[str, Any] = dict(NOT_BUSY)
        if call is not None:
            since = database_time_after(timedelta(seconds=-SLOW_S))
            values = {"busy_lo": call.lo, "busy_stage": call.stage, "busy_key": call.key}
            values["busy_since"] = since
        table = self._program.tables.replicas
        own = (table.c.flow_id == self._program.id, table.c.id == self._replica)

        async def write(session: AsyncSession, connection: AsyncConnection) -> None:
            await connection.execute(update(table).where(*own).values(values))

        try:
            await self._transact(write, purpose="show a slow call")
        except Exception as error:
            # It is for people alone.
            extra = {"flow": self._program.name}
            logger.debug("%(flow)s: a slow call is not shown", extra, exc_info=error)
