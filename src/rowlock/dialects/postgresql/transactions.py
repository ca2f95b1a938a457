"""Transactions on PostgreSQL: any of them may write, and a statement is one round trip."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Pool, text
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.database.transaction_dialect import Connects, TransactionDialect


class PostgresqlTransactions(TransactionDialect):
    """The server does it all."""

    commits_single_statements = True
    claims_at_once = None
    is_ended_by_server = True

    def hastened(self, connection: AsyncConnection) -> AbstractContextManager[None]:
        """Do nothing: drivers have no thread."""
        return nullcontext()

    def is_begun_before(self, error: Exception) -> bool:
        """Return whether this is what psycopg raises then; asyncpg's transaction is ended."""
        kind = type(error)
        return (
            kind.__module__.startswith("psycopg")
            and kind.__name__ == "ProgrammingError"
            and "'autocommit'" in str(error)
        )

    async def begin_writing(self, connection: AsyncConnection, *, wait_s: float) -> None:
        """Do nothing: any transaction may write."""

    def bound_waits(self, pool: Pool, wait: timedelta) -> None:
        """Do nothing: a statement that waits can be cancelled."""

    def roll_back_before_cancel(self, driver: Any) -> asyncio.Task[bool] | None:
        """Return None: the server rolls back what lost its connection."""
        return None

    async def end_stalled(
        self,
        connection: Connection,
        driver: Any,
        separate_pool: Connects,
        *,
        older_than_s: float,
    ) -> bool:
        """Have the server end it. It may not be reached, or still run a statement; then a later
        attempt may succeed.
        """
        return await _terminate(
            connection.engine, separate_pool, driver=driver, older_than_s=older_than_s
        )

    async def close_stalled(self, driver: Any) -> None:
        """Do nothing: its loop closes it when it goes on."""


async def _terminate(
    engine: Engine, separate_pool: Connects, *, driver: Any, older_than_s: float
) -> bool:
    """Have the server end what is under way, and return whether it did."""
    pid = driver.get_server_pid() if hasattr(driver, "get_server_pid") else driver.info.backend_pid
    # Behind a pooler the number may be somebody else's: then there is no transaction of ours that
    # waits for so long. The trap: asyncpg flushes between Parse and Bind without a Sync, and a
    # server that waits for the Bind says "active".
    statement = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = :pid AND usename ="
        " current_user AND (state LIKE 'idle in transaction%' OR state = 'active' AND wait_event ="
        " 'ClientRead') AND xact_start < clock_timestamp() - make_interval(secs => :seconds)"
    )
    async with separate_pool.connect(engine) as connection:
        return bool(await connection.scalar(statement, {"pid": pid, "seconds": older_than_s / 2}))
