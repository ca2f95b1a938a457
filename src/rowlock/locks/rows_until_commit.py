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
from typing import Any, TypeVar

from sqlalchemy import Select, inspect, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapper, QueryableAttribute

from rowlock.dialects.contract import locks_of
from rowlock.errors import LockWaitTimeout, ModelError
from rowlock.execution import execute
from rowlock.locks.advisory import refuse_savepoint, wait_limit_s
from rowlock.locks.locker import in_order

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
