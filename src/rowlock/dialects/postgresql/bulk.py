"""Bulk writes and reads on PostgreSQL: each column is one array, and ``unnest`` makes rows of them
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    Column,
    ColumnElement,
    Integer,
    Table,
    any_,
    bindparam,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import insert

from rowlock.database.bulk_dialect import BulkDialect, Unique, kept_statement
from rowlock.dialects.postgresql.arrays import unnested
from rowlock.dialects.postgresql.column_kinds import fits_array, unbounded

_PREFIX = "bulk_"
_PROGRAM_LIMIT_EXCEEDED = "54000"


class PostgresqlBulk(BulkDialect):
    """One round trip, and one plan for any number of rows."""

    rows_max = 5_000

    def insert(self, table: Table, names: Sequence[str]) -> Any:
        """Return ``INSERT ... SELECT ... FROM unnest(...)``."""
        return kept_statement(table, (self, *names), lambda: self._insert(table, names))

    def _insert(self, table: Table, names: Sequence[str]) -> Any:
        slots = [(name, table.c[name].type) for name in names]
        given = unnested(slots, name="bulk", prefix=_PREFIX)
        rows = select(*(given.c[name] for name in names))
        statement = insert(table).from_select(list(names), rows, include_defaults=False)
        # Otherwise SQLAlchemy asks for the number of an UPDATE and a DELETE only, and one driver
        # has forgotten it by then.
        return statement.execution_options(preserve_rowcount=True)

    def insert_parameters(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
        """Return a list for each column."""
        columns = zip(*rows, strict=True)
        return {_PREFIX + name: list(column) for name, column in zip(names, columns, strict=True)}

    def insert_unless_there(self, table: Table, unique: Unique) -> Any:
        """Insert; ON CONFLICT, do nothing."""
        where = unique.dialect_options["postgresql"].get("where")
        return insert(table).on_conflict_do_nothing(
            index_elements=[*unique.columns], index_where=where
        )

    def is_among(self, column: Column[Any], parameter: str) -> ColumnElement[bool]:
        """Compare with any value of an array."""
        given = bindparam(parameter, type_=ARRAY(unbounded(column.type)))
        return column == any_(given)

    def among_parameter(self, values: Sequence[Any]) -> Any:
        """Return a list."""
        return list(values)

    def text_bytes(self, text: ColumnElement[Any]) -> ColumnElement[int]:
        """Ask for its octets, for which what is stored elsewhere is not read."""
        return func.coalesce(func.octet_length(text), 0, type_=Integer())

    def gather(self, columns: Sequence[ColumnElement[Any]]) -> list[ColumnElement[Any]] | None:
        """Make an array of each column."""
        if not all(fits_array(column.type) for column in columns):
            return None
        return [func.array_agg(column, type_=ARRAY(column.type)) for column in columns]

    def gathered(self, value: Any) -> list[Any]:
        """Return the array; that of no rows is null."""
        return value or []

    def cannot_gather(self, error: Exception) -> bool:
        """Return whether an array would have more than 1 GB."""
        raised = getattr(error, "orig", None)
        code = getattr(raised, "sqlstate", None) or getattr(raised, "pgcode", None)
        return str(code) == _PROGRAM_LIMIT_EXCEEDED
