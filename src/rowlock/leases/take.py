"""Take: lease particular rows for somebody who names them, all of them or none.

A claim takes whatever is due; this takes what was asked for. It never waits for a row: what somebody else holds, by lease, row lock
or lockset, is not to be had now, and the caller decides whether to come back.

Used for related rows of an item (``leases/related.py``) and for rows that a service holds (``leases/hold.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, ColumnElement, case, func, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import undefer

from rowlock.errors import PipelineError, RelatedLockUnavailable
from rowlock.leases.dialects import bind_of, dialect_of
from rowlock.leases.equal_keys import check_keys
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


@dataclass(frozen=True, slots=True)
class Prolonged:
    """What became of leases that were to be prolonged, by the keys of their rows. Rows that were deleted are nowhere.

    Attributes:
        done: they last longer now.
        lagging: still held, but locked by somebody for the moment.
        lost: no longer held.
    """

    done: frozenset[Any]
    lagging: frozenset[Any]
    lost: frozenset[Any]


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows that were leased: their keys, in order, and the owners of those that had been reset and wait to be come back for."""

    keys: tuple[Any, ...]
    reset_by: dict[Any, str]


async def take(connection: AsyncConnection, order: TakeOrder, in_lockset: frozenset[Any]) -> Taken:
    """Lease all rows that `order` describes; joins the caller's transaction.

    Rows that the same token holds already are among them: their leases are prolonged.

    Args:
        connection: of a transaction that may write.
        order: which rows, for whom.
        in_lockset: keys that somebody in this process holds.

    Raises:
        RelatedLockUnavailable: somebody else holds one of them. Nothing was written.
        PipelineError: there are more than `TAKEN_ROWS_MAX`.
        ModelError: their keys are objects that are not equal where their values are.
    """
    leased = order.leased
    key, token, owner = (leased.attribute(name) for name in (leased.key_name, "lock_token", "lock_owner"))
    to_be_had = (
        select(key, case((token.is_(None), owner)))
        .where(order.where, is_available(leased, order.token), key.not_in(in_lockset) if in_lockset else true())
        .order_by(key)
        .limit(TAKEN_ROWS_MAX + 1)
        .with_for_update(key_share=True, skip_locked=True, of=leased.model)
    )
    found = {row[0]: row[1] for row in (await connection.execute(to_be_had)).all()}
    keys = tuple(found)
    await check_keys(connection, leased, keys)
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
    return Taken(keys, {key: owner for key, owner in found.items() if owner is not None})


async def read_taken(
    session: AsyncSession,
    leased: LeasedTable[ModelT],
    keys: Sequence[Any],
    *,
    compared: Sequence[Column[Any]] = (),
) -> list[ModelT]:
    """Return the rows of `keys` as they are now, in the order of their keys, detached; joins the caller's transaction."""
    key = leased.attribute(leased.key_name)
    names = [*leased.lease_columns, *(leased.mapper.get_property_by_column(column).key for column in compared)]
    needed = [undefer(leased.attribute(name)) for name in names]
    statement = select(leased.model).where(key.in_(keys)).order_by(key).options(*needed)
    rows = (await session.scalars(statement, bind_arguments={"bind": bind_of(session, leased)})).unique().all()
    session.expunge_all()
    return list(rows)


async def read_fresh(session: AsyncSession, leased: LeasedTable[ModelT], keys: Sequence[Any]) -> list[ModelT]:
    """Return the rows of `keys` as they are now, in the order of their keys, attached to the session; joins its transaction."""
    key = leased.attribute(leased.key_name)
    statement = select(leased.model).where(key.in_(keys)).order_by(key).execution_options(populate_existing=True)
    return list((await session.scalars(statement, bind_arguments={"bind": bind_of(session, leased)})).unique())


def held_under(leased: LeasedTable[Any], keys: Sequence[Any], token: object) -> ColumnElement[bool]:
    """Return the condition that a row is one of `keys` and still carries `token`."""
    return leased.key.in_(keys) & (leased.column("lock_token") == token)


async def lock_held(
    session: AsyncSession, leased: LeasedTable[Any], keys: Sequence[Any], *, token: object
) -> tuple[frozenset[Any], frozenset[Any]]:
    """Keep rows that carry `token` as they are until the caller's transaction ends; joins it.

    Returns:
        The keys of those; and the keys of rows that are there but no longer held.
    """
    # In the order in which everybody locks rows, or two that want the same ones may each wait for the other.
    in_order = select(leased.key).where(leased.key.in_(keys)).order_by(leased.key).with_for_update(key_share=True)
    bind = {"bind": bind_of(session, leased)}
    there = frozenset(await session.scalars(in_order, bind_arguments=bind))
    # On SQLite a SELECT locks nothing and does not even begin a transaction.
    values = pinned(leased, {leased.column("lock_token"): leased.column("lock_token")})
    statement = update(leased.table).where(held_under(leased, keys, token)).values(values).returning(leased.key)
    held = frozenset(await session.scalars(statement, bind_arguments=bind))
    return held, there - held


async def prolong(
    connection: AsyncConnection, leased: LeasedTable[Any], keys: Sequence[Any], *, token: object, expires_at: object
) -> Prolonged:
    """Let the leases under `token` that have not ended last until `expires_at`, waiting for no row; joins the transaction."""
    valid = held_under(leased, keys, token) & (leased.column("lock_expires_at") > database_instant())
    now = dialect_of(connection).without_waiting(leased, valid)
    statement = update(leased.table).where(now).values(renewed_values(leased, expires_at=expires_at))
    prolonged = frozenset((await connection.scalars(statement.returning(leased.key))).all())
    if len(prolonged) == len(keys):
        return Prolonged(prolonged, frozenset(), frozenset())
    held = frozenset((await connection.scalars(select(leased.key).where(valid))).all())
    return Prolonged(prolonged, held - prolonged, await existing(connection, leased, keys) - held)


async def existing(connection: AsyncConnection, leased: LeasedTable[Any], keys: Sequence[Any]) -> frozenset[Any]:
    """Return those of `keys` that have a row; joins the caller's transaction."""
    return frozenset((await connection.scalars(select(leased.key).where(leased.key.in_(keys)))).all())


async def unlock(
    connection: AsyncConnection, leased: LeasedTable[Any], taken: Taken, *, token: object, waits: bool = True
) -> None:
    """Free the rows that still carry `token`, and give those that had been reset back to whom they wait for; joins the transaction.

    With ``waits=False`` rows that somebody has locked for the moment are left to their expiry.
    """
    by_owner: dict[str | None, list[Any]] = {}
    for key in taken.keys:
        by_owner.setdefault(taken.reset_by.get(key), []).append(key)
    for owner, keys in by_owner.items():
        ours = held_under(leased, keys, token)
        narrowed = ours if waits else dialect_of(connection).without_waiting(leased, ours)
        values = pinned(leased, unlocked_values(leased, owner=owner))
        await connection.execute(update(leased.table).where(narrowed).values(values))
