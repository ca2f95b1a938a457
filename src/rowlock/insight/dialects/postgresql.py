"""Questions on PostgreSQL.

A row that a transaction has locked or written, and not committed, carries the number of that
transaction as its ``xmax``. Where several share a lock it is the number of a group, which belongs
to no backend: then nothing is found.

Source: PostgreSQL, "System Columns" and "The Cumulative Statistics System" (`pg_stat_activity`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import (
    Connection,
    DateTime,
    Integer,
    String,
    column,
    extract,
    func,
    literal_column,
    select,
    table,
    text,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.dialects.insight_dialect import InsightDialect
from rowlock.insight.verdicts import TouchingTransaction
from rowlock.locks.lock_dialect import locks_of
from rowlock.rows.leased_table import LeasedTable

_BEGIN = text(
    "SELECT set_config('transaction_read_only', 'on', true),"
    " set_config('statement_timeout', :timeout, true)"
)
_BEGIN_READING = text(
    "SELECT set_config('transaction_read_only', 'on', true),"
    " set_config('default_transaction_read_only', 'on', false)"
)
_IDLE = "idle"


class PostgresqlInsight(InsightDialect):
    """The server refuses writes, and ends what takes too long."""

    knows_transactions = True

    async def begin_reading(
        self, connection: AsyncConnection, *, statement_timeout: timedelta
    ) -> None:
        """Set both for this transaction."""
        milliseconds = max(1, round(statement_timeout.total_seconds() * 1000))
        await connection.execute(_BEGIN, {"timeout": str(milliseconds)})

    async def open_transaction(
        self, connection: AsyncConnection, leased: LeasedTable, key: Any
    ) -> TouchingTransaction | None:
        """Look for the backend whose transaction the row names."""
        activity = table(
            "pg_stat_activity",
            column("pid", Integer),
            column("state", String),
            column("backend_xid"),
            column("state_change", DateTime(timezone=True)),
            schema="pg_catalog",
        )
        seconds = extract("epoch", func.clock_timestamp() - activity.c.state_change)
        statement = (
            select(activity.c.pid, activity.c.state, seconds)
            .select_from(leased.table)
            .join(activity, activity.c.backend_xid == literal_column("xmax"))
            .where(leased.key == key)
        )
        row = (await connection.execute(statement)).first()
        if row is None:
            return None
        state = _IDLE if str(row[1]).startswith(_IDLE) else str(row[1])
        return TouchingTransaction(row[0], state, float(row[2] or 0.0))

    async def try_hold_name(self, connection: AsyncConnection, name: str) -> bool:
        """Ask for an advisory lock, without waiting."""
        return await locks_of(connection).hold_name(connection, name, 0.0)

    def begin_without_writing(self, connection: Connection) -> None:
        """Set it by a query: behind one, the server lets nobody take that back. And set it for what
        comes without a BEGIN.
        """
        connection.execute(_BEGIN_READING)
