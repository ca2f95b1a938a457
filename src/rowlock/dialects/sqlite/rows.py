"""Rows on SQLite: times are text.

There is no time type: times are text in the shape in which SQLAlchemy writes them (``YYYY-MM-DD
HH:MM:SS.ffffff``), in UTC, so they compare as text; the clock has milliseconds.

Source: SQLite, "Date And Time Functions", "UPSERT" and "ALTER TABLE".
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Executable, TextClause
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.sql.compiler import SQLCompiler

from rowlock.rows.row_dialect import RowDialect

_FORMAT = "'%Y-%m-%d %H:%M:%f000'"


class SqliteRows(RowDialect):
    """Times are text, in UTC."""

    keeps_zones = False
    alters_defaults = False
    concurrently = None

    def reads_utc(self, driver: str) -> bool:
        """Return False: what is read is naive."""
        return False

    def now(self, compiler: SQLCompiler) -> str:
        """Return the clock's time."""
        return f"strftime({_format(compiler)}, 'now')"

    def instant(self, compiler: SQLCompiler) -> str:
        """Return the clock's time."""
        return self.now(compiler)

    def due_at_once(self, compiler: SQLCompiler) -> str:
        """Return the epoch: a column that is added to a table that is there has a constant for
        its default.
        """
        return "'1970-01-01 00:00:00.000000'"

    def time_after(self, seconds: str, compiler: SQLCompiler) -> str:
        """Use a modifier of the time."""
        plus = _escaped("'%+.3f seconds'", compiler)
        return f"strftime({_format(compiler)}, 'now', printf({plus}, {seconds}))"

    def epoch_seconds(self, compiler: SQLCompiler) -> str:
        """Return the seconds, rounded down."""
        shape = _escaped("'%s'", compiler)
        return f"CAST(strftime({shape}, 'now') AS INTEGER)"

    def is_same_time(self, one: str, other: str, compiler: SQLCompiler) -> str:
        """Compare in one shape: what others wrote may be the same moment in another one."""
        shape = _format(compiler)
        return f"(strftime({shape}, {one}) IS strftime({shape}, {other}))"

    def readable_time(self, written: str, compiler: SQLCompiler) -> str:
        """Return it in the shape of ours; null if it is none."""
        return f"strftime({_format(compiler)}, {written})"

    def is_no_time(self, written: str, compiler: SQLCompiler) -> str:
        """Have SQLite read it."""
        return f"({written} IS NOT NULL AND strftime({_format(compiler)}, {written}) IS NULL)"

    def is_unreadable_time(self, written: str, compiler: SQLCompiler) -> str:
        """Return whether it is no time."""
        return self.is_no_time(written, compiler)

    def is_beyond_time(self, written: str, compiler: SQLCompiler) -> str:
        """Return whether it is none: there is no time that SQLite reads and Python does not."""
        return self.is_no_time(written, compiler)

    def nulls_first(self, column: str) -> str:
        """Return the column: nulls come first by themselves, and in an index SQLite refuses to
        be told.
        """
        return column

    def empty_object(self) -> str:
        """Return it as text."""
        return "'{}'"

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

    def set_fillfactor(self, table: str, percent: int | None) -> None:
        """Return None: a row is rewritten in its place."""


def _format(compiler: SQLCompiler) -> str:
    return _escaped(_FORMAT, compiler)


def _escaped(literal: str, compiler: SQLCompiler) -> str:
    # Some drivers read a percent sign as a placeholder; the compiler knows whether it has to be
    # written twice.
    return literal.replace("%", "%%") if compiler.preparer._double_percents else literal
