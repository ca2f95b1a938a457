"""How a transaction of ours begins on SQLite: it takes the write lock first."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.dialects.sqlite.hops import hops_of

BEGIN = "BEGIN IMMEDIATE"


async def take_write_lock(connection: AsyncConnection, wait_s: float) -> None:
    """Take the write lock at once, or with the first statement where that saves a hop; switch the
    file to WAL the first time.

    A connection that is in a transaction already (the host's engine begins them itself) has read
    nothing yet: it starts over.

    The wait for the file happens in the driver's thread, where nothing can end it: neither a
    cancellation nor SQLite's own interrupt. A transaction that is out of time would be left in
    there, and with it the end of its event loop. So it is no longer than it may be, whatever the
    host's busy timeout is.
    """
    raw = await connection.get_raw_connection()
    driver_connection: Any = raw.driver_connection
    if driver_connection.in_transaction:
        await connection.exec_driver_sql("ROLLBACK")
    if "rowlock_wal" not in raw.info:
        # While somebody writes, the switch fails at once whatever the busy timeout; then a later
        # transaction makes it.
        try:
            await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            raw.info["rowlock_wal"] = True
        except OperationalError as error:
            if error.connection_invalidated:
                raise
    if "rowlock_busy_ms" not in raw.info:
        raw.info["rowlock_busy_ms"] = (
            await connection.exec_driver_sql("PRAGMA busy_timeout")
        ).scalar_one()
    usual_ms, wait_ms = raw.info["rowlock_busy_ms"], round(wait_s * 1000)
    is_longer = usual_ms > wait_ms
    if (hops := hops_of(connection)) is not None:
        with hops.sending_along(BEGIN, wait_ms=wait_ms if is_longer else None, usual_ms=usual_ms):
            await connection.exec_driver_sql(BEGIN)
        return
    if is_longer:
        await connection.exec_driver_sql(f"PRAGMA busy_timeout = {wait_ms}")
    try:
        await connection.exec_driver_sql(BEGIN)
    finally:
        # Not of one that was cancelled: it is never used again.
        if is_longer and not connection.invalidated:
            await connection.exec_driver_sql(f"PRAGMA busy_timeout = {usual_ms}")
