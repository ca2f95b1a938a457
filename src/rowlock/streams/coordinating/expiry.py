"""Deletes what is no longer needed: old steps with their parts, messages, events of logs, empty
states, replicas that are gone.

The one idea: what is needed is asked in the transaction that deletes, and it only ever grows less,
so no token is needed: a late or second deletion deletes nothing that is needed. To lock the
flow's row meanwhile would have every cut wait.

A new flow is the exception, since it may need what no flow has needed so far: it and the expiry of
a log lock the same row (`EventLog.lock_expiry`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.rows.database_time import database_instant, database_time_after
from rowlock.streams.coordinating.needs import (
    first_kept_result,
    first_needed_position,
    first_needed_step,
    lowest_version,
)
from rowlock.streams.cutting.flow_view import Transact
from rowlock.streams.exchanging.expiry import delete_messages
from rowlock.streams.inputs.event_log import EventLog
from rowlock.streams.program import FlowProgram
from rowlock.streams.state.store import drop_empty

EXPIRY_ROWS_MAX = 5_000
"""Most rows of a kind that are deleted in one transaction."""
TRANSACTIONS_MAX = 20
"""Most transactions for one kind of rows in one round; the rest is deleted in the next one."""
FORGOTTEN_AFTER = 10
"""The row of a replica that was not seen for so many times as long as it counts as there is
deleted.
"""


class Expiry:
    """Deletes what is no longer needed of one flow, and of the logs that it reads.

    Args:
        program: the flow.
        transact: runs a transaction.
        present_for: how long a replica counts as there after it was seen.
    """

    def __init__(self, program: FlowProgram, transact: Transact, *, present_for: timedelta) -> None:
        self._program = program
        self._transact = transact
        self._present_for = present_for

    def __repr__(self) -> str:
        return f"<Expiry of {self._program.name}>"

    async def run(self, *, goes_on: Callable[[], bool]) -> bool:
        """Delete what is no longer needed; return whether there may be more.

        Args:
            goes_on: asked before each transaction; if not, the rest is left.
        """
        logs = [one for one in self._program.sources.values() if isinstance(one, EventLog)]
        kinds: Sequence[Any] = (
            self._messages,
            self._steps,
            self._empty_states,
            self._replicas,
            *(self._events_of(log) for log in logs),
        )
        is_more = False
        for delete_some in kinds:
            is_more |= await self._repeat(delete_some, goes_on=goes_on)
        return is_more

    async def _repeat(self, delete_some: Any, *, goes_on: Callable[[], bool]) -> bool:
        async def work(session: AsyncSession, connection: AsyncConnection) -> int:
            count: int = await delete_some(connection)
            return count

        for _ in range(TRANSACTIONS_MAX):
            if not goes_on():
                return False
            if not await self._transact(work, purpose="delete what nobody needs"):
                return False
        return True

    async def _messages(self, connection: AsyncConnection) -> int:
        program = self._program
        below = await lowest_version(connection, program.tables, program.id)
        return await delete_messages(
            connection, program.tables.exchange, program.id, below=below, limit=EXPIRY_ROWS_MAX
        )

    async def _steps(self, connection: AsyncConnection) -> int:
        """Delete parts of old steps, and then these."""
        last = await self._last_expired_step(connection)
        if last is None:
            return 0
        steps, parts = self._program.tables.steps, self._program.tables.parts
        own = parts.c
        some = (
            select(own.step, own.lo)
            .where(own.flow_id == self._program.id, own.step <= last)
            .limit(EXPIRY_ROWS_MAX)
        )
        gone = delete(parts).where(
            own.flow_id == self._program.id, tuple_(own.step, own.lo).in_(some)
        )
        if count := (await connection.execute(gone)).rowcount:
            return count
        old = delete(steps).where(steps.c.flow_id == self._program.id, steps.c.step <= last)
        return (await connection.execute(old)).rowcount

    async def _last_expired_step(self, connection: AsyncConnection) -> int | None:
        """Return the last of the steps that may go now, `EXPIRY_ROWS_MAX` at most."""
        tables, flow_id = self._program.tables, self._program.id
        first = await first_needed_step(connection, tables, flow_id)
        result = await first_kept_result(connection, tables, flow_id)
        # A step begins where the one before it ends, and results are read with the time of theirs.
        end = first - 1 if result is None else min(first - 1, result)
        c = tables.steps.c
        some = (
            select(c.step, c.now)
            .where(c.flow_id == flow_id, c.step < end)
            .order_by(c.step)
            .limit(EXPIRY_ROWS_MAX)
            .subquery()
        )
        is_old = some.c.now < database_time_after(-self._program.settings.keep)
        last: int | None = await connection.scalar(select(func.max(some.c.step)).where(is_old))
        return last

    async def _empty_states(self, connection: AsyncConnection) -> int:
        program, flows = self._program, self._program.tables.flows.c
        is_kept = flows.kept_until > database_instant()
        kept = select(flows.kept_snapshot).where(flows.id == program.id, is_kept)
        before = await connection.scalar(kept)
        if before is None:
            before = await lowest_version(connection, program.tables, program.id)
        table = program.tables.state
        return await drop_empty(connection, table, program.id, before=before, limit=EXPIRY_ROWS_MAX)

    async def _replicas(self, connection: AsyncConnection) -> int:
        table = self._program.tables.replicas
        long_ago = database_time_after(-FORGOTTEN_AFTER * self._present_for)
        gone = delete(table).where(table.c.flow_id == self._program.id, table.c.seen_at < long_ago)
        await connection.execute(gone)
        return 0

    def _events_of(self, log: EventLog[Any]) -> Any:
        async def delete_some(connection: AsyncConnection) -> int:
            await log.lock_expiry(connection)
            before = await first_needed_position(connection, self._program.tables, log.name)
            return await log.expire(connection, before or 0)

        return delete_some
