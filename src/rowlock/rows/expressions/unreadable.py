"""Which rows hold a time that Python cannot read, or a large value, and what a claim may read of
them.

The one idea: a database keeps times that Python has no value for (before the year 1, after the year
9999; on SQLite any text). A claim that read one would fail with all of its rows, and the next claim
would begin with the same row. So the claim asks the database which column it is, reads null
instead, and the pipeline sets that row aside.

Not here: keys (``leases/spoilt_keys.py``), and columns of the host's own, which fail
their own row's attempt.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Date,
    DateTime,
    Enum,
    Float,
    Integer,
    Interval,
    Numeric,
    String,
    Text,
    Time,
    Uuid,
    case,
    func,
    literal,
    literal_column,
    not_,
    null,
    or_,
)
from sqlalchemy.types import TypeEngine

from rowlock.rows.database_time import is_beyond_time, is_unreadable_time
from rowlock.rows.leased_table import LeasedTable

CLAIMED_BYTES_MAX = 2**15
"""A claim brings no value that is larger than this, in bytes; such a row is read when work on it
begins, so that what is held ahead of the workers is bounded by bytes, too."""
TEXT_CHARS_MAX = 1000
"""A text of at most so many characters, by its type, is not asked for its size."""
_BOUNDED = (Boolean, Date, DateTime, Enum, Float, Integer, Interval, Numeric, Time, Uuid)


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


def may_be_large(type_: TypeEngine[Any]) -> bool:
    """Return whether a value of the type, as the database resolves it, may be large."""
    length = getattr(type_, "length", None) if isinstance(type_, String) else None
    return not isinstance(type_, _BOUNDED) and not (length and length <= TEXT_CHARS_MAX)


def is_small(size: ColumnElement[int]) -> ColumnElement[bool]:
    """Return whether a value of this size, null for none, comes with a claim."""
    return func.coalesce(size, 0) <= literal_column(str(CLAIMED_BYTES_MAX), Integer)
