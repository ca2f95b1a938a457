"""Locks on SQLite: keys of this process, held until the session's transaction ends, and the file's
own write lock.

The one idea: the holder of the lock must see what the last holder committed. So a transaction is
begun anew once the lock is ours, at once as a writing one (``BEGIN IMMEDIATE``), which keeps other
processes on the file out as well. The key is released when the session says that its outermost
transaction is over, after the database has committed.

Waiters for the file itself have no order, so submissions wait for each other in a queue of the
process first. Where a host's engine begins transactions itself, the snapshot is as old as that, and
who writes after another one has committed is refused: there the queue is the write lock as well.

Source: SQLite, "Isolation In SQLite"; SQLAlchemy, "Serializable isolation / Savepoints /
Transactional DDL".
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Mapper, Session, SessionTransaction

from rowlock.clock import monotonic
from rowlock.database.transaction import refuse_one_connection
from rowlock.dialects.contract import LockDialect
from rowlock.dialects.sqlite.transactions import begin_immediate, usual_wait_ms
from rowlock.errors import ConfigurationError, LockWaitTimeout
from rowlock.locks.advisory import ADVISORY_NAMESPACE, table_of
from rowlock.locks.locker import LOCKERS
from rowlock.tasks import finish

FILE_WAIT_S_MAX = 1.0
"""Longest single wait for the file's write lock, in seconds: cancellations wait for it."""

_HELD = "rowlock_locks_in_process"
_WRITING_IN = "rowlock_writing_in"


class SqliteLocks(LockDialect):
    async def hold_name(
        self, connection: AsyncConnection | AsyncSession, resource: str, timeout_s: float | None
    ) -> bool:
        session = _session_of_an_engine(connection)
        key = _key_of_name(session, resource)
        if (ADVISORY_NAMESPACE, key) not in _held_by(session.sync_session):
            await _untouched_connection(session)
        return await _hold_in_process(session, ADVISORY_NAMESPACE, [key], timeout_s=timeout_s)

    async def hold_name_with_snapshot(
        self, session: AsyncSession, namespace: str, timeout_s: float | None
    ) -> bool:
        _session_of_an_engine(session)
        keys = [_key_of_name(session, namespace)]
        return _is_writing_alone(session) or await _hold_and_write_alone(
            session, ADVISORY_NAMESPACE, keys, timeout_s=timeout_s
        )

    async def hold_rows(
        self,
        session: AsyncSession,
        mapper: Mapper[Any],
        keys: tuple[Hashable, ...],
        *,
        timeout_s: float | None,
    ) -> bool:
        _session_of_an_engine(session)
        if _is_writing_alone(session):
            # A holder of a key could not write meanwhile, so waiting for it would deadlock.
            return await _hold_in_process(session, table_of(mapper), keys, timeout_s=0.0)
        return await _hold_and_write_alone(session, table_of(mapper), keys, timeout_s=timeout_s)

    async def queue_to_write(
        self,
        session: AsyncSession,
        name: str,
        *,
        unless: Callable[[], Awaitable[bool]],
        timeout_s: float,
    ) -> bool:
        key = _key_of_name(session, name)
        if (ADVISORY_NAMESPACE, key) in _held_by(session.sync_session):
            return False
        # Before the wait, so that the holder never wants for one.
        connection, is_new = await _joined_connection(session)
        begun_by_host = await _is_in_transaction(connection)
        if begun_by_host and (not is_new or await unless()):
            return False  # it has the file already, or a snapshot that a wait would make older
        async with _outside_of_transaction(connection):
            held = await _hold_in_process(session, ADVISORY_NAMESPACE, [key], timeout_s=timeout_s)
            if held and begun_by_host and not await _write_alone(session, connection, timeout_s):
                self.leave_queue(session, name)
                held = False
            if not held:
                raise LockWaitTimeout(namespace=name, keys=(), timeout_s=timeout_s)
        return True

    def leave_queue(self, session: AsyncSession, name: str) -> None:
        _release_in_process(session, ADVISORY_NAMESPACE, [_key_of_name(session, name)])


# ---------------------------------------------------------------- sessions


def _session_of_an_engine(session: AsyncConnection | AsyncSession) -> AsyncSession:
    if not isinstance(session, AsyncSession) or not isinstance(bind := session.get_bind(), Engine):
        raise ConfigurationError(
            "on SQLite the lock ends with the transaction of a session; pass an AsyncSession that"
            " is bound to an engine, not a connection, nor a session that was given one"
        )
    refuse_one_connection(bind)
    return session


async def _untouched_connection(session: AsyncSession) -> AsyncConnection:
    # Joined before the wait, so that a holder never lacks one.
    connection, is_new = await _joined_connection(session)
    if not is_new and await _is_in_transaction(connection):
        # It has a snapshot from before the lock, or would wait with SQLite's write lock in hand.
        raise ConfigurationError(
            "the session is in a transaction that has read or written already; take the lock before"
            " its first statement, or commit or roll back first"
        )
    return connection


