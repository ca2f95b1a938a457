"""Patch and fence: write something to rows while their leases go on, under the same guard as an
outcome.

A patch is for what must be seen before the work is done, such as a state, a progress, a stage that
need not be repeated. A fence is for work that writes as it goes, as part of a larger transaction:
what else the transaction writes counts for those rows alone that are fenced by it. Neither writes a
lock column, ends anything or counts anything. `PipelineItem.guard` fences one row without writing
it.

Source: fencing tokens, M. Kleppmann, "How to do distributed locking" (2016).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm.attributes import set_committed_value

from rowlock.dialects.contract import LEASES
from rowlock.leases.acquire import held_under
from rowlock.leases.apply import RowWrite, apply_locked, lock_for_apply, unchanged_of
from rowlock.leases.item import PipelineItem
from rowlock.rows.assignments import ColumnValues
from rowlock.rows.leased_table import LeasedTable, ModelT
from rowlock.rows.updates import Values, checked_values, column_values, resolve_now_placeholders


@dataclass(frozen=True, slots=True, eq=False)
class Patch(Generic[ModelT]):
    """What to write to one row.

    Attributes:
        values: update map; `NOW_PLACEHOLDER` stands for the transaction's time.
        unless_changed: columns that must still have these values.
    """

    item: PipelineItem[ModelT]
    values: Mapping[Any, Any]
    unless_changed: Values


async def write_patches(
    connection: AsyncConnection,
    leased: LeasedTable,
    patches: Sequence[Patch[ModelT]],
    *,
    waits: bool = False,
) -> list[ColumnValues | None]:
    """Write patches of different rows; joins the caller's transaction. Returns what was written of
    each; None if it was locked (unless it `waits`), or its guard did not match.
    """
    items = [each.item for each in patches]
    now, locked = await lock_for_apply(connection, leased, items, waits=waits)
    if now is None:
        return [None] * len(patches)
    rows = []
    for each in patches:
        resolved = resolve_now_placeholders(each.values, now)
        values = checked_values(leased, resolved, connection.dialect)
        rows.append(Fenced(each.item, values, column_values(leased, each.unless_changed)))
    written = await _write_locked(connection, leased, rows, locked=locked)
    return [row.values if row.item.lock_token in written else None for row in rows]


async def is_unchanged(
    connection: AsyncConnection, leased: LeasedTable, item: PipelineItem[ModelT], *, values: Values
) -> bool:
    """Whether the row of `item` still has its token and `values`; joins the transaction."""
    dialect = LEASES.of(connection)
    given = column_values(leased, values)
    unchanged = (dialect.is_unchanged(column, value) for column, value in given.items())
    ours = held_under(leased, [item.id], item.lock_token)
    found = await connection.execute(select(leased.key).where(ours, *unchanged))
    return found.first() is not None


def show(leased: LeasedTable, row: object, written: ColumnValues) -> None:
    """Set in `row` what was written and committed, as if it had been read so."""
    for column, value in written.items():
        set_committed_value(row, leased.mapper.get_property_by_column(column).key, value)


@dataclass(frozen=True, slots=True)
class Fenced:
    """What to write to one row, guarded by the token of `item`: no lock column, and only if the
    columns of `unless_changed` still have their values.
    """

    item: PipelineItem[Any]
    values: ColumnValues
    unless_changed: ColumnValues = field(default_factory=dict)


async def fence(
    connection: AsyncConnection, leased: LeasedTable, rows: Sequence[Fenced], *, waits: bool = False
) -> frozenset[Any]:
    """Lock and write those of `rows` that are held under their tokens and unchanged; joins the
    caller's transaction, until whose end they stay so.

    The transaction writes: on SQLite it has the write lock already, since reading rows locks none
    there. Rows that another transaction has locked are not fenced, unless it `waits` for them.

    Returns:
        The tokens of the rows that are fenced. Whatever else the transaction writes for another row
        must be rolled back.
    """
    _, locked = await lock_for_apply(connection, leased, [row.item for row in rows], waits=waits)
    return await _write_locked(connection, leased, rows, locked=locked)


async def _write_locked(
    connection: AsyncConnection,
    leased: LeasedTable,
    rows: Sequence[Fenced],
    *,
    locked: Collection[Any],
) -> frozenset[Any]:
    # Trust is asked as late as it can be: rows may have been waited for.
    held = [row for row in rows if row.item.lock_token in locked and row.item.is_trusted()]
    as_read = [((row.item.id, row.item.lock_token), row.unless_changed) for row in held]
    unchanged = await unchanged_of(connection, leased, as_read)
    held = [row for number, row in enumerate(held) if number in unchanged]
    writes = [(row.item, RowWrite(row.values)) for row in held if row.values]
    await apply_locked(connection, leased, writes)
    return frozenset(row.item.lock_token for row in held)
