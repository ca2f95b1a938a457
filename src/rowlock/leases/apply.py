"""Apply: write an outcome and unlock the row in one guarded statement.

Many outcomes are applied in one transaction: their rows are locked first, then written shape by shape. The guard is
the row's key and this claim's token. If it does not match, somebody else continued with the row and nothing at all is
written. `RowWrite` says what to write; who decided that is not this room's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from sqlalchemy import Column, ColumnElement, Update, bindparam, select, type_coerce, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.leases.dialects import dialect_of
from rowlock.leases.item import PipelineItem
from rowlock.rows.assignments import (
    ColumnValues,
    column_of_parameter,
    parameters_of,
    set_clause,
    shape_of,
    varying,
)
from rowlock.rows.database_time import UtcDateTime, database_now
from rowlock.rows.leased_table import LeasedTable


class Written(Enum):
    """What became of a write.

    Parked is applied, too. Robbed: a related row was no longer held, so nothing was written and the row comes back for it.
    Unknown: the answer to its COMMIT was lost and the database did not come back to be asked.
    """

    APPLIED = "applied"
    PARKED = "parked"
    STALE = "stale"
    CHANGED = "changed"
    ROBBED = "related row lost"
    UNKNOWN = "unknown"

    @property
    def is_made(self) -> bool:
        """Whether the outcome is in the row."""
        return self in {Written.APPLIED, Written.PARKED}


@dataclass(frozen=True, slots=True)
class RelatedWrite:
    """What to write to one related row: columns and their values, lock columns included."""

    leased: LeasedTable[Any]
    key: Any
    values: ColumnValues


@dataclass(frozen=True, slots=True)
class RowWrite:
    """What to write to one row.

    Attributes:
        values: columns and their values, lock columns included.
        parks: whether they set the row aside.
        unless_changed: columns that must still have these values.
        when_changed: what is written instead if they have not.
        related: what is written to related rows with it.
    """

    values: ColumnValues
    parks: bool = False
    unless_changed: dict[Column[Any], Any] = field(default_factory=dict)
    when_changed: ColumnValues = field(default_factory=dict)
    related: Sequence[RelatedWrite] = ()

    @property
    def once_written(self) -> Written:
        """What became of the write if it was made."""
        return Written.PARKED if self.parks else Written.APPLIED


async def database_time(connection: AsyncConnection) -> datetime:
    """Return the transaction's one time; joins the caller's transaction."""
    now = await connection.scalar(select(database_now()))
    assert isinstance(now, datetime)
    return now


async def apply(
    connection: AsyncConnection, leased: LeasedTable[Any], item: PipelineItem[Any], *, write: RowWrite
) -> Written:
    """Write under the guard; joins the caller's transaction."""
    dialect = dialect_of(connection)
    unchanged = [dialect.is_still(column, value) for column, value in write.unless_changed.items()]
    if await _update(connection, leased, item, values=write.values, provided=unchanged):
        return write.once_written
    if unchanged and await _update(connection, leased, item, values=write.when_changed):
        return Written.CHANGED
    return Written.STALE


async def lock_for_apply(
    connection: AsyncConnection, leased: LeasedTable[Any], items: Sequence[PipelineItem[Any]]
) -> tuple[datetime | None, frozenset[Any]]:
    """Lock those rows of `items` that are still theirs and that nobody else has locked; joins the caller's transaction.

    Keeps a batch of writes from waiting for one row that somebody's long transaction holds.

    Returns:
        The transaction's one time (None if no row was locked), and the tokens whose rows are locked now.
    """
    mine = dialect_of(connection).under_tokens(leased, [(item.id, item.lock_token) for item in items])
    token = leased.column("lock_token").label("token")
    # Nothing to be said to SQLite, where the transaction has the write lock already.
    statement = select(token, database_now().label("now")).where(mine).with_for_update(key_share=True, skip_locked=True)
    rows = (await connection.execute(statement)).all()
    return (rows[0].now if rows else None), frozenset(row.token for row in rows)


async def apply_locked(
    connection: AsyncConnection, leased: LeasedTable[Any], writes: Sequence[tuple[PipelineItem[Any], RowWrite]]
) -> list[Written]:
    """Write to rows that `lock_for_apply` has locked in this transaction; those of one shape in one round trip.

    The lock is what makes the guard certain here: no driver tells how many rows each of many parameter sets has matched.
    """
    groups: dict[object, list[int]] = {}
    results = [write.once_written for _, write in writes]
    for index, (item, write) in enumerate(writes):
        if write.unless_changed:
            results[index] = await apply(connection, leased, item, write=write)
        else:
            groups.setdefault(shape_of(write.values), []).append(index)
    for indexes in groups.values():
        await _update_together(connection, leased, [writes[index] for index in indexes])
    return results


async def _update_together(
    connection: AsyncConnection, leased: LeasedTable[Any], group: Sequence[tuple[PipelineItem[Any], RowWrite]]
) -> None:
    """Write to locked rows what has one shape: by one statement if the values are the same, or the database takes arrays."""
    dialect, values = dialect_of(connection), group[0][1].values
    parameters = [parameters_of(write.values) for _, write in group]
    differing = varying(parameters)
    leases = [(item.id, item.lock_token) for item, _ in group]
    arrays = [(name, column_of_parameter(values, name).type, [each[name] for each in parameters]) for name in differing]
    if not differing:
        mine = dialect.under_tokens(leased, leases)
        await connection.execute(update(leased.table).where(mine).values(set_clause(values)), parameters[0])
    elif (rows := dialect.side_by_side(leased, leases, arrays)) is not None:
        given = {name: rows.c[name] for name in differing}
        held = (leased.key == rows.c.key, leased.column("lock_token") == rows.c.token)
        same = {name: value for name, value in parameters[0].items() if name not in given}
        await connection.execute(update(leased.table).where(*held).values(set_clause(values, given)), same)
    else:
        each = [_parameters(item, write.values) for item, write in group]
        await connection.execute(_statement(leased, values), each)


async def was_processed_at(
    connection: AsyncConnection, leased: LeasedTable[Any], item: PipelineItem[Any], *, times: frozenset[datetime]
) -> bool:
    """Whether the row was last processed at one of `times`; joins the caller's transaction.

    Settles a COMMIT whose answer was lost: each transaction stamps the row with its own time.
    """
    last = leased.column("last_processed_at")
    found = await connection.scalar(select(type_coerce(last, UtcDateTime)).where(leased.key == item.id))
    return found in times


async def _update(
    connection: AsyncConnection,
    leased: LeasedTable[Any],
    item: PipelineItem[Any],
    *,
    values: ColumnValues,
    provided: Sequence[ColumnElement[bool]] = (),
) -> bool:
    statement = _statement(leased, values).where(*provided)
    result = await connection.execute(statement, _parameters(item, values))
    return result.rowcount > 0


def _statement(leased: LeasedTable[Any], values: ColumnValues) -> Update:
    token = leased.column("lock_token")
    guard = [
        leased.key == bindparam("rowlock_key", type_=leased.key.type),
        token == bindparam("rowlock_token", type_=token.type),
    ]
    return update(leased.table).where(*guard).values(set_clause(values))


def _parameters(item: PipelineItem[Any], values: ColumnValues) -> dict[str, Any]:
    return {"rowlock_key": item.id, "rowlock_token": item.lock_token, **parameters_of(values)}
