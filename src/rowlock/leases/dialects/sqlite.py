"""Leases on SQLite: one writer at a time, so a claim may read first and write then.

``BEGIN IMMEDIATE`` takes the file's write lock before the first read, which keeps several processes on one file apart and never
fails half-way for want of an upgrade; WAL lets readers go on meanwhile. Within a process, keys that somebody holds through the
lockset of the table are left alone, as ``SKIP LOCKED`` does elsewhere.

SQLAlchemy's driver would begin a deferred transaction by itself before the first write; ours is begun by hand, so it does not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    Integer,
    Text,
    Update,
    and_,
    bindparam,
    case,
    func,
    literal,
    null,
    or_,
    select,
    true,
    tuple_,
    type_coerce,
    union_all,
    update,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import TableValuedAlias

from rowlock.leases.dialects.claims import Array, ClaimedRow, ClaimOrder, Position
from rowlock.locks.locker import get_locker
from rowlock.rows.database_time import UtcDateTime, database_now, same_time
from rowlock.rows.eligibility import is_returning, place_in_line
from rowlock.rows.lease_values import leased_values
from rowlock.rows.leased_table import LeasedTable, keeps_time


async def begin_writing(connection: AsyncConnection) -> None:
    """Take the write lock at once, switching the file to WAL the first time.

    A connection that is in a transaction already (the host's engine begins them itself) has read nothing yet: it starts over.
    """
    raw = await connection.get_raw_connection()
    driver_connection: Any = raw.driver_connection
    if driver_connection.in_transaction:
        await connection.exec_driver_sql("ROLLBACK")
    if "rowlock_wal" not in raw.info:
        # While somebody writes, the switch fails at once whatever the busy timeout; then a later transaction makes it.
        with suppress(OperationalError):
            await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            raw.info["rowlock_wal"] = True
    await connection.exec_driver_sql("BEGIN IMMEDIATE")


@asynccontextmanager
async def excluding(leased: LeasedTable[Any]) -> AsyncIterator[frozenset[Any]]:
    """Hold the lockset of the table still until the claim is committed."""
    lock, lockset = get_locker("sqlite").get_lockset(leased.table.name)
    async with lock:
        yield frozenset(lockset)


async def claim(connection: AsyncConnection, order: ClaimOrder, held: frozenset[Any]) -> list[ClaimedRow]:
    """Read what is due, then lease it, under the write lock taken at the start."""
    leased = order.leased
    token, attempts = leased.column("lock_token"), leased.column("attempts") if leased.has_schedule else null()
    in_line = select(
        leased.key.label("id"),
        case((leased.column("lock_owner") == order.owner, token), else_=None).label("dead_token"),
        is_returning(leased, order.owner).label("returns"),
        attempts.label("attempts"),
        type_coerce(place_in_line(leased), UtcDateTime).label("place"),
        type_coerce(place_in_line(leased), Text).label("place_as_written"),
        database_now().label("now"),
    ).where(order.eligible, leased.key.not_in(held) if held else true())
    first, *others = (in_line.where(part) for part in _parts_of_line(order))
    line = (
        union_all(first, *others).order_by("place_as_written", "id") if others else first.order_by(*order.oldest_first)
    )
    claimed = [
        ClaimedRow(
            id=row.id,
            lock_token=leased.new_token(returns=row.returns),
            lock_expires_at=row.now + order.lock_timeout,
            dead_token=row.dead_token,
            attempts=None if row.attempts is None else row.attempts + (row.dead_token is not None),
            place=row.place,
            position=Position(row.place_as_written, row.id),
        )
        for row in (await connection.execute(line.limit(order.limit))).all()
    ]
    if claimed:
        await connection.execute(_lease_each(order), [_parameters(row, order) for row in claimed])
    return claimed


def _parts_of_line(order: ClaimOrder) -> list[ColumnElement[bool]]:
    if order.after is None:
        return [true()]
    # As text, because times that others wrote in another shape are found by the very text alone.
    place, key = type_coerce(place_in_line(order.leased), Text), order.leased.key
    if order.after.place is None:
        return [and_(place.is_(None), key > order.after.key)]
    # Two ranges that are merged as they are read. Of a comparison of pairs SQLite would use the first column alone, if the key is
    # the rowid, and walk all rows of the place again.
    return [and_(place == order.after.place, key > order.after.key), place > order.after.place]


def _lease_each(order: ClaimOrder) -> Update:
    leased = order.leased
    values = leased_values(
        leased,
        token=bindparam("rowlock_token", type_=leased.column("lock_token").type),
        owner=order.owner,
        expires_at=bindparam("rowlock_expiry", type_=UtcDateTime),
    )
    if leased.has_schedule:
        values[leased.column("attempts")] = bindparam("rowlock_attempts", type_=Integer)
    return update(leased.table).where(leased.key == bindparam("rowlock_key", type_=leased.key.type)).values(values)


def _parameters(row: ClaimedRow, order: ClaimOrder) -> dict[str, Any]:
    parameters = {"rowlock_key": row.id, "rowlock_token": row.lock_token, "rowlock_expiry": row.lock_expires_at}
    return {**parameters, "rowlock_attempts": row.attempts} if order.leased.has_schedule else parameters


def under_tokens(leased: LeasedTable[Any], leases: Sequence[tuple[Any, Any]]) -> ColumnElement[bool]:
    """Find by key, then compare pairs: SQLite uses no index for a comparison of pairs."""
    token = leased.column("lock_token")
    return and_(leased.key.in_([key for key, _ in leases]), tuple_(leased.key, token).in_(leases))


def side_by_side(
    leased: LeasedTable[Any], leases: Sequence[tuple[Any, Any]], arrays: Sequence[Array]
) -> TableValuedAlias | None:
    """Return None: there are no arrays, and a statement that is executed many times costs little here."""
    return None


def without_waiting(
    leased: LeasedTable[Any], condition: ColumnElement[bool], *, limit: int | None = None
) -> ColumnElement[bool]:
    """Narrow to `limit` rows; with the write lock in hand there is nobody to wait for."""
    return condition if limit is None else leased.key.in_(select(leased.key).where(condition).limit(limit))


def is_still(column: Column[Any], value: object) -> ColumnElement[bool]:
    """Compare; times and JSON are text here, which others may write in another shape. JSON's null is read as None like SQL's."""
    if isinstance(column.type, JSON):
        if value is None:
            return or_(column.is_(null()), type_coerce(column, Text) == "null")
        return func.json(column) == func.json(literal(value, column.type))
    if keeps_time(column.type):
        return same_time(column, literal(value, column.type))
    return column.is_not_distinct_from(value)
