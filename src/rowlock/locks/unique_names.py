"""Unique names: look which names are taken, take a free one, commit; while nobody else does the
same.

The one idea: whoever has the lock must see what the last holder committed. So the lock lasts until
after the commit, and the reading starts after the lock: on PostgreSQL each statement of READ
COMMITTED has a snapshot of its own; on SQLite a transaction is begun anew once the lock is ours, at
once as a writing one (``BEGIN IMMEDIATE``), which keeps other processes on the file out as well.

Not here: the unique constraint, which the table should have all the same; locks without a snapshot
to mind (``locks/advisory.py``).

Source: SQLite, "Isolation In SQLite"; PostgreSQL, "Transaction Isolation" (13.2).
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial

from sqlalchemy import event, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from rowlock.clock import monotonic
from rowlock.errors import ConfigurationError
from rowlock.locks.advisory import dialect_name_of, hold_in_database, timed_out, wait_limit_s
from rowlock.locks.until_commit import (
    hold_in_process,
    is_held_in_process,
    is_in_transaction,
    release_in_process,
    session_on_sqlite,
    untouched_connection,
)
from rowlock.shielding import finish

FILE_WAIT_S_MAX = 1.0
"""Longest single wait for SQLite's write lock, in seconds: so long may a cancellation be kept
waiting.
"""

_FRESH_SNAPSHOTS = ("read committed", "read uncommitted")
_WRITING_IN = "rowlock_writing_in"


@asynccontextmanager
async def lock_unique_names(
    session: AsyncSession, namespace: str, *, timeout: timedelta | float | None = None
) -> AsyncIterator[None]:
    """Be the only one who takes names of `namespace`, until the session's transaction ends; joins
    it and never ends it.

    The lock ends with the commit or rollback, inside the block or after it. To write in the block
    after that is an error: a second name would be taken without the lock. What the session has not
    flushed stays as it is.

    Args:
        session: of an engine on PostgreSQL with READ COMMITTED, the default; or on SQLite, and
            there before the first statement of its transaction.
        namespace: what the names must be unique in, such as ``f"fleet_names_{project_id}"``.
        timeout: longest wait, a number being seconds; 0 asks once, None waits for as long as it
            takes.

    Raises:
        LockWaitTimeout: it was not free in time; the transaction can go on.
        Refusal: too many wait for names already (SQLite).
        ConfigurationError: the session would not see the names that others took before, or could
            lose the lock before the commit; or it wrote after the lock had ended.
        UnsupportedDialectError: the database is unknown, or all its sessions share one connection.
    """
    timeout_s = wait_limit_s(timeout)
    if not isinstance(session, AsyncSession):
        raise TypeError(f"pass an AsyncSession, not a {type(session).__name__}")
    if session.in_nested_transaction():
        raise ConfigurationError(
            "a lock that is taken in a savepoint ends if that is rolled back; take it before"
            " begin_nested()"
        )
    acquire = _acquire_on_sqlite if dialect_name_of(session) == "sqlite" else _acquire_on_postgresql
    if not await acquire(session, namespace, timeout_s):
        raise timed_out(namespace, timeout_s)
    with _no_writes_without_lock(session.sync_session, namespace):
        yield


@contextmanager
def _no_writes_without_lock(session: Session, namespace: str) -> Iterator[None]:
    locked_in = session.get_transaction()

    def check(session: Session, *_: object) -> None:
        if session.get_transaction() is not locked_in:
            raise ConfigurationError(
                f"the lock on {namespace!r} ended with the transaction, and this would be written"
                " without it; leave the block first, and take the lock again for another name"
            )

    event.listen(session, "before_flush", check)
    try:
        yield
    finally:
        event.remove(session, "before_flush", check)


async def _acquire_on_postgresql(
    session: AsyncSession, namespace: str, timeout_s: float | None
) -> bool:
    connection = await session.connection()
    isolation = await connection.scalar(select(func.current_setting("transaction_isolation")))
    if isolation not in _FRESH_SNAPSHOTS:
        raise ConfigurationError(
            f"under {str(isolation).upper()} the snapshot is older than the lock, and names that"
            " were taken meanwhile are not seen; use a session with READ COMMITTED"
        )
    return await hold_in_database(connection, namespace, timeout_s)


async def _acquire_on_sqlite(
    session: AsyncSession, namespace: str, timeout_s: float | None
) -> bool:
    session_on_sqlite(session)
    if is_writing_alone(session):
        return True
    held_before = is_held_in_process(session, namespace)

    def release() -> None:
        if not held_before:
            release_in_process(session, namespace)

    hold = partial(hold_in_process, session, namespace, timeout_s)
    return await hold_and_write_alone(session, hold, release, timeout_s=timeout_s)


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
