"""Locks on SQLite: keys of this process, held until the session's transaction ends, and the file's
own write lock.

The one idea: whoever has the lock must see what the last holder committed. So a transaction is
begun anew once the lock is ours, at once as a writing one (``BEGIN IMMEDIATE``), which keeps other
processes on the file out as well.

Those who wait for the file itself have no order: some would wait for too long. So submissions wait
for each other in a queue of the process first. A host whose engine begins transactions itself has
read from the moment in which it began; whoever writes after another one has committed is refused at
once. There the queue is the file's write lock as well.

Source: SQLite, "Isolation In SQLite"; SQLAlchemy, "Serializable isolation / Savepoints /
Transactional DDL".
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Mapper

from rowlock.clock import monotonic
from rowlock.dialects.sqlite.until_commit import (
    hold_in_process,
    hold_keys_in_process,
    is_held_in_process,
    is_in_transaction,
    joined_connection,
    release_in_process,
    release_keys_in_process,
    session_on_sqlite,
    untouched_connection,
)
from rowlock.errors import LockWaitTimeout
from rowlock.locks.lock_dialect import LockDialect
from rowlock.locks.rows_until_commit import table_of
from rowlock.shielding import finish

FILE_WAIT_S_MAX = 1.0
"""Longest single wait for the file's write lock, in seconds: so long may a cancellation be kept
waiting.
"""

_WRITING_IN = "rowlock_writing_in"


class SqliteLocks(LockDialect):
    """Keys of this process and event loop, and the write lock of the file."""

    async def hold_name(
        self, connection: AsyncConnection | AsyncSession, resource: str, timeout_s: float | None
    ) -> bool:
        """Hold it in this process."""
        session = session_on_sqlite(connection)
        if not is_held_in_process(session, resource):
            await untouched_connection(session)
        return await hold_in_process(session, resource, timeout_s)

    async def hold_name_with_snapshot(
        self, session: AsyncSession, namespace: str, timeout_s: float | None
    ) -> bool:
        """Hold it in this process, and begin the transaction as the one that writes."""
        session_on_sqlite(session)
        if is_writing_alone(session):
            return True
        held_before = is_held_in_process(session, namespace)

        def release() -> None:
            if not held_before:
                release_in_process(session, namespace)

        hold = partial(hold_in_process, session, namespace, timeout_s)
        return await hold_and_write_alone(session, hold, release, timeout_s=timeout_s)

    async def hold_rows(
        self,
        session: AsyncSession,
        mapper: Mapper[Any],
        keys: tuple[Hashable, ...],
        *,
        timeout_s: float | None,
    ) -> bool:
        """Hold their keys in the lockset of the table, and begin the transaction as the one that
        writes.
        """
        session_on_sqlite(session)
        table = table_of(mapper)
        if is_writing_alone(session):
            # Whoever holds a key could not write meanwhile, so to wait for it would be to wait for
            # oneself.
            return await hold_keys_in_process(session, table, keys, timeout_s=0.0)
        hold = partial(hold_keys_in_process, session, table, keys, timeout_s=timeout_s)
        release = partial(release_keys_in_process, session, table, keys)
        return await hold_and_write_alone(session, hold, release, timeout_s=timeout_s)

    async def queue_to_write(
        self,
        session: AsyncSession,
        name: str,
        *,
        unless: Callable[[], Awaitable[bool]],
        timeout_s: float,
    ) -> bool:
        """Hold the name of the queue in this process, and where the host has begun a
        transaction, the file, too.
        """
        if is_held_in_process(session, name):
            return False
        # Before the wait, so that the holder never wants for one.
        connection, is_new = await joined_connection(session)
        begun_by_host = await is_in_transaction(connection)
        if begun_by_host and (not is_new or await unless()):
            return False  # it has the file already, or a snapshot that a wait would make older
        async with outside_of_transaction(connection):
            held = await hold_in_process(session, name, timeout_s)
            if held and begun_by_host and not await write_alone(session, connection, timeout_s):
                self.leave_queue(session, name)
                held = False
            if not held:
                raise LockWaitTimeout(namespace=name, keys=(), timeout_s=timeout_s)
        return True

    def leave_queue(self, session: AsyncSession, name: str) -> None:
        """Release the name."""
        release_in_process(session, name)


async def hold_and_write_alone(
    session: AsyncSession,
    hold: Callable[[], Awaitable[bool]],
    release: Callable[[], None],
    *,
    timeout_s: float | None,
) -> bool:
    """Hold something in this process, then begin the session's transaction as the one that
    writes: both in time, or neither.
    """
    connection = await untouched_connection(session)
    started = monotonic()
    async with outside_of_transaction(connection):
        if not await hold():
            return False
        left_s = None if timeout_s is None else max(0.0, timeout_s - (monotonic() - started))
        writing = False
        try:
            writing = await write_alone(session, connection, left_s)
        finally:
            if not writing:
                release()
    return writing


def is_writing_alone(session: AsyncSession) -> bool:
    """Whether SQLite's write lock is the session's since before the first statement of its
    transaction.
    """
    transaction = session.sync_session.get_transaction()
    return transaction is not None and session.info.get(_WRITING_IN) is transaction


async def write_alone(
    session: AsyncSession, connection: AsyncConnection, timeout_s: float | None
) -> bool:
    """Begin the session's transaction as the one that writes, and return whether that was granted
    in time.

    Then nobody else writes to the file until it ends, in this process or another.
    """
    writing = await _begin_writing(connection, timeout_s)
    if writing:
        session.info[_WRITING_IN] = session.sync_session.get_transaction()
    return writing


@asynccontextmanager
async def outside_of_transaction(connection: AsyncConnection) -> AsyncIterator[None]:
    """Leave a transaction that the host's engine has begun and that did nothing so far; in the
    block, another may be begun.
    """
    begun_by_host = await is_in_transaction(connection)
    if begun_by_host:
        # It may have begun as a writing one: then whom we wait for could not commit.
        await connection.exec_driver_sql("ROLLBACK")
    try:
        yield
    finally:
        if begun_by_host and not await is_in_transaction(connection):
            # Such a host may have switched the driver's own transactions off: each statement would
            # commit by itself.
            await connection.exec_driver_sql("BEGIN")


async def _begin_writing(connection: AsyncConnection, timeout_s: float | None) -> bool:
    ends_at = None if timeout_s is None else monotonic() + timeout_s
    while True:
        left_s = FILE_WAIT_S_MAX if ends_at is None else max(0.0, ends_at - monotonic())
        # A cancelled BEGIN would leave the file's write lock to the garbage collector.
        if await finish(
            _begin_writing_within(connection, min(left_s, FILE_WAIT_S_MAX)),
            purpose="take the write lock of the file",
        ):
            return True
        if not left_s:
            return False


async def _begin_writing_within(connection: AsyncConnection, wait_s: float) -> bool:
    usual_ms = (await connection.exec_driver_sql("PRAGMA busy_timeout")).scalar_one()
    await connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(wait_s * 1000)}")
    try:
        await connection.exec_driver_sql("BEGIN IMMEDIATE")
    except OperationalError as error:
        if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return False
    finally:
        await connection.exec_driver_sql(f"PRAGMA busy_timeout = {usual_ms}")
    return True
