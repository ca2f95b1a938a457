"""Locks on PostgreSQL: the server has them, by name or by row, until the transaction ends.

Source: PostgreSQL, "Explicit Locking" (13.3.5), "Transaction Isolation" (13.2).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from sqlalchemy import BigInteger, Executable, func, literal, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Mapper

from rowlock.dialects.contract import LockDialect
from rowlock.errors import ConfigurationError
from rowlock.locks.advisory import key_of, rows_by_key, string_to_lock_id

_LOCK_NOT_AVAILABLE = "55P03"
_FRESH_SNAPSHOTS = ("read committed", "read uncommitted")


class PostgresqlLocks(LockDialect):
    async def hold_name(
        self, connection: AsyncConnection | AsyncSession, resource: str, timeout_s: float | None
    ) -> bool:
        if isinstance(connection, AsyncSession):
            connection = await connection.connection()
        return await _hold_in_database(connection, resource, timeout_s)

    async def hold_name_with_snapshot(
        self, session: AsyncSession, namespace: str, timeout_s: float | None
    ) -> bool:
        connection = await session.connection()
        isolation = await connection.scalar(select(func.current_setting("transaction_isolation")))
        if isolation not in _FRESH_SNAPSHOTS:
            raise ConfigurationError(
                f"under {str(isolation).upper()} the snapshot is older than the lock, and names"
                " that were taken meanwhile are not seen; use a session with READ COMMITTED"
            )
        return await _hold_in_database(connection, namespace, timeout_s)

    async def hold_rows(
        self,
        session: AsyncSession,
        mapper: Mapper[Any],
        keys: tuple[Hashable, ...],
        *,
        timeout_s: float | None,
    ) -> bool:
        """``FOR NO KEY UPDATE`` lets rows that refer to them be inserted."""
        connection = await session.connection(bind_arguments={"mapper": mapper})
        found = rows_by_key(mapper, keys).with_only_columns(key_of(mapper))
        return await _within_lock_timeout(
            connection, found.with_for_update(key_share=True, of=mapper.class_), timeout_s
        )


async def _hold_in_database(
    connection: AsyncConnection, resource: str, timeout_s: float | None
) -> bool:
    raw = await connection.get_raw_connection()
    if getattr(raw.dbapi_connection, "autocommit", False):
        raise ConfigurationError(
            "under AUTOCOMMIT each statement is a transaction, and the lock would end with the one"
            " that takes it; use a connection with transactions"
        )
    lock_id = literal(string_to_lock_id(resource), BigInteger)
    # The server does not let an attempt overtake those that wait.
    attempt = select(func.pg_try_advisory_xact_lock(lock_id))
    if timeout_s is not None and await connection.scalar(attempt):
        return True
    waiting = select(func.pg_advisory_xact_lock(lock_id))
    return timeout_s != 0 and await _within_lock_timeout(connection, waiting, timeout_s)


async def _within_lock_timeout(
    connection: AsyncConnection, statement: Executable, timeout_s: float | None
) -> bool:
    """Execute `statement`, which waits; False if not in time. The transaction can go on."""
    if timeout_s is None:
        await connection.execute(statement)
        return True
    timeout_ms = max(1, round(timeout_s * 1000))  # 0 would mean no limit
    try:
        # Without the savepoint the timeout would abort the caller's transaction.
        async with connection.begin_nested():
            before = await connection.scalar(select(func.current_setting("lock_timeout")))
            limit = func.set_config("lock_timeout", f"{timeout_ms}ms", True)
            await connection.execute(select(limit))
            await connection.execute(statement)
            await connection.execute(select(func.set_config("lock_timeout", before, True)))
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        return False
    return True
