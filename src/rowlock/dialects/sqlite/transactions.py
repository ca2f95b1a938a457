"""Transactions on SQLite: one writes at a time, and each connection has a thread.

The write lock is taken first, and each statement takes one hop to the thread. A transaction that is
out of time on a loop that turns is rolled back before it is cancelled. Cancelled within a
statement, its connection would be closed with a cursor still open somewhere in a traceback, and
SQLite keeps the lock until that is collected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from functools import cache
from typing import Any, Protocol

from sqlalchemy import Connection, Pool, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.database.transaction_dialect import Connects, TransactionDialect
from rowlock.dialects.sqlite.begin import take_write_lock
from rowlock.dialects.sqlite.hops import in_one_hop_each

STATEMENT_S_MAX = 0.1
"""How long a statement may still run whose transaction is given up, in seconds; then it is
stopped.
"""


class _Driver(Protocol):
    """What is used of aiosqlite's `Connection`: its statements run in a thread of its own, in
    order, so any loop may queue one.
    """

    def interrupt(self) -> Awaitable[None]: ...
    def rollback(self) -> Awaitable[None]: ...
    def close(self) -> Awaitable[None]: ...


class SqliteTransactions(TransactionDialect):
    """One writer, and a thread for each connection."""

    commits_single_statements = False
    claims_at_once = 1
    is_ended_by_server = False

    def hastened(self, connection: AsyncConnection) -> AbstractContextManager[None]:
        """Let each statement be one hop to the thread."""
        return in_one_hop_each(connection)

    def is_begun_before(self, error: Exception) -> bool:
        """Return False: AUTOCOMMIT is not asked for."""
        return False

    async def begin_writing(self, connection: AsyncConnection, *, wait_s: float) -> None:
        """Take the write lock of the file."""
        await take_write_lock(connection, wait_s)

    def bound_waits(self, pool: Pool, wait: timedelta) -> None:
        """Set the busy timeout of each connection."""

        def wait_less(connection: DBAPIConnection, _record: object) -> None:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA busy_timeout = {round(wait.total_seconds() * 1000)}")
            cursor.close()

        event.listen(pool, "connect", wait_less)

    def roll_back_before_cancel(self, driver: Any) -> asyncio.Task[bool] | None:
        """Roll back, behind the statement that runs, or stop that."""
        _stop_once(driver)
        return asyncio.create_task(
            _roll_back(driver), name="rowlock: roll back what is out of time"
        )

    async def end_stalled(
        self,
        connection: Connection,
        driver: Any,
        separate_pool: Connects,
        *,
        older_than_s: float,
    ) -> bool:
        """Roll back in the thread of the connection, which any loop may ask to."""
        return await _roll_back(driver)

    async def close_stalled(self, driver: Any) -> None:
        """Close it in its thread."""
        await driver.close()


def _stop_once(driver: Any) -> None:
    """Let the driver's thread be stopped by whoever comes first, and whoever comes later wait for
    the same end.

    The trap this closes: a cancelled `close` of aiosqlite stops the thread in its ``finally``.
    SQLAlchemy stops it, too, when the wait for that very `close` is cancelled, as ``asyncio.run``
    does in its end. The thread ends at the first of the two, and who waits for the second waits for
    ever. Checked with aiosqlite 0.22 and SQLAlchemy 2.1; older ones have no `stop`.
    """
    stop = getattr(driver, "stop", None)
    if stop is not None:
        driver.stop = cache(stop)


async def _roll_back(driver: _Driver) -> bool:
    """Roll back what is under way, and return whether that could be done."""
    # Queued first, and only then is a statement stopped that keeps it waiting: SQLite would stop a
    # rollback that comes later, too. Both may find that the connection is gone.
    rolling_back = asyncio.ensure_future(driver.rollback())
    with suppress(Exception):
        _, pending = await asyncio.wait({rolling_back}, timeout=STATEMENT_S_MAX)
        if pending:
            await driver.interrupt()
        await rolling_back
        return True
    return False
