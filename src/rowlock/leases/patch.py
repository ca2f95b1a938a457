"""Patch: write something to rows while their leases go on, under the same guard as an outcome.

For what must be seen before the work is done, such as a state, a progress, a stage that need not be
repeated. It writes no lock column, ends nothing and counts nothing. Many are written in one
transaction, like outcomes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic

from sqlalchemy import bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm.attributes import set_committed_value

from rowlock.leases.apply import database_time, lock_for_apply
from rowlock.leases.item import PipelineItem
from rowlock.leases.lease_dialect import LEASES
from rowlock.rows.assignments import ColumnValues
from rowlock.rows.leased_table import LeasedTable, ModelT
from rowlock.rows.updates import Values, checked_values, column_values, resolve_now_placeholders


@dataclass(frozen=True, slots=True, eq=False)
class Patch(Generic[ModelT]):
    """What to write to one row.

    Attributes:
        item: whose token guards it.
        values: update map; `NOW_PLACEHOLDER` stands for the transaction's time.
        unless_changed: columns that must still have these values.
    """

    item: PipelineItem[ModelT]
    values: Mapping[Any, Any]
    unless_changed: Values


async def write_patches(
    connection: AsyncConnection, leased: LeasedTable, patches: Sequence[Patch[ModelT]]
) -> list[ColumnValues | None]:
    """Write patches of different rows, except to those that somebody has locked; joins the caller's
    transaction.

    Returns:
        What was written, for each; None if nothing was, since the row was locked or its guard did
        not match.
    """
    now, locked = await lock_for_apply(connection, leased, [each.item for each in patches])
    if now is None:
        return [None] * len(patches)
    return [
        await _write(connection, leased, each, now=now) if each.item.lock_token in locked else None
        for each in patches
    ]


async def write_patch(
    connection: AsyncConnection, leased: LeasedTable, patch: Patch[ModelT]
) -> ColumnValues | None:
    """Write one patch, and wait for whoever has locked the row; joins the caller's transaction.

    Returns:
        What was written; None if the guard did not match.
    """
    return await _write(connection, leased, patch, now=await database_time(connection))


async def _write(
    connection: AsyncConnection, leased: LeasedTable, patch: Patch[ModelT], *, now: datetime
) -> ColumnValues | None:
    # Trust is asked as late as it can be: the transaction may have waited for its turn.
    if not patch.item.is_trusted():
        return None
    resolved = resolve_now_placeholders(patch.values, now)
    written = checked_values(leased, resolved, connection.dialect)
    token, unchanged = leased.column("lock_token"), LEASES.of(connection).is_unchanged
    statement = (
        update(leased.table)
        .where(leased.key == bindparam("rowlock_key", patch.item.id, type_=leased.key.type))
        .where(token == bindparam("rowlock_token", patch.item.lock_token, type_=token.type))
        .where(
            *(
                unchanged(column, value)
                for column, value in column_values(leased, patch.unless_changed).items()
            )
        )
        .values(written)
    )
    return written if (await connection.execute(statement)).rowcount > 0 else None


async def is_unchanged(
    connection: AsyncConnection, leased: LeasedTable, item: PipelineItem[ModelT], *, values: Values
) -> bool:
    """Whether the row of `item` is still under its token and has `values`; joins the caller's
    transaction.
    """
    dialect = LEASES.of(connection)
    found = (
        select(leased.key)
        .where(leased.key == item.id, leased.column("lock_token") == item.lock_token)
        .where(
            *(
                dialect.is_unchanged(column, value)
                for column, value in column_values(leased, values).items()
            )
        )
    )
    return (await connection.execute(found)).first() is not None


def show(leased: LeasedTable, row: object, written: ColumnValues) -> None:
    """Show in `row` what was written and committed, as if it had been read so."""
    for column, value in written.items():
        set_committed_value(row, leased.mapper.get_property_by_column(column).key, value)
