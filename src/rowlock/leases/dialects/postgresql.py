"""Leases on PostgreSQL: one statement each; row locks keep replicas apart.

Locks are ``FOR NO KEY UPDATE``: a plain ``FOR UPDATE`` would collide with the ``FOR KEY SHARE`` that every insert of a
referencing row takes. They skip what is locked, so that one long transaction of somebody's holds up nobody else's row.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    JSON,
    Boolean,
    Column,
    ColumnElement,
    Date,
    DateTime,
    Enum,
    Float,
    Integer,
    Numeric,
    String,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    column,
    func,
    literal,
    null,
    or_,
    select,
    true,
    tuple_,
    type_coerce,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import TableValuedAlias

from rowlock.leases.dialects.claims import Array, ClaimedRow, ClaimOrder, Position
from rowlock.rows.assignments import ColumnValues
from rowlock.rows.database_time import UtcDateTime, database_time_after
from rowlock.rows.eligibility import is_returning, place_in_line
from rowlock.rows.lease_values import leased_values
from rowlock.rows.leased_table import LeasedTable, innermost
from rowlock.rows.return_tokens import VERSION_DIGIT_AT


async def begin_writing(connection: AsyncConnection) -> None:
    """Do nothing: any transaction may write."""


@asynccontextmanager
async def excluding(leased: LeasedTable[Any]) -> AsyncIterator[frozenset[Any]]:
    """Exclude nobody: row locks do it."""
    yield frozenset()


async def claim(connection: AsyncConnection, order: ClaimOrder, held: frozenset[Any]) -> list[ClaimedRow]:
    """Lease in one statement: the locking SELECT feeds the UPDATE.

    The SELECT stands in a CTE, which PostgreSQL evaluates once; as a plain subquery the planner may run it again for each
    row and lease more than the limit.
    """
    leased = order.leased
    token, attempts = leased.column("lock_token"), leased.column("attempts") if leased.has_schedule else null()
    in_line = (
        select(
            leased.key.label("id"),
            case((leased.column("lock_owner") == order.owner, token), else_=None).label("dead_token"),
            is_returning(leased, order.owner).label("returns"),
            type_coerce(place_in_line(leased), UtcDateTime).label("place"),
        )
        .where(order.eligible, true() if order.after is None else _is_behind(leased, order.after))
        .order_by(*order.oldest_first)
        .limit(order.limit)
        .with_for_update(key_share=True, skip_locked=True, of=leased.model)
        .cte("in_line")
    )
    # RETURNING keeps no order, and keys sort by the database's rules, not by Python's.
    due = select(in_line, func.row_number().over().label("number")).cte("due")
    statement = (
        update(leased.table)
        .where(leased.key == due.c.id)
        .values(_values(order, due))
        .returning(
            leased.key.label("id"),
            token.label("token"),
            type_coerce(leased.column("lock_expires_at"), UtcDateTime).label("expires_at"),
            due.c.dead_token.label("dead_token"),
            attempts.cast(Integer).label("attempts"),
            due.c.place.label("place"),
            due.c.number.label("number"),
        )
    )
    rows = sorted((await connection.execute(statement)).all(), key=attrgetter("number"))
    return [
        ClaimedRow(
            row.id, row.token, row.expires_at, row.dead_token, row.attempts, row.place, Position(row.place, row.id)
        )
        for row in rows
    ]


def _is_behind(leased: LeasedTable[Any], position: Position) -> ColumnElement[bool]:
    # Each is one range of the index. Both kinds of rows in one condition would be an OR, for which the index is walked from its
    # start; so the rows that were never processed are a line of their own.
    place, key = leased.column(place_in_line(leased).key), leased.key
    if position.place is None:
        return and_(place.is_(None), key > position.key)
    return tuple_(place, key) > tuple_(literal(position.place, place.type), literal(position.key, key.type))


def _values(order: ClaimOrder, due: CTE) -> ColumnValues:
    leased = order.leased
    values = leased_values(
        leased,
        token=_new_token(leased.column("lock_token"), returns=due.c.returns),
        owner=order.owner,
        expires_at=database_time_after(order.lock_timeout),
    )
    if leased.has_schedule:
        attempts = leased.column("attempts")
        values[attempts] = attempts + due.c.dead_token.is_not(None).cast(Integer)
    return values


def _new_token(column: Column[Any], *, returns: ColumnElement[bool]) -> ColumnElement[Any]:
    digits = func.replace(cast(func.gen_random_uuid(), Text), "-", "")
    returning = func.overlay(digits, "8", VERSION_DIGIT_AT)
    text = case((returns, returning), else_=digits)
    # A Uuid that is declared not to be native is kept as its 32 digits.
    return cast(text, Uuid) if getattr(column.type, "native_uuid", True) else text


def under_tokens(leased: LeasedTable[Any], leases: Sequence[tuple[Any, Any]]) -> ColumnElement[bool]:
    """Compare with two arrays side by side: one plan for any number of leases."""
    pairs = _unnested(_held(leased, leases))
    return tuple_(leased.key, leased.column("lock_token")).in_(select(pairs.c.key, pairs.c.token))


def side_by_side(
    leased: LeasedTable[Any], leases: Sequence[tuple[Any, Any]], arrays: Sequence[Array]
) -> TableValuedAlias | None:
    """Unnest arrays, if they are all of types whose arrays every driver knows."""
    plain = all(isinstance(innermost(type_), _PLAIN) and not isinstance(type_, Enum) for _, type_, _ in arrays)
    return _unnested([*_held(leased, leases), *arrays]) if plain else None


_PLAIN = (Boolean, Date, DateTime, Float, Integer, Numeric, String, Uuid)


def _held(leased: LeasedTable[Any], leases: Sequence[tuple[Any, Any]]) -> list[Array]:
    keys, tokens = ([lease[index] for lease in leases] for index in (0, 1))
    return [("key", leased.key.type, keys), ("token", leased.column("lock_token").type, tokens)]


def _unnested(arrays: Sequence[Array]) -> TableValuedAlias:
    values = [bindparam(f"held_{name}", held, type_=ARRAY(type_), unique=True) for name, type_, held in arrays]
    columns = [column(name, type_) for name, type_, _ in arrays]
    return func.unnest(*values).table_valued(*columns).render_derived(name="held")


def without_waiting(
    leased: LeasedTable[Any], condition: ColumnElement[bool], *, limit: int | None = None
) -> ColumnElement[bool]:
    """Narrow to rows that nobody else has locked, and lock them."""
    free = (
        select(leased.key.label("key")).where(condition).limit(limit).with_for_update(key_share=True, skip_locked=True)
    )
    return leased.key.in_(select(free.cte("free").c.key))


def is_still(column: Column[Any], value: object) -> ColumnElement[bool]:
    """Compare; ``json`` has no equality of its own and is compared as ``jsonb``, whose null is read as None like SQL's."""
    if not isinstance(column.type, JSON):
        return column.is_not_distinct_from(value)
    # Imported only where it is needed: SQLAlchemy's dialect is large, and a host on SQLite has no use for it.
    from sqlalchemy.dialects.postgresql import JSONB  # noqa: PLC0415

    as_jsonb = cast(column, JSONB)
    if value is None:
        return or_(column.is_(null()), as_jsonb == cast(literal("null", Text), JSONB))
    return as_jsonb == cast(literal(value, column.type), JSONB)
