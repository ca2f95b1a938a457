"""Apply: write an outcome and unlock the row in one guarded statement.

The guard is the row's key and this claim's token. If it does not match, somebody else continued with the row and nothing at all is
written. `RowWrite` says what to write; who decided that is not this room's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from sqlalchemy import Column, ColumnElement, select, type_coerce, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.leases.dialects import dialect_of
from rowlock.leases.item import PipelineItem
from rowlock.rows.database_time import UtcDateTime, database_now
from rowlock.rows.lease_values import ColumnValues
from rowlock.rows.leased_table import LeasedTable


class Written(Enum):
    """What became of a write."""

    APPLIED = "applied"
    STALE = "stale"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class RowWrite:
    """What to write to one row.

    Attributes:
        values: columns and their values, lock columns included.
        unless_changed: columns that must still have these values.
        when_changed: what is written instead if they have not.
    """

    values: ColumnValues
    unless_changed: dict[Column[Any], Any] = field(default_factory=dict)
    when_changed: ColumnValues = field(default_factory=dict)


async def database_time(connection: AsyncConnection) -> datetime:
    """Return the transaction's one time; joins the caller's transaction."""
    now = await connection.scalar(select(database_now()))
    assert isinstance(now, datetime)
    return now


async def apply(
    connection: AsyncConnection, leased: LeasedTable[Any], item: PipelineItem[Any], write: RowWrite
) -> Written:
    """Write under the guard; joins the caller's transaction."""
    guard = _guard(leased, item)
    unchanged = [_same(column, value) for column, value in write.unless_changed.items()]
    if await _update(connection, leased, [*guard, *unchanged], write.values):
        return Written.APPLIED
    if unchanged and await _update(connection, leased, guard, write.when_changed):
        return Written.CHANGED
    return Written.STALE


async def tokens_free_of_wait(
    connection: AsyncConnection, leased: LeasedTable[Any], items: Sequence[PipelineItem[Any]]
) -> frozenset[Any]:
    """Lock those rows of `items` that are still theirs and that nobody else has locked; joins the caller's transaction.

    Keeps a batch of writes from waiting for one row that somebody's long transaction holds.

    Returns:
        The tokens whose rows are locked now.
    """
    dialect = dialect_of(connection)
    mine = dialect.under_tokens(leased, [(item.id, item.lock_token) for item in items])
    token = leased.column("lock_token")
    return frozenset((await connection.scalars(select(token).where(dialect.without_waiting(leased, mine)))).all())


async def was_processed_at(
    connection: AsyncConnection, leased: LeasedTable[Any], item: PipelineItem[Any], times: frozenset[datetime]
) -> bool:
    """Whether the row was last processed at one of `times`; joins the caller's transaction.

    Settles a COMMIT whose answer was lost: each transaction stamps the row with its own time.
    """
    last = leased.column("last_processed_at")
    found = await connection.scalar(select(type_coerce(last, UtcDateTime)).where(leased.key == item.id))
    return found in times


def _guard(leased: LeasedTable[Any], item: PipelineItem[Any]) -> list[ColumnElement[bool]]:
    return [leased.key == item.id, leased.column("lock_token") == item.lock_token]


def _same(column: Column[Any], value: object) -> ColumnElement[bool]:
    return column.is_not_distinct_from(value)


async def _update(
    connection: AsyncConnection, leased: LeasedTable[Any], conditions: list[ColumnElement[bool]], values: ColumnValues
) -> bool:
    result = await connection.execute(update(leased.table).where(*conditions).values(values))
    return result.rowcount > 0
