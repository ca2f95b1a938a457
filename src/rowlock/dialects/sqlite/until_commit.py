"""SQLite's advisory locks: keys of this process that a session holds until its transaction ends.

The one idea: the session itself says when its outermost transaction is over, after the database has
committed; then the key is released. A block could not know: the commit may come inside it, after
it, or fail.

Not here: other processes. `lock_unique_names` keeps them out by the file's own lock.

Source: SQLAlchemy, "Session Events": `after_transaction_end`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from rowlock.errors import ConfigurationError, UnsupportedDialectError
from rowlock.locks.advisory import ADVISORY_NAMESPACE
from rowlock.locks.locker import LOCKERS

_HELD = "rowlock_locks_in_process"


def session_on_sqlite(session: AsyncConnection | AsyncSession) -> AsyncSession:
    """Return the session if it tells when its transaction has ended, and shares it with no other
    session.

    Raises:
        ConfigurationError: it is no session, or it has its connection from elsewhere, and with it
            the commit.
        UnsupportedDialectError: all sessions of the engine share one connection.
    """
    if not isinstance(session, AsyncSession) or not isinstance(bind := session.get_bind(), Engine):
        raise ConfigurationError(
            "on SQLite the lock ends with the transaction of a session; pass an AsyncSession that"
            " is bound to an engine, not a connection, nor a session that was given one"
        )
    if isinstance(bind.pool, StaticPool | SingletonThreadPool):
        raise UnsupportedDialectError(
            "all sessions of this engine share one connection, and with it one transaction (SQLite"
            " in memory?); use a file, such as sqlite+aiosqlite:///app.db",
            dialect_name=bind.dialect.name,
        )
    return session


async def untouched_connection(session: AsyncSession) -> AsyncConnection:
    """Return the session's connection, joined and not used so far; before the wait, so that a
    holder never wants for one.

    Raises:
        ConfigurationError: it has a snapshot from before the lock, or has written, and would wait
            for the lock with SQLite's write lock in hand.
    """
    connection, is_new = await joined_connection(session)
    if not is_new and await is_in_transaction(connection):
        raise ConfigurationError(
            "the session is in a transaction that has read or written already; take the lock before"
            " its first statement, or commit or roll back first"
        )
    return connection


async def joined_connection(session: AsyncSession) -> tuple[AsyncConnection, bool]:
    """Return the session's connection, and whether it came to it just now, for the transaction
    itself and no savepoint.

    Then nothing was done in it, also where an engine of the host has begun SQLite's transaction
    with it.
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


async def is_in_transaction(connection: AsyncConnection) -> bool:
    """Whether SQLite itself is in a transaction; by default its driver begins one with the first
    write only.
    """
    raw = await connection.get_raw_connection()
    driver_connection: Any = raw.driver_connection
    return bool(driver_connection.in_transaction)


def is_held_in_process(session: AsyncSession, resource: str) -> bool:
    """Whether the session's transaction holds the lock already."""
    return process_key(session.get_bind().engine, resource) in _held_by(session.sync_session)


async def hold_in_process(session: AsyncSession, resource: str, timeout_s: float | None) -> bool:
    """Lock until the transaction that the session is in ends, and return whether that was
    granted in time; joins it.
    """
    if is_held_in_process(session, resource):
        return True
    key = process_key(session.get_bind().engine, resource)
    _, lockset = LOCKERS.on("sqlite").get_lockset(ADVISORY_NAMESPACE)
    request = lockset.request((key,))
    granted = False
    try:
        granted = await request.wait_for_grant(timeout_s)
    finally:
        if granted:
            _held_by(session.sync_session)[key] = partial(lockset.leave, request)
        else:
            lockset.leave(request)
    return granted


async def hold_keys_in_process(
    session: AsyncSession, namespace: str, keys: tuple[Hashable, ...], *, timeout_s: float | None
) -> bool:
    """Lock `keys` of a lockset until the session's transaction ends, all or none; return whether
    that was granted in time.

    Keys that the transaction holds already are its own.
    """
    held = _held_by(session.sync_session)
    wanted = tuple(key for key in keys if (namespace, "key", key) not in held)
    _, lockset = LOCKERS.on("sqlite").get_lockset(namespace)
    request = lockset.request(wanted)
    granted = False
    try:
        granted = await request.wait_for_grant(timeout_s)
    finally:
        if granted:
            # One request for all of them: it is left once, by whichever key comes first.
            leave_once = _once(partial(lockset.leave, request))
            held.update({(namespace, "key", key): leave_once for key in wanted})
        else:
            lockset.leave(request)
    return granted


def release_keys_in_process(
    session: AsyncSession, namespace: str, keys: tuple[Hashable, ...]
) -> None:
    """Unlock keys before the transaction has ended; only for a lock under which nothing was
    done.
    """
    held = _held_by(session.sync_session)
    for key in keys:
        held.pop((namespace, "key", key), _nothing)()


def _nothing() -> None:
    pass


def _once(act: Callable[[], None]) -> Callable[[], None]:
    done = False

    def act_once() -> None:
        nonlocal done
        if not done:
            done = True
            act()

    return act_once


def release_in_process(session: AsyncSession, resource: str) -> None:
    """Unlock before the transaction has ended; only for a lock under which nothing was done."""
    _held_by(session.sync_session).pop(process_key(session.get_bind().engine, resource))()


def process_key(engine: Engine, resource: str) -> tuple[str | None, str]:
    """Return the key of the lock: files are apart, as databases are on a server."""
    return engine.url.database, resource


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
