"""Lock rows until the session's transaction ends: the same call on both databases, and nothing to
release.

The one idea: the transaction itself is the block. On PostgreSQL the rows are locked ``FOR NO KEY
UPDATE``; on SQLite their keys are taken in the lockset of the table, which the session releases
after its commit, and the transaction is begun as the one that writes. So the lock cannot end before
the commit, and what is returned was read after the lock: nothing can be in wrong order.

Claims leave such rows alone and outcomes wait for the commit, so the transaction should be short;
on SQLite all other writers wait. Not here: leases, which last longer than a transaction
(``services/hold.py``).

Source: dstack, "Release in-memory locks only after committing changes" and "Start new transaction
after acquiring a lock".
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Select, inspect, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapper, QueryableAttribute

from rowlock.errors import ConfigurationError, LockWaitTimeout, ModelError
from rowlock.locks.advisory import dialect_name_of, wait_limit_s, within_lock_timeout
from rowlock.locks.locker import in_order
from rowlock.locks.unique_names import hold_and_write_alone, is_writing_alone
from rowlock.locks.until_commit import (
    hold_keys_in_process,
    release_keys_in_process,
    session_on_sqlite,
)

ModelT = TypeVar("ModelT")


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
        timeout: longest wait, a number being seconds; 0 asks once, None waits for as long as it
            takes.

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
    if session.in_nested_transaction():
        raise ConfigurationError(
            "a lock that is taken in a savepoint ends if that is rolled back; take it before"
            " begin_nested()"
        )
    lock = _lock_on_sqlite if dialect_name_of(session) == "sqlite" else _lock_on_postgresql
    if not await lock(session, mapper, keys, timeout_s=timeout_s):
        raise LockWaitTimeout(namespace=_table_of(mapper), keys=keys, timeout_s=timeout_s or 0.0)
    fresh = _rows(mapper, keys).execution_options(populate_existing=True)
    return list((await session.scalars(fresh)).unique())


async def _lock_on_sqlite(
    session: AsyncSession,
    mapper: Mapper[Any],
    keys: tuple[Hashable, ...],
    *,
    timeout_s: float | None,
) -> bool:
    session_on_sqlite(session)
    table = _table_of(mapper)
    if is_writing_alone(session):
        # Whoever holds a key could not write meanwhile, so to wait for it would be to wait for
        # oneself.
        return await hold_keys_in_process(session, table, keys, timeout_s=0.0)
    hold = partial(hold_keys_in_process, session, table, keys, timeout_s=timeout_s)
    release = partial(release_keys_in_process, session, table, keys)
    return await hold_and_write_alone(session, hold, release, timeout_s=timeout_s)


async def _lock_on_postgresql(
    session: AsyncSession,
    mapper: Mapper[Any],
    keys: tuple[Hashable, ...],
    *,
    timeout_s: float | None,
) -> bool:
    connection = await session.connection(bind_arguments={"mapper": mapper})
    statement = (
        _rows(mapper, keys)
        .with_only_columns(_key_of(mapper))
        .with_for_update(key_share=True, of=mapper.class_)
    )
    return await within_lock_timeout(connection, statement, timeout_s)


def _rows(mapper: Mapper[ModelT], keys: tuple[Hashable, ...]) -> Select[Any]:
    key = _key_of(mapper)
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


def _key_of(mapper: Mapper[Any]) -> QueryableAttribute[Any]:
    attribute: QueryableAttribute[Any] = mapper.get_property_by_column(
        mapper.primary_key[0]
    ).class_attribute
    return attribute


def _table_of(mapper: Mapper[Any]) -> str:
    # The name under which claims look for held keys.
    return str(getattr(mapper.local_table, "name", mapper.local_table))
