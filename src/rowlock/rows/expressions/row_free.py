"""Conditions in which a row has no part: they are the same for all rows, and can be asked once."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import ColumnElement
from sqlalchemy.sql.visitors import iterate

from rowlock.rows.leased_table import LeasedTable


def of_no_row(
    leased: LeasedTable, conditions: Iterable[ColumnElement[bool]]
) -> tuple[ColumnElement[bool], ...]:
    """Return those of `conditions` that mention no column of the table: they are the same for all
    rows.
    """
    return tuple(one for one in conditions if not _mentions(leased, one))


def _mentions(leased: LeasedTable, condition: ColumnElement[bool]) -> bool:
    # By its name: columns of mapped classes are annotated copies.
    tables = (getattr(element, "table", None) for element in iterate(condition))
    return any(getattr(table, "fullname", None) == leased.table.fullname for table in tables)
