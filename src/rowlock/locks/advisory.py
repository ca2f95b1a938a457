"""Locks on names and on rows that end with the caller's transaction, so never before the commit.

On PostgreSQL the server ensures that, also behind a pooler in transaction mode: by
``pg_advisory_xact_lock``, and by rows ``FOR NO KEY UPDATE``. On SQLite the lock is one of this
process and event loop (``dialects/sqlite/locks.py``), and only a session of an engine will do: a
bare connection does not tell when its commit is done. Claims leave rows that are locked so alone
and outcomes wait for the commit, so a transaction should be short; on SQLite all writers wait.

`lock_unique_names` is for names to choose freely: look which are taken, take a free one, commit.
The table should have a unique constraint all the same.

Source: PostgreSQL, "Explicit Locking" (13.3.5), "Transaction Isolation" (13.2) and "System
Administration Functions" (9.28.10); SQLite, "Isolation In SQLite"; dstack, "Release in-memory locks
only after committing changes" and "Start new transaction after acquiring a lock".
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import Select, event, inspect, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Mapper, QueryableAttribute, Session

from rowlock.dialects.contract import locks_of
from rowlock.errors import ConfigurationError, LockWaitTimeout, ModelError
from rowlock.execution import execute
from rowlock.locks.locker import in_order

ModelT = TypeVar("ModelT")

ADVISORY_NAMESPACE = "advisory locks"
"""What `LockWaitTimeout` and statistics call the namespace of these locks."""
WAIT_S_MAX = 86_400.0
"""Longest time limit of a wait, in seconds; None waits without one."""

_LOCK_ID_MAX = 0x7FFF_FFFF_FFFF_FFFF


def string_to_lock_id(resource: str) -> int:
    """Return the number under which PostgreSQL knows the lock on `resource`: 0 to 2^63 - 1, so it
    fits a ``bigint``. ``TypeError`` if it is no text.

    It is the first 8 bytes, big-endian, of the SHA-256 of the text in UTF-8, without the topmost
    bit. This will not change: processes of different versions must mean the same lock. The text is
    taken as it is, neither normalised nor stripped.
    """
    if not isinstance(resource, str):
        raise TypeError(
            f"an advisory lock is named by a str, not by the {type(resource).__name__} {resource!r}"
        )
    digest = hashlib.sha256(resource.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") & _LOCK_ID_MAX


@asynccontextmanager
async def advisory_lock_ctx(
    connection: AsyncConnection | AsyncSession,
    resource: str,
    *,
    timeout: timedelta | float | None = None,
) -> AsyncIterator[None]:
    """Lock `resource` until the caller's transaction ends; joins it and never ends it.

    The end of the block does not unlock, the commit or rollback does, inside the block or after it.
    Within one transaction the lock may be taken again. On SQLite take it before the transaction's
    first statement.

    Args:
        connection: an `AsyncSession`, or on PostgreSQL an `AsyncConnection`. It waits with its
            connection in hand.
        resource: the name of the lock, one per database; on SQLite one per database and event loop.
        timeout: longest wait, a number being seconds; 0 asks once, None has no limit.

    Raises:
        LockWaitTimeout: it was not free in time; the transaction can go on.
        Refusal: too many wait for advisory locks already (SQLite).
        ConfigurationError: the lock could not last until the commit (autocommit, a bare connection
            on SQLite).
        UnsupportedDialectError: the database is unknown, or all its sessions share one connection.
    """
    timeout_s = wait_limit_s(timeout)
    if not await _hold(connection, resource, timeout_s):
        raise _timed_out(resource, timeout_s)
    yield


@asynccontextmanager
async def try_advisory_lock_ctx(
    connection: AsyncConnection | AsyncSession, resource: str
) -> AsyncIterator[bool]:
    """As `advisory_lock_ctx`, without waiting: the block is entered either way and told whether the
    lock is held.

    Raises:
        Refusal: as `advisory_lock_ctx`.
        ConfigurationError: as `advisory_lock_ctx`.
        UnsupportedDialectError: as `advisory_lock_ctx`.
    """
    yield await _hold(connection, resource, 0.0)


async def _hold(
    connection: AsyncConnection | AsyncSession, resource: str, timeout_s: float | None
) -> bool:
    string_to_lock_id(resource)
    return await locks_of(connection).hold_name(connection, resource, timeout_s)


def wait_limit_s(timeout: timedelta | float | None) -> float | None:
    """Return a time limit in seconds; `ValueError` if it is none, or above `WAIT_S_MAX`."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds is not None and not 0 <= seconds <= WAIT_S_MAX:
        raise ValueError(f"timeout must be None or 0 to {WAIT_S_MAX:g} seconds, not {timeout!r}")
    return seconds


