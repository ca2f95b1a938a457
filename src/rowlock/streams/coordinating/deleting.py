"""Deletes a flow, or a log, for good: all its rows, in transactions of bounded size.

The one idea: the first transaction refuses or decides. It deletes the shards and gives the flow's
row a fingerprint that no declaration has, so that no replica works on what is left, or reads it;
the row itself goes last. Whatever dies on the way, the same call ends it.

Not here: what the host's own tables have, such as results `into` them and rows of a fold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Table, delete, func, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.database.transaction import in_transaction
from rowlock.rows.database_time import database_time_after
from rowlock.rows.leased_table import LeasedTable
from rowlock.stream_errors import StillInUse
from rowlock.streams.cutting.flow_view import lease_holds
from rowlock.streams.inputs.event_log import EventLog
from rowlock.streams.outputs.cursors import DISCARDED
from rowlock.streams.tables import BEING_DELETED, StreamTables, key_of

DELETED_ROWS_MAX = 5_000
"""Most rows that are deleted in one transaction, unless one step has more results."""
DELETE_TIMEOUT: Final = timedelta(seconds=60)
"""How long one of the transactions may take."""
PRESENT_FOR: Final = timedelta(minutes=1)
"""A process that was seen so long ago counts as one that works on the flow."""

_Work = Callable[[AsyncConnection], Awaitable[int]]


class Deletion:
    """Deletes flows and logs of one database.

    Args:
        sessions: of the database.
        tables: of the wing.
    """

    def __init__(self, sessions: async_sessionmaker[AsyncSession], tables: StreamTables) -> None:
        self._sessions = sessions
        self._tables = tables

    def __repr__(self) -> str:
        return "<Deletion>"

    async def delete_flow(self, name: str, *, discard_results: bool) -> int:
        """Delete a flow; return how many rows there were; see `Streams.delete_flow`."""
        flow_id, tables = key_of("flow", name), self._tables

        async def begin(connection: AsyncConnection) -> int:
            return await _begin(connection, tables, name, discard_results=discard_results)

        async def rows(connection: AsyncConnection) -> int:
            # Another deletion may have ended, and the flow may be there anew.
            if not await _is_being_deleted(connection, tables, flow_id):
                return 0
            count = await _delete_results(connection, tables, flow_id)
            for table in (tables.exchange, tables.state, tables.parts, tables.steps):
                count = count or await _delete_some(connection, table, flow_id)
            return count or await _end(connection, tables, flow_id)

        return await self._transact(begin) + await self._repeat(rows)

    async def delete_log(self, name: str) -> int:
        """Delete a log; return how many rows there were; see `Streams.delete_log`."""
        log: EventLog[Any] = EventLog(name, object, key=str, tables=self._tables)

        async def some(connection: AsyncConnection) -> int:
            # Before it is asked who reads it: a flow that is being created may.
            await log.lock_expiry(connection)
            if readers := await _readers(connection, self._tables, lambda source: source == name):
                reason = f"the flow {readers[0]!r} reads it: delete that first"
                raise StillInUse(what=f"the log {name!r}", reason=reason)
            return await log.delete_first(connection)

        return await self._repeat(some)

    async def _repeat(self, some: _Work) -> int:
        count = 0
        while deleted := await self._transact(some):
            count += deleted
        return count

    async def _transact(self, work: _Work) -> int:
        async def in_session(session: AsyncSession, connection: AsyncConnection) -> int:
            return await work(connection)

        leased, purpose = LeasedTable.of(self._tables.flow_model), "delete a flow or a log"
        return await in_transaction(
            self._sessions, leased, in_session, purpose=purpose, timeout=DELETE_TIMEOUT
        )


async def _begin(
    connection: AsyncConnection, tables: StreamTables, name: str, *, discard_results: bool
) -> int:
    """End the work on a flow, and its reading.

    Raises:
        StillInUse: a replica or a reader has it, or may want to.
    """
    flows, shards = tables.flows, tables.shards
    own = flows.c.id == key_of("flow", name)
    # Written, not just locked: a reader that comes meanwhile, or has come, is seen or refused.
    if not (await connection.execute(update(flows).where(own).values(name=name))).rowcount:
        return 0
    found = select(flows.c.fingerprint, flows.c.state).where(own)
    row = (await connection.execute(found)).one()
    if row.fingerprint == BEING_DELETED:
        return 0
    flow_id = key_of("flow", name)
    reason = await _why_in_use(connection, tables, name, state=row.state)
    if reason is None and not discard_results:
        reason = await _why_results_stay(connection, tables, flow_id)
    if reason is not None:
        raise StillInUse(what=f"the flow {name!r}", reason=reason)
    await connection.execute(update(flows).where(own).values(fingerprint=BEING_DELETED))
    return (await connection.execute(delete(shards).where(shards.c.flow_id == flow_id))).rowcount


async def _why_in_use(
    connection: AsyncConnection, tables: StreamTables, name: str, *, state: str
) -> str | None:
    """Return who works on a flow or reads it, and what to do first; None if nothing does."""
    if state != "stopped":
        return f"it is {state}: call stop() of the flow, and end the processes that work on it"
    flow_id, shards, replicas = key_of("flow", name), tables.shards.c, tables.replicas.c
    is_held = (shards.flow_id == flow_id, lease_holds(tables))
    held = await connection.scalar(select(func.count()).select_from(tables.shards).where(*is_held))
    holding = select(shards.replica).where(*is_held)
    is_there = or_(replicas.seen_at > database_time_after(-PRESENT_FOR), replicas.id.in_(holding))
    there = select(replicas.name).where(replicas.flow_id == flow_id, is_there)
    names = (await connection.scalars(there.order_by(replicas.name).limit(3))).all()
    if held or names:
        who = ", ".join(names) or "a replica that is gone"
        return (
            f"{who} had it among the pipelines a moment ago, and {held} of its shards are leased:"
            " end the processes that have it; one that died counts for a minute, and its leases"
            " for lock_timeout"
        )
    if readers := await _readers(connection, tables, lambda one: one.startswith(f"{name}/")):
        return f"the flow {readers[0]!r} reads its results: delete that first"
    return None


async def _is_being_deleted(
    connection: AsyncConnection, tables: StreamTables, flow_id: int
) -> bool:
    """Return whether it is, and lock its row until the caller's transaction ends."""
    flows = tables.flows
    own = (flows.c.id == flow_id, flows.c.fingerprint == BEING_DELETED)
    same = update(flows).where(*own).values(fingerprint=BEING_DELETED)
    return bool((await connection.execute(same)).rowcount)


