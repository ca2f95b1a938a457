"""When a row is due next, without losing what a service asked for meanwhile."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import case, literal

from rowlock.rows.lease_values import ColumnValues
from rowlock.rows.leased_table import LeasedTable


def due_unless_changed(leased: LeasedTable[Any], due_at: datetime, *, as_read: datetime | None) -> ColumnValues:
    """The row is due at `due_at`, unless somebody changed its due time since it was read: then that time stands.

    So a service that makes a row due while an attempt runs is heard, and no minimum interval delays its request.
    """
    column = leased.column("due_at")
    unchanged = column.is_not_distinct_from(literal(as_read, column.type))
    return {column: case((unchanged, literal(due_at, column.type)), else_=column)}