def refuse_savepoint(session: AsyncSession) -> None:
    if session.in_nested_transaction():
        raise ConfigurationError(
            "a lock that is taken in a savepoint ends if that is rolled back; take it before"
            " begin_nested()"
        )


def _timed_out(resource: str, timeout_s: float | None) -> LockWaitTimeout:
    return LockWaitTimeout(
        namespace=ADVISORY_NAMESPACE, keys=(resource,), timeout_s=timeout_s or 0.0
    )


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
        timeout: longest wait, a number being seconds; 0 asks once, None has no limit.

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
    refuse_savepoint(session)
    if not await locks_of(session).hold_name_with_snapshot(session, namespace, timeout_s):
        raise _timed_out(namespace, timeout_s)
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


# ---------------------------------------------------------------- rows


async def lock_rows(
    session: AsyncSession,
    model: type[ModelT],
    ids: Iterable[Any],
    *,
    timeout: timedelta | float | None = None,
) -> list[ModelT]:
    """Lock rows until the session's transaction ends, and return them as they are now; joins it and
    never ends it.

    Instances that the session has already are refreshed. All rows that one transaction needs are
    best locked by one call: two that each wait for a row of the other end by their timeouts (on
    PostgreSQL by its deadlock detection).

    Args:
        session: of an engine; on SQLite, and there before it has written anything in its
            transaction.
        model: a mapped class with a single-column key; it needs no lock columns.
        ids: keys of the rows; those that do not exist are passed over.
        timeout: longest wait, a number being seconds; 0 asks once, None has no limit.

    Returns:
        The rows, in the order of their keys, attached to the session.

    Raises:
        LockWaitTimeout: not all were free in time; none of these is held, and the transaction can
            go on.
        Refusal: too many wait for rows of the table already (SQLite).
        ConfigurationError: the session could lose the lock before the commit, or would read what
            was before the lock.
        ModelError: `model` is not mapped, or has a composite key.
        UnsupportedDialectError: the database is unknown, or all its sessions share one connection.
    """
    keys, timeout_s = in_order(ids), wait_limit_s(timeout)
    mapper = _mapper_of(model)
    refuse_savepoint(session)
    if not await locks_of(session).hold_rows(session, mapper, keys, timeout_s=timeout_s):
        raise LockWaitTimeout(namespace=table_of(mapper), keys=keys, timeout_s=timeout_s or 0.0)
    fresh = rows_by_key(mapper, keys).execution_options(populate_existing=True)
    return list((await execute(session, fresh)).scalars().unique())


def rows_by_key(mapper: Mapper[ModelT], keys: tuple[Hashable, ...]) -> Select[Any]:
    key = key_of(mapper)
    # Always in one order: of two that want the same rows, one waits for the other and never the
    # other way round as well.
    return select(mapper.class_).where(key.in_(keys)).order_by(key)


def _mapper_of(model: type[ModelT]) -> Mapper[ModelT]:
    mapper = inspect(model, raiseerr=False)
    name = getattr(model, "__name__", repr(model))
    if not isinstance(mapper, Mapper):
        raise ModelError(
            f"{name} is not a mapped class; pass a declarative SQLAlchemy model", model=name
        )
    if len(mapper.primary_key) != 1:
        raise ModelError(
            f"{name} has a composite primary key; rows are locked by a single-column key",
            model=name,
        )
    return mapper


def key_of(mapper: Mapper[Any]) -> QueryableAttribute[Any]:
    attribute: QueryableAttribute[Any] = mapper.get_property_by_column(
        mapper.primary_key[0]
    ).class_attribute
    return attribute


def table_of(mapper: Mapper[Any]) -> str:
    # The name under which claims look for held keys.
    return str(getattr(mapper.local_table, "name", mapper.local_table))
