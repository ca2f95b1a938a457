"""Rows on PostgreSQL: its clock and its indexes.

``now()`` is the start of the transaction: an expiry computed from it can only be too early, which
is the safe side.

Source: PostgreSQL, "Date/Time Functions and Operators", "CREATE INDEX" and "ALTER INDEX".
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Executable,
    Text,
    TextClause,
    cast,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.compiler import SQLCompiler

from rowlock.rows.row_dialect import RowDialect

_FIRST_TIME = "TIMESTAMP WITH TIME ZONE '0001-01-01 00:00:00+00'"
_NO_MORE_TIME = "TIMESTAMP WITH TIME ZONE '10000-01-01 00:00:00+00'"


class PostgresqlRows(RowDialect):
    """Times are ``timestamptz``."""

    keeps_zones = True
    alters_defaults = True
    concurrently = {"postgresql_concurrently": True}  # noqa: RUF012 - read only

    def reads_utc(self, driver: str) -> bool:
        """Return whether it is asyncpg."""
        return driver == "asyncpg"

    def now(self, compiler: SQLCompiler) -> str:
        """Return the start of the transaction."""
        return "now()"

    def instant(self, compiler: SQLCompiler) -> str:
        """Return the clock's time."""
        return "clock_timestamp()"

    def due_at_once(self, compiler: SQLCompiler) -> str:
        """Return the time at which a row is inserted, or the column added."""
        return "now()"

    def time_after(self, seconds: str, compiler: SQLCompiler) -> str:
        """Add an interval."""
        return f"(now() + make_interval(secs => {seconds}))"

    def epoch_seconds(self, compiler: SQLCompiler) -> str:
        """Return the seconds, rounded down."""
        return "CAST(floor(extract(epoch FROM now())) AS bigint)"

    def is_same_time(self, one: str, other: str, compiler: SQLCompiler) -> str:
        """Compare."""
        return f"({one} IS NOT DISTINCT FROM {other})"

    def readable_time(self, written: str, compiler: SQLCompiler) -> str:
        """Return it as it is."""
        return written

    def is_no_time(self, written: str, compiler: SQLCompiler) -> str:
        """Compare with the first and the last time of Python's; asyncpg reads the infinite ones
        as those.
        """
        return (
            f"coalesce(({written} < {_FIRST_TIME} OR {written} >= {_NO_MORE_TIME}) AND"
            f" isfinite({written}), false)"
        )

    def is_unreadable_time(self, written: str, compiler: SQLCompiler) -> str:
        """Return whether it is no time; psycopg raises for the infinite ones, too."""
        if getattr(compiler.dialect, "driver", None) != "psycopg":
            return self.is_no_time(written, compiler)
        return f"coalesce({written} < {_FIRST_TIME} OR {written} >= {_NO_MORE_TIME}, false)"

    def is_beyond_time(self, written: str, compiler: SQLCompiler) -> str:
        """Compare with the last time of Python's."""
        return f"coalesce({written} >= {_NO_MORE_TIME}, false)"

    def type_of(self, column: Column[Any]) -> ColumnElement[str | None]:
        """Ask for the type of no row's value."""
        nothing = select(column).limit(0).scalar_subquery()
        return cast(func.pg_typeof(nothing), Text)

    def nulls_first(self, column: str) -> str:
        """Say so: they come last otherwise."""
        return f"{column} NULLS FIRST"

    def empty_object(self) -> str:
        """Return it with its type, as the catalogue has it."""
        return "'{}'::json"

    def insert_unless_there(
        self, model: type[Any], values: dict[str, Any], *, unique: str, where: TextClause
    ) -> Executable:
        """Insert; ON CONFLICT, do nothing."""
        free = (
            insert(model)
            .values(values)
            .on_conflict_do_nothing(index_elements=[unique], index_where=where)
        )
        return free.returning(model)

    def set_fillfactor(self, table: str, percent: int | None) -> str:
        """Return ALTER TABLE."""
        setting = "RESET (fillfactor)" if percent is None else f"SET (fillfactor = {percent})"
        return f"ALTER TABLE {table} {setting}"
