"""What bulk writes and reads ask of each database: many rows of one table, any table, in one
statement.

The one idea: the number of rows is no part of the statement, so that it is compiled and prepared
once. Where the database has arrays, each column is one parameter; elsewhere the driver executes the
statement for each row, which there costs no round trip. What is read of many rows may come as
columns, too: each is one value, so drivers make no object of a row.

Nothing is executed here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

from sqlalchemy import Column, ColumnElement, Index, PrimaryKeyConstraint, Table, UniqueConstraint

from rowlock.dialects import DialectPart

StatementT = TypeVar("StatementT")
Unique: TypeAlias = Index | UniqueConstraint | PrimaryKeyConstraint
"""What keeps the values of a row apart from those of all others."""


class BulkDialect(ABC):
    """One database's way to write and to find many rows.

    Attributes:
        rows_max: most rows of one execution by callers that have very many: what the driver makes
            of them keeps the event loop busy for some 10 ms.
    """

    rows_max: ClassVar[int]

    @abstractmethod
    def insert(self, table: Table, names: Sequence[str]) -> Any:
        """Return an INSERT of any number of rows, in which columns without one of `names` get the
        database's defaults, and to which the caller may add ``ON CONFLICT`` as both of SQLAlchemy's
        dialects have it. Its result has the number of rows that were written.
        """

    @abstractmethod
    def insert_parameters(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
        """Return the parameters of `insert` for `rows`, one at least, each in the order of
        `names`.
        """

    @abstractmethod
    def insert_unless_there(self, table: Table, unique: Unique) -> Any:
        """Return an INSERT of one row, to be executed for many, which leaves a row as it is that
        has the same values in `unique`: an index, which may have some rows only, or a constraint
        that is checked at once.
        """

    @abstractmethod
    def is_among(self, column: Column[Any], parameter: str) -> ColumnElement[bool]:
        """Whether a column of texts or whole numbers has one of the values of `parameter`."""

    @abstractmethod
    def among_parameter(self, values: Sequence[Any]) -> Any:
        """Return the value of the parameter of `is_among`."""

    @abstractmethod
    def text_bytes(self, text: ColumnElement[Any]) -> ColumnElement[int]:
        """Return how many bytes a text has; null has none."""

    @abstractmethod
    def gather(self, columns: Sequence[ColumnElement[Any]]) -> list[ColumnElement[Any]] | None:
        """Return what selects each column of all rows of a subquery as one value, for `gathered`;
        None if a type has no such value.

        The rows of all of them stand in one order, that of the subquery as a rule; a caller that
        needs it has to check it.
        """

    @abstractmethod
    def gathered(self, value: Any) -> list[Any]:
        """Return the values of a column that was selected by `gather`."""

    @abstractmethod
    def cannot_gather(self, error: Exception) -> bool:
        """Return whether a statement failed since a value of `gather` was too large for the
        database, or of a kind that it cannot gather.
        """


BULK: DialectPart[BulkDialect] = DialectPart("bulk", BulkDialect)

_KEPT = "rowlock_kept_statements"


def kept_statement(table: Table, key: Hashable, build: Callable[[], StatementT]) -> StatementT:
    """Return what `build` gives, built once for each `key`, of which there are few, and kept as
    long as the table: building a statement takes longer than executing it. What differs from one
    execution to the next is bound by name.
    """
    # Not in its `info`, which Alembic writes into migrations.
    kept = vars(table).setdefault(_KEPT, {})
    if key not in kept:
        kept[key] = build()
    statement: StatementT = kept[key]
    return statement
