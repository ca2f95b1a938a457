"""Computations in a thread, so that the event loop is free meanwhile; and calls of handlers that
take long, written into this replica's row, so that status shows their keys.

The one idea: nothing is measured where handlers are called. What each thread calls stands in one
place, and is looked at twice: a call that is there both times has been under way for as long as
that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from datetime import timedelta
from threading import get_ident
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from sqlalchemy import update

from rowlock.clock import is_real
from rowlock.logs import get_logger
from rowlock.spi import PipelineContext, database_time_after
from rowlock.streams.computing.handlers import StageHandler, StepContext, call_under_way
from rowlock.streams.program import FlowProgram
from rowlock.streams.tables import StreamDatabase
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
BUSY: Final = ("busy_lo", "busy_stage", "busy_key", "busy_since")
"""The columns of a replica's row that show its slow call."""


class SlowCall(NamedTuple):
    """A call of a handler for the shard whose first bucket is `lo`; no key in a batch."""

    lo: int
    context: StepContext
    stage: str
    key: str | None


class SlowCalls:
    def __init__(
        self, program: FlowProgram, context: PipelineContext[Any], *, replica: UUID
    ) -> None:
        self._program = program
        self._background = context.background
        self._database = StreamDatabase(context.transact)
        self._replica = replica
        # By thread, the first bucket of its shard, and the context of its last call
        self._called: dict[int, tuple[int, StepContext | None]] = {}
        self._threads = 0
        self._seen: list[SlowCall] = []
        self._shown: SlowCall | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def watched(self, stage: StageHandler) -> StageHandler:
        """Return a handler whose calls are seen here."""
        call = stage.call

        def watched_call(context: StepContext, *rest: Any) -> Any:
            thread = get_ident()
            self._called[thread] = (self._called[thread][0], context)
            return call(context, *rest)

        return replace(stage, call=watched_call)

    def computes(self, lo: int) -> None:
        """Note that this thread computes the shard whose first bucket is `lo`."""
        self._called[get_ident()] = (lo, None)

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
            SlowCall(lo, context, *call_under_way(context))
            for lo, context in list(self._called.values())
            if context is not None
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
        busy: Sequence[Any] = [None] * len(BUSY)
        if call is not None:
            since = database_time_after(timedelta(seconds=-SLOW_S))
            busy = call.lo, call.stage, call.key, since
        table = self._program.tables.replicas
        own = (table.c.flow_id == self._program.id, table.c.id == self._replica)
        shown = update(table).where(*own).values(dict(zip(BUSY, busy, strict=True)))
        try:
            await self._database.write("show a slow call", lambda one: one.execute(shown))
        except Exception as error:
            # It is for people alone.
            extra = {"flow": self._program.name}
            logger.debug("%(flow)s: a slow call is not shown", extra, exc_info=error)
