"""Rows that a pipeline declares: inserts those that are not there, and brings forward those whose
schedule has changed.

It writes no lock column: what is inserted is free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, insert, not_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.rows.assignments import without_onupdate
from rowlock.rows.database_time import database_now
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import Values, column_values, resolve_now_placeholders

NextAfter = Callable[[datetime], datetime]
"""Gives the first occurrence after a time."""


async def ensure_rows(
    connection: AsyncConnection,
    leased: LeasedTable,
    rows: Mapping[Any, tuple[NextAfter, Values]],
) -> int:
    """Insert those `rows` that are not there, due at their next occurrence, and let those that are
    there be due then at the latest; joins the caller's transaction.

    Rows that are leased or parked are left as they are.

    Returns:
        How many were inserted.

    Raises:
        IntegrityError: another replica inserts the same rows at this moment, or the database
            refuses a value.
    """
    now = await connection.scalar(select(database_now()))
    assert now is not None
    found = await connection.scalars(select(leased.key).where(leased.key.in_(list(rows))))
    there = frozenset(found.all())
    due_at = leased.column("due_at")
    inserted = 0
    for key, (next_after, values) in rows.items():
        due = next_after(now)
        if key not in there:
            written = column_values(leased, resolve_now_placeholders(values, now))
            new = {due_at: due, **written, leased.key: key}
            await connection.execute(insert(leased.table).values(new))
            inserted += 1
            continue
        is_later = leased.column("lock_token").is_(None) & (due_at > due)
        statement = update(leased.table).where(leased.key == key, is_later)
        await connection.execute(statement.values(without_onupdate(leased, {due_at: due})))
    return inserted


async def not_ready(
    connection: AsyncConnection, leased: LeasedTable, keys: list[Any], *, ready: ColumnElement[bool]
) -> list[Any]:
    """Return the keys of rows that no claim would find; joins the caller's transaction."""
    found = select(leased.key).where(leased.key.in_(keys), not_(ready))
    return list((await connection.scalars(found)).all())
