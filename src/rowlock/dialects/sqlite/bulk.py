"""Bulk writes and reads on SQLite: one statement, executed for each row within the process; and
values to be looked up, or read, as one JSON text, so that their number is no part of the statement.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    LargeBinary,
    SmallInteger,
    String,
    Table,
    Text,
    bindparam,
    cast,
    column,
    func,
    select,
)
from sqlalchemy.dialects.sqlite import insert

from rowlock.database.bulk_dialect import BulkDialect, Unique


class SqliteBulk(BulkDialect):
    """One statement, executed many times."""

    rows_max = 1_000

    def insert(self, table: Table, names: Sequence[str]) -> Any:
        """Return ``INSERT ... VALUES (?, ...)``."""
        statement = insert(table).values({name: bindparam(f"bulk_{name}") for name in names})
        return statement.execution_options(preserve_rowcount=True)

    def insert_parameters(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
        """Return a mapping for each row."""
        slots = [f"bulk_{name}" for name in names]
        return [dict(zip(slots, row, strict=True)) for row in rows]

    def insert_unless_there(self, table: Table, unique: Unique) -> Any:
        """Insert; ON CONFLICT, do nothing."""
        where = unique.dialect_options["sqlite"].get("where")
        return insert(table).on_conflict_do_nothing(
            index_elements=[*unique.columns], index_where=where
        )

    def is_among(self, column: Column[Any], parameter: str) -> ColumnElement[bool]:
        """Compare with the values of a JSON array."""
        return column.in_(select(_values(parameter)))

    def among_parameter(self, values: Sequence[Any]) -> Any:
        """Return a JSON array."""
        return json.dumps(list(values))

    def text_bytes(self, text: ColumnElement[Any]) -> ColumnElement[int]:
        """Count the bytes of the text; its length would be characters."""
        return func.coalesce(func.length(cast(text, LargeBinary)), 0, type_=Integer())

    def gather(self, columns: Sequence[ColumnElement[Any]]) -> list[ColumnElement[Any]] | None:
        """Make a JSON array of each column, which has whole numbers and texts as they are."""
        if not all(type(column.type) in _AS_THEY_ARE for column in columns):
            return None
        return [func.json_group_array(column, type_=Text()) for column in columns]

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of the JSON array."""
        values: list[Any] = json.loads(value)
        return values

    def cannot_gather(self, error: Exception) -> bool:
        """Return whether a text would be longer than the database was built for, or a column of
        texts has bytes.
        """
        raised = getattr(error, "orig", None)
        return isinstance(raised, sqlite3.DataError) or "JSON cannot hold" in str(raised)


_AS_THEY_ARE = frozenset({Integer, BigInteger, SmallInteger, String, Text})


def _values(parameter: str) -> ColumnElement[Any]:
    given = func.json_each(bindparam(parameter, type_=Text())).table_valued(column("value"))
    return given.c.value
