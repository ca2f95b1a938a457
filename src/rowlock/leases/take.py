"""Take: lease particular rows for somebody who names them, all of them or none.

A claim takes whatever is due; this takes what was asked for. It never waits for a row: what somebody else holds, by lease, row lock
or lockset, is not to be had now, and the caller decides whether to come back.

Used for related rows of an item (``leases/related.py``) and for rows that a service holds (``leases/hold.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import undefer

from rowlock.errors import PipelineError, RelatedLockUnavailable
from rowlock.leases.dialects import bind_of
from rowlock.rows.database_time import database_instant
from rowlock.rows.eligibility import is_available
from rowlock.rows.lease_values import leased_values, pinned, renewed_values, unlocked_values
from rowlock.rows.leased_table import LeasedTable, ModelT

TAKEN_ROWS_MAX = 10_000
"""Most rows that are taken at once; a statement of SQLite has room for some 32,000 values."""


@dataclass(frozen=True, slots=True)
class TakeOrder:
    """Lease every row where `where` holds, under `token`, for `owner`, until `expires_at`."""

    leased: LeasedTable[Any]
    where: ColumnElement[bool]
    token: Any
    owner: str
    expires_at: Any


async def take(connection: AsyncConnection, order: TakeOrder, in_lockset: frozenset[Any]) -> tuple[Any, ...]:
    """Lease all rows that `order` describes and return their keys; joins the caller's transaction.

    Rows that the same token holds already are among them: their leases are prolonged.

    Args:
        connection: of a transaction that may write.
        order: which rows, for whom.
        in_lockset: keys that somebody in this process holds.

    Raises:
        RelatedLockUnavailable: somebody else holds one of them. Nothing was written.
        PipelineError: there are more than `TAKEN_ROWS_MAX`.
    """
    leased = order.leased
    key = leased.attribute(leased.key_name)
    to_be_had = (
        select(key)
        .where(order.where, is_available(leased, order.token), key.not_in(in_lockset) if in_lockset else true())
        .order_by(key)
        .limit(TAKEN_ROWS_MAX + 1)
        .with_for_update(key_share=True, skip_locked=True, of=leased.model)
    )
    keys = tuple((await connection.scalars(to_be_had)).all())
    if len(keys) > TAKEN_ROWS_MAX:
        raise PipelineError(
            f"more than {TAKEN_ROWS_MAX} rows of {leased.name} are to be locked at once; narrow the condition"
        )
    out_of_reach = select(func.count()).select_from(leased.model).where(order.where, key.not_in(keys))
    missing = await connection.scalar(out_of_reach) or 0
    if missing:
        raise RelatedLockUnavailable(model=leased.name, wanted=len(keys) + missing, available=len(keys))
    if keys:
        values = leased_values(leased, token=order.token, owner=order.owner, expires_at=order.expires_at)
        await connection.execute(update(leased.table).where(leased.key.in_(keys)).values(values))
    return keys


async def read_taken(session: AsyncSession, leased: LeasedTable[ModelT], keys: Sequence[Any]) -> list[ModelT]:
    """Return the rows of `keys` as they are now, in the order of their keys, detached; joins the caller's transaction."""
    key = leased.attribute(leased.key_name)
    needed = [undefer(leased.attribute(name)) for name in leased.lease_columns]
    statement = select(leased.model).where(key.in_(keys)).order_by(key).options(*needed)
    rows = (await session.scalars(statement, bind_arguments={"bind": bind_of(session, leased)})).unique().all()
    session.expunge_all()
    return list(rows)


def held_under(leased: LeasedTable[Any], keys: Sequence[Any], token: object) -> ColumnElement[bool]:
    """Return the condition that a row is one of `keys` and still carries `token`."""
    return leased.key.in_(keys) & (leased.column("lock_token") == token)


async def lock_held(session: AsyncSession, leased: LeasedTable[Any], keys: Sequence[Any], *, token: object) -> int:
    """Keep rows that carry `token` as they are until the caller's transaction ends, and return how many there are; joins it."""
    if not keys:
        return 0
    # An UPDATE, since on SQLite a SELECT locks nothing and does not even begin a transaction.
    values = pinned(leased, {leased.column("lock_token"): leased.column("lock_token")})
    statement = update(leased.table).where(held_under(leased, keys, token)).values(values).returning(leased.key)
    return len((await session.execute(statement, bind_arguments={"mapper": leased.mapper})).all())


async def prolong(
    connection: AsyncConnection, leased: LeasedTable[Any], keys: Sequence[Any], *, token: object, expires_at: object
) -> tuple[frozenset[Any], frozenset[Any]]:
    """Let the leases under `token` that have not ended last until `expires_at`; joins the caller's transaction.

    Returns:
        The keys of those; and the keys of rows that are there but no longer held.
    """
    lasts = leased.column("lock_expires_at") > database_instant()
    statement = update(leased.table).where(held_under(leased, keys, token), lasts).returning(leased.key)
    values = renewed_values(leased, expires_at=expires_at)
    prolonged = frozenset((await connection.scalars(statement.values(values))).all())
    there = prolonged
    if len(prolonged) < len(keys):
        there = frozenset((await connection.scalars(select(leased.key).where(leased.key.in_(keys)))).all())
    return prolonged, there - prolonged


async def unlock(connection: AsyncConnection, leased: LeasedTable[Any], keys: Sequence[Any], *, token: object) -> int:
    """Free the rows that still carry `token`, and return how many there were; joins the caller's transaction."""
    values = pinned(leased, unlocked_values(leased))
    result = await connection.execute(update(leased.table).where(held_under(leased, keys, token)).values(values))
    return result.rowcount