async def _readers(
    connection: AsyncConnection, tables: StreamTables, is_meant: Callable[[str], bool]
) -> list[str]:
    """Return the names of the flows that read a source."""
    flows = tables.flows.c
    found = await connection.execute(select(flows.name, flows.upto).order_by(flows.name))
    return [name for name, upto in found if any(map(is_meant, upto))]


async def _why_results_stay(
    connection: AsyncConnection, tables: StreamTables, flow_id: int
) -> str | None:
    """Return which results would be lost, and what to do first; None: there are none."""
    rows, cursors = tables.outputs.c, tables.cursors.c
    unread = select(rows.step).where(
        rows.flow_id == flow_id, rows.output == cursors.output, rows.step > cursors.step
    )
    behind = (
        select(cursors.consumer, cursors.output)
        .where(cursors.flow_id == flow_id, cursors.consumer != DISCARDED, unread.exists())
        .order_by(cursors.step)
    )
    slowest = (await connection.execute(behind.limit(1))).first()
    some = select(rows.output).where(rows.flow_id == flow_id).order_by(rows.output)
    kept = await connection.scalar(some.limit(1))
    if kept is None:
        return None
    who = (
        f"its output {kept!r} keeps results"
        if slowest is None
        else f"the consumer {slowest.consumer!r} has not read all of its output {slowest.output!r}"
    )
    return f"{who}: discard() what is done with, or pass discard_results=True to lose the rest"


async def _delete_results(connection: AsyncConnection, tables: StreamTables, flow_id: int) -> int:
    """Delete whole steps of one output: a consumer that is reading never gets a part of one."""
    rows = tables.outputs
    of_flow = rows.c.flow_id == flow_id
    first = select(rows.c.output, rows.c.step).where(of_flow).order_by(rows.c.output, rows.c.step)
    found = (await connection.execute(first.limit(1))).first()
    if found is None:
        return 0
    gone = [of_flow, rows.c.output == found.output]
    surplus = select(rows.c.step).where(*gone).order_by(rows.c.step).offset(DELETED_ROWS_MAX)
    end = await connection.scalar(surplus.limit(1))
    if end is not None:
        gone.append(rows.c.step < max(end, found.step + 1))
    return (await connection.execute(delete(rows).where(*gone))).rowcount


async def _delete_some(connection: AsyncConnection, table: Table, flow_id: int) -> int:
    key, of_flow = list(table.primary_key), table.c.flow_id == flow_id
    some = select(*key).where(of_flow).limit(DELETED_ROWS_MAX)
    gone = delete(table).where(of_flow, tuple_(*key).in_(some))
    return (await connection.execute(gone)).rowcount


async def _end(connection: AsyncConnection, tables: StreamTables, flow_id: int) -> int:
    """Delete what has a row for each replica and consumer, and the flow's own row."""
    count = 0
    for table in (tables.cursors, tables.replicas):
        gone = delete(table).where(table.c.flow_id == flow_id)
        count += (await connection.execute(gone)).rowcount
    own = delete(tables.flows).where(tables.flows.c.id == flow_id)
    return count + (await connection.execute(own)).rowcount
