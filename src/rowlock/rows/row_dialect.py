"""What rows ask of each database: its clock and its times as SQL, its indexes, and the steps of a
migration.

Each method of `RowDialect` that gives SQL is called while a statement is compiled, with the SQL of
its operands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from sqlalchemy import Column, Executable, Text, TextClause, literal
from sqlalchemy.engine.default import StrCompileDialect
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ColumnElement

from rowlock.dialects import DialectPart, known_dialects


class RowDialect(ABC):
    """One database's SQL about rows. Nothing is executed here.

    Attributes:
        keeps_zones: whether a time is bound with its zone; otherwise without, in UTC.
        alters_defaults: whether the default of a column can be changed.
        concurrently: options by which ``op.create_index`` and ``op.drop_index`` let reads and
            writes go on; None if there are none.
    """

    keeps_zones: bool
    alters_defaults: bool
    concurrently: dict[str, Any] | None

    @abstractmethod
    def reads_utc(self, driver: str) -> bool:
        """Whether a driver, by SQLAlchemy's name, gives times in UTC: aware ones, and naive ones
        for the infinite.
        """

    @abstractmethod
    def now(self, compiler: SQLCompiler) -> str:
        """Return the time of the transaction: no later than its statements."""

    @abstractmethod
    def instant(self, compiler: SQLCompiler) -> str:
        """Return the time at this very moment."""

    @abstractmethod
    def due_at_once(self, compiler: SQLCompiler) -> str:
        """Return a time that is over, as a default that can be added to an existing table."""

    @abstractmethod
    def time_after(self, seconds: str, compiler: SQLCompiler) -> str:
        """Return `now` plus a number of seconds, which may be negative."""

    @abstractmethod
    def epoch_seconds(self, compiler: SQLCompiler) -> str:
        """Return `now` in whole seconds since the epoch."""

    @abstractmethod
    def is_same_time(self, one: str, other: str, compiler: SQLCompiler) -> str:
        """Return whether two times are the same moment, nulls being equal."""

    @abstractmethod
    def readable_time(self, written: str, compiler: SQLCompiler) -> str:
        """Return a written time in the shape that is read; null, or itself, if it is none."""

    @abstractmethod
    def is_no_time(self, written: str, compiler: SQLCompiler) -> str:
        """Return whether something is written that Python cannot read as a time, the infinite ones
        apart; never null.
        """

    @abstractmethod
    def is_unreadable_time(self, written: str, compiler: SQLCompiler) -> str:
        """Return whether the compiler's driver cannot read what is written; never null."""

    @abstractmethod
    def is_beyond_time(self, written: str, compiler: SQLCompiler) -> str:
        """Return whether what is written lies behind all times that Python reads, or is none; never
        null.
        """

    def type_of(self, column: Column[Any]) -> ColumnElement[str | None]:
        """Return the type that the table has for a column, without reading a row; null if types do
        not matter. Asked where the database `keeps_zones`.
        """
        return literal(None, Text)

    @abstractmethod
    def nulls_first(self, column: str) -> str:
        """Return a column of an index whose nulls come first."""

    @abstractmethod
    def empty_object(self) -> str:
        """Return an empty JSON object as a column's default, as the database gives that back."""

    @abstractmethod
    def insert_unless_there(
        self, model: type[Any], values: dict[str, Any], *, unique: str, where: TextClause
    ) -> Executable:
        """Return an INSERT that returns the row; none if a row of the partial unique index on
        `unique` is in its way.
        """

    @abstractmethod
    def set_fillfactor(self, table: str, percent: int | None) -> str | None:
        """Return the statement that leaves room in the pages of a quoted table; None where pages
        have no such room.
        """


ROWS: DialectPart[RowDialect] = DialectPart("rows", RowDialect)


def rows_of(compiler: SQLCompiler) -> RowDialect:
    """Return the dialect of the compiler's database.

    Raises:
        UnsupportedDialectError: rowlock does not know the database.
    """
    dialect = compiler.dialect
    # What `str(statement)` shows has no database; it looks as for the first one.
    is_shown = isinstance(dialect, StrCompileDialect)
    return ROWS.on(known_dialects()[0].name if is_shown else dialect.name)


def partial_index_options(where: ColumnElement[Any] | TextClause | None) -> dict[str, Any]:
    """Return the options by which ``Index`` has only the rows for which `where` is true, on every
    known database; all rows if it is None.
    """
    if where is None:
        return {}
    return {
        f"{dialect.name}_where": where
        for dialect in known_dialects()
        if dialect.has_partial_indexes
    }
