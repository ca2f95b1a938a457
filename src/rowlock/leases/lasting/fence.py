"""Fence: write to many leased rows while their leases go on, each under its own token, as part of a
larger transaction.

For work that writes as it goes: what else the transaction writes counts for those rows alone that
are fenced by it. It writes what it is given and no lock column; `PipelineItem.guard` does the same
for one row without writing it.

Source: fencing tokens, M. Kleppmann, "How to do distributed locking" (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.leases.apply import RowWrite, apply_locked, lock_for_apply
from rowlock.leases.compare import compare_many
from rowlock.leases.item import PipelineItem
from rowlock.leases.patch import is_unchanged
from rowlock.rows.assignments import ColumnValues
from rowlock.rows.leased_table import LeasedTable


@dataclass(frozen=True, slots=True)
class Fenced:
    """What to write to one row.

    Attributes:
        item: whose token fences it.
        values: columns and what they become; none of them a lock column.
        unless_changed: columns that must still have these values.
    """

    item: PipelineItem[Any]
    values: ColumnValues
    unless_changed: ColumnValues = field(default_factory=dict)


async def fence(
    connection: AsyncConnection,
    leased: LeasedTable,
    rows: Sequence[Fenced],
    *,
    waits: bool = False,
) -> frozenset[Any]:
    """Lock and write those of `rows` that are held under their tokens and unchanged; joins the
    caller's transaction, until whose end they stay so.

    Rows of one shape are written in one round trip.

    Args:
        connection: in a transaction that writes: on SQLite it has the write lock already, since
            reading rows locks none there.
        leased: the table of all of them.
        rows: of different items.
        waits: for rows that another transaction has locked; otherwise those are not fenced.

    Returns:
        The tokens of the rows that are fenced. Whatever else the transaction writes for another row
        must be rolled back.
    """
    _, locked = await lock_for_apply(connection, leased, [row.item for row in rows], waits=waits)
    # Trust is asked as late as it can be: rows may have been waited for.
    held = [row for row in rows if row.item.lock_token in locked and row.item.is_trusted()]
    held = await _unchanged(connection, leased, held)
    writes = [(row.item, RowWrite(row.values)) for row in held if row.values]
    await apply_locked(connection, leased, writes)
    return frozenset(row.item.lock_token for row in held)


async def _unchanged(
    connection: AsyncConnection, leased: LeasedTable, rows: list[Fenced]
) -> list[Fenced]:
    as_read = [((row.item.id, row.item.lock_token), row.unless_changed) for row in rows]
    compared = await compare_many(connection, leased, as_read)
    unchanged = []
    for number, row in enumerate(rows):
        is_same = compared.get(number, not row.unless_changed)
        if not is_same and number not in compared:
            # Of a shape that no other row has, or of types that are not compared together.
            values = dict[Any, Any](row.unless_changed)
            is_same = await is_unchanged(connection, leased, row.item, values=values)
        if is_same:
            unchanged.append(row)
    return unchanged
