"""Rows that a pipeline declares: inserts those that are not there, and brings forward those whose
schedule has changed.

The one idea: no column remembers the schedule of a row, so the due time itself does. What an
outcome asks for, under some schedule, has that schedule's mark as its last three digits; times of a
schedule are as that gave them. A due time beyond the next occurrence stands if it has the mark.

It writes no lock column: what is inserted is free.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, insert, not_, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.rows.assignments import without_onupdate
from rowlock.rows.database_time import STAMP_AHEAD_MAX, database_now, is_beyond_time
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import Values, checked_values, resolve_now_placeholders

MARKS = 1000
"""A mark is this many microseconds at most, and not 0: what a cron gives, or a person writes."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class DeclaredRow(NamedTuple):
    next_after: Callable[[datetime], datetime]
    mark: int
    values: Values


def mark_of(schedule: object) -> int:
    kind = type(schedule)
    text = f"{kind.__qualname__} {getattr(schedule, '__dict__', '')}"
    if kind.__repr__ is not object.__repr__:
        text = repr(schedule)
    # Objects without a text of their own are shown by their address, which differs each time.
    text = _ADDRESS.sub("", text)
    return 1 + int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) % (MARKS - 1)


def marked(due_at: datetime, mark: int) -> datetime:
    return due_at.replace(microsecond=due_at.microsecond // MARKS * MARKS + mark)


async def ensure_rows(
    connection: AsyncConnection, leased: LeasedTable, rows: Mapping[Any, DeclaredRow]
) -> int:
    """Insert those `rows` that are not there, due at their next occurrence, and let those that are
    there be due then at the latest; returns how many were inserted. `IntegrityError` if another
    replica inserts the same rows at this moment.

    Rows that are leased or parked are left as they are, and the due time of an outcome under the
    same schedule stands, unless it was written by a clock that is far ahead of the present one.
    """
    now = await connection.scalar(select(database_now()))
    assert now is not None
    keys = await connection.scalars(select(leased.key).where(leased.key.in_(list(rows))))
    there = frozenset(keys.all())
    due_at, last = leased.column("due_at"), leased.column("last_processed_at")
    of_this_clock = or_(last.is_(None), last <= now + STAMP_AHEAD_MAX)
    times = select(leased.key, due_at).where(
        leased.key.in_(list(there)), due_at > now, of_this_clock, not_(is_beyond_time(due_at))
    )
    found = await connection.execute(times)
    resting = {key for key, at in found if at.microsecond % MARKS == rows[key].mark}
    for key, row in rows.items():
        if key in resting:
            continue
        due = row.next_after(now)
        if key not in there:
            resolved = resolve_now_placeholders(row.values, now)
            written = checked_values(leased, resolved, connection.dialect)
            if isinstance(first := written.get(due_at), datetime):
                written[due_at] = marked(first, row.mark)
            new = {due_at: due, **written, leased.key: key}
            await connection.execute(insert(leased.table).values(new))
            continue
        is_later = leased.column("lock_token").is_(None) & (due_at > due)
        statement = update(leased.table).where(leased.key == key, is_later)
        await connection.execute(statement.values(without_onupdate(leased, {due_at: due})))
    return len(rows.keys() - there)


async def not_ready(
    connection: AsyncConnection, leased: LeasedTable, keys: list[Any], *, ready: ColumnElement[bool]
) -> list[Any]:
    found = select(leased.key).where(leased.key.in_(keys), not_(ready))
    return list((await connection.scalars(found)).all())
