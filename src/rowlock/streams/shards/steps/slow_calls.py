"""Calls of handlers that take long: written into this replica's row, so that anybody sees which key
it is.

The one idea: nothing is measured where handlers are called. What is called stands in one place, and
is looked at twice: a call that is there both times has been under way for as long as that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.clock import is_real
from rowlock.logs import get_logger
from rowlock.pipelines.background import BackgroundTasks
from rowlock.rows.database_time import database_time_after
from rowlock.streams.computing.context import StepContext, key_under_way
from rowlock.streams.computing.handlers import StageHandler
from rowlock.streams.cutting.flow_view import Transact
from rowlock.streams.exchanging.in_thread import in_thread
from rowlock.streams.program import FlowProgram

logger = get_logger(__name__)

SLOW_S: Final = 1.0
"""A call that takes longer is shown, in seconds."""
NOT_BUSY: Final = {"busy_lo": None, "busy_stage": None, "busy_key": None, "busy_since": None}


class SlowCall(NamedTuple):
    """A call of a handler.

    Attributes:
        context: of the step.
        stage: the name of the handler.
        key: of the call; None in a batch.
    """

    context: StepContext
    stage: str
    key: str | None


class SlowCalls:
    """Sees which call is under way in the thread of one replica.

    Args:
        program: the flow.
        transact: runs a transaction.
        replica: the id in this replica's row.
        background: what is not waited for.

    Attributes:
        lo: the first bucket of the shard that is computed.
    """

    def __init__(
        self,
        program: FlowProgram,
        transact: Transact,
        *,
        replica: UUID,
        background: BackgroundTasks,
    ) -> None:
        self.lo = 0
        self._program = program
        self._transact = transact
        self._replica = replica
        self._background = background
        self._context: StepContext | None = None
        self._stage = ""
        self._seen: SlowCall | None = None
        self._shown: SlowCall | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<SlowCalls of {self._program.name}>"

    def watched(self, stage: StageHandler) -> StageHandler:
        """Return a handler whose calls are seen here."""
        call, name = stage.call, stage.name

        def watched_call(context: StepContext, *rest: Any) -> Any:
            self._context, self._stage = context, name
            return call(context, *rest)

        return replace(stage, call=watched_call)

    async def in_thread(self, work: Callable[[], None]) -> None:
        """Run `work`, which calls handlers, in a thread; on virtual time, here."""
        if not is_real():
            work()
            return
        self._timer = asyncio.get_running_loop().call_later(SLOW_S, self._look)
        try:
            await in_thread(work)
        finally:
            self._timer.cancel()
            self._seen = self._context = None
            if self._shown is not None:
                self._show(None)

    def _look(self) -> None:
        context = self._context
        call = None if context is None else SlowCall(context, self._stage, key_under_way(context))
        slow = call if call == self._seen else None
        if slow != self._shown:
            self._show(slow)
        self._seen = call
        self._timer = asyncio.get_running_loop().call_later(SLOW_S, self._look)

    def _show(self, call: SlowCall | None) -> None:
        self._shown = call
        work = self._write(call, self.lo, behind=self._writing)
        self._writing = self._background.begin(work, purpose="show a slow call")

    async def _write(
        self, call: SlowCall | None, lo: int, *, behind: asyncio.Task[None] | None
    ) -> None:
        if behind is not None:
            await asyncio.wait([behind])
        values: dict[str, Any] = dict(NOT_BUSY)
        if call is not None:
            since = database_time_after(timedelta(seconds=-SLOW_S))
            values = {"busy_lo": lo, "busy_stage": call.stage, "busy_key": call.key}
            values["busy_since"] = since
        table = self._program.tables.replicas
        own = (table.c.flow_id == self._program.id, table.c.id == self._replica)

        async def write(session: AsyncSession, connection: AsyncConnection) -> None:
            await connection.execute(update(table).where(*own).values(values))

        try:
            await self._transact(write, purpose="show a slow call")
        except Exception as error:
            # It is for people alone.
            logger.debug(
                "%s: a slow call is not shown",
                self._program.name,
                extra={"flow": self._program.name},
                exc_info=error,
            )
