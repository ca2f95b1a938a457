"""Bulk writes on SQLite: one statement, executed for each row within the process; and values to be
looked up as one JSON text, so that their number is no part of the statement.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Index, Table, Text, bindparam, column, func, select
from sqlalchemy.dialects.sqlite import insert

from rowlock.database.bulk_dialect import BulkDialect


class SqliteBulk(BulkDialect):
    """One statement, executed many times."""

    def insert(self, table: Table, names: Sequence[str]) -> Any:
        """Return ``INSERT ... VALUES (?, ...)``."""
        return insert(table).values({name: bindparam(f"bulk_{name}") for name in names})

    def insert_parameters(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
        """Return a mapping for each row."""
        slots = [f"bulk_{name}" for name in names]
        return [dict(zip(slots, row, strict=True)) for row in rows]

    def insert_unless_there(self, table: Table, unique: Index) -> Any:
        """Insert; ON CONFLICT, do nothing."""
        where = unique.dialect_options["sqlite"]["where"]
        return insert(table).on_conflict_do_nothing(
            index_elements=[*unique.columns], index_where=where
        )

    def is_among(self, column: Column[Any], parameter: str) -> ColumnElement[bool]:
        """Compare with the values of a JSON array."""
        return column.in_(select(_values(parameter)))

    def among_parameter(self, values: Sequence[Any]) -> Any:
        """Return a JSON array."""
        return json.dumps(list(values))


def _values(parameter: str) -> ColumnElement[Any]:
    given = func.json_each(bindparam(parameter, type_=Text())).table_valued(column("value"))
    return given.c.value