async def _joined_connection(session: AsyncSession) -> tuple[AsyncConnection, bool]:
    """Return the session's connection, and whether it was joined just now and not for a savepoint:
    then nothing was done in it yet, even if SQLite's transaction had begun before.
    """
    for_savepoints: list[bool] = []

    def note(_session: Session, transaction: SessionTransaction, _connection: Connection) -> None:
        for_savepoints.append(transaction.parent is not None)

    event.listen(session.sync_session, "after_begin", note)
    try:
        connection = await session.connection()
    finally:
        event.remove(session.sync_session, "after_begin", note)
    return connection, for_savepoints == [False]


async def _is_in_transaction(connection: AsyncConnection) -> bool:
    # Asked of SQLite itself: its driver begins a transaction with the first write.
    driver: Any = (await connection.get_raw_connection()).driver_connection
    return bool(driver.in_transaction)


@asynccontextmanager
async def _outside_of_transaction(connection: AsyncConnection) -> AsyncIterator[None]:
    """Leave, for the block, an unused transaction that the host's engine began."""
    begun_by_host = await _is_in_transaction(connection)
    if begun_by_host:
        # It may have begun as a writing one: then the holder that is waited for could not commit.
        await connection.exec_driver_sql("ROLLBACK")
    try:
        yield
    finally:
        if begun_by_host and not await _is_in_transaction(connection):
            # Such a host may have switched the driver's own transactions off: each statement would
            # commit by itself.
            await connection.exec_driver_sql("BEGIN")


# ---------------------------------------------------------------- keys of this process


async def _hold_in_process(
    session: AsyncSession, namespace: str, keys: Iterable[Hashable], *, timeout_s: float | None
) -> bool:
    """Lock all `keys` or none until the session's transaction ends; what it holds is its own."""
    held = _held_by(session.sync_session)
    wanted = tuple(key for key in keys if (namespace, key) not in held)
    if not wanted:
        return True
    _, lockset = LOCKERS.on("sqlite").get_lockset(namespace)
    request = lockset.request(wanted)
    granted = False
    try:
        granted = await request.wait_for_grant(timeout_s)
    finally:
        if granted:
            # One request for all of them: it is left once, by the first key.
            leave_once = cache(partial(lockset.leave, request))
            held.update({(namespace, key): leave_once for key in wanted})
        else:
            lockset.leave(request)
    return granted


def _release_in_process(session: AsyncSession, namespace: str, keys: Iterable[Hashable]) -> None:
    # Before the transaction has ended; only for a lock under which nothing was done.
    held = _held_by(session.sync_session)
    for key in keys:
        held.pop((namespace, key))()


def _key_of_name(session: AsyncSession, name: str) -> Hashable:
    # Files are apart, as databases are on a server.
    return session.get_bind().engine.url.database, name


def _held_by(session: Session) -> dict[Hashable, Callable[[], None]]:
    if _HELD not in session.info:
        session.info[_HELD] = {}
        event.listen(session, "after_transaction_end", _release)
    held: dict[Hashable, Callable[[], None]] = session.info[_HELD]
    return held


def _release(session: Session, transaction: SessionTransaction) -> None:
    # Called after the database has committed, unlike the "commit" event of a connection.
    if transaction.parent is None:
        held = session.info[_HELD]
        while held:
            held.popitem()[1]()


# ---------------------------------------------------------------- the file


async def _hold_and_write_alone(
    session: AsyncSession, namespace: str, keys: Sequence[Hashable], *, timeout_s: float | None
) -> bool:
    """Hold keys in this process, then begin to write: both in time, or neither."""
    connection = await _untouched_connection(session)
    started, held = monotonic(), _held_by(session.sync_session)
    new = [key for key in keys if (namespace, key) not in held]
    async with _outside_of_transaction(connection):
        if not await _hold_in_process(session, namespace, new, timeout_s=timeout_s):
            return False
        left_s = None if timeout_s is None else max(0.0, timeout_s - (monotonic() - started))
        writing = False
        try:
            writing = await _write_alone(session, connection, left_s)
        finally:
            if not writing:
                _release_in_process(session, namespace, new)
    return writing


def _is_writing_alone(session: AsyncSession) -> bool:
    # Since before its first statement.
    transaction = session.sync_session.get_transaction()
    return transaction is not None and session.info.get(_WRITING_IN) is transaction


async def _write_alone(
    session: AsyncSession, connection: AsyncConnection, timeout_s: float | None
) -> bool:
    """Begin the session's transaction as the only one that writes; False if not in time."""

    async def begin_within(wait_s: float) -> bool:
        usual_ms = await usual_wait_ms(connection)
        try:
            await begin_immediate(connection, wait_ms=round(wait_s * 1000), usual_ms=usual_ms)
        except OperationalError as error:
            if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return False
        return True

    ends_at = None if timeout_s is None else monotonic() + timeout_s
    while True:
        left_s = FILE_WAIT_S_MAX if ends_at is None else max(0.0, ends_at - monotonic())
        begun = begin_within(min(left_s, FILE_WAIT_S_MAX))
        # A cancelled BEGIN would leave the file's write lock to the garbage collector.
        if await finish(begun, purpose="take the write lock of the file"):
            session.info[_WRITING_IN] = session.sync_session.get_transaction()
            return True
        if not left_s:
            return False
