"""Which rows hold a time that Python cannot read, and what a claim may read of them.

The one idea: a database keeps times that Python has no value for (before the year 1, after the year
9999; on SQLite any text). A claim that read one would fail with all of its rows, and the next claim
would begin with the same row. So the claim asks the database which column it is, reads null
instead, and the pipeline sets that row aside.

Not here: keys (``dialects/sqlite/written_keys.py``), and columns of the host's own, which fail
their own row's attempt.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Integer,
    SmallInteger,
    Text,
    case,
    literal,
    not_,
    null,
    or_,
)

from rowlock.rows.database_time import is_beyond_time, is_unreadable_time
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.model_check import innermost

SMALL_MAX, INTEGER_MAX = 2**15 - 1, 2**31 - 1


def times_read(leased: LeasedTable) -> dict[str, Column[Any]]:
    """Return by attribute name the columns of times that a claim or an attempt reads, and does
    not write before.
    """
    names = (
        ("due_at", "last_processed_at", "deadline_at")
        if leased.has_schedule
        else ("last_processed_at",)
    )
    return {name: leased.column(name) for name in names}


def unreadable_column(leased: LeasedTable) -> ColumnElement[str | None]:
    """Return the attribute name of a column that cannot be read, as SQL; null if all can."""
    found = [
        (_is_unreadable(leased, column), literal(name, Text))
        for name, column in times_read(leased).items()
    ]
    return case(*found, else_=null())


def _is_unreadable(leased: LeasedTable, column: Column[Any]) -> ColumnElement[bool]:
    if leased.has_schedule:
        return is_unreadable_time(column)
    # A stamp behind all times would make the row due for ever, and stay.
    return or_(is_unreadable_time(column), is_beyond_time(column))


def if_readable(time: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a time, or null if it cannot be read."""
    return case((not_(is_unreadable_time(time)), time))


def attempts_max(leased: LeasedTable) -> int:
    """Return the most attempts that are counted: one more fits into the column."""
    type_ = innermost(leased.column("attempts").type)
    return (SMALL_MAX if isinstance(type_, SmallInteger) else INTEGER_MAX) - 1


def attempts_counted(leased: LeasedTable, more: ColumnElement[int]) -> ColumnElement[int]:
    """Return the attempts of a row and one that died, 0 or 1; at the most that the column
    counts, they stay there.
    """
    attempts, most = leased.column("attempts"), attempts_max(leased)
    return case((attempts >= most, literal(most, Integer)), else_=attempts + more)
