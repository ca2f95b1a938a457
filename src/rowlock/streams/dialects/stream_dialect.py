"""What streams and folds ask of each database: who may still add rows below those that are visible,
whether a column gives positions, and rows of the host's table by their keys, many at once; and
statements over many rows: queries whose rows are wanted as columns, and writes and deletions, some
rows at once.

A row of a fold has a *mark*, a text that is another one after every write of the row. What is
computed from a row is written under its mark, so a change of the host's in between is never
overwritten.

Where the database has a value for a whole column, a row costs neither the driver nor SQLAlchemy an
object, which took longer than all else that happened to a row. And what a driver makes of the rows
of a statement is made within the event loop, which is busy for as long: between two slices, bounded
by rows and by bytes, all else has its turn.

Every method joins the transaction of the connection that is its first parameter, and never ends it.

Source: optimistic concurrency control, H. T. Kung, J. T. Robinson (1981).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    Select,
    Table,
    delete,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from rowlock.spi import ROWS, DialectPart, RowDialect
from rowlock.streams.computing.encoding import slices
from rowlock.streams.computing.hashing import BUCKETS, BucketRange, merged
from rowlock.streams.inputs.candidates import OpenWriter

Rows: TypeAlias = Sequence[Sequence[Any]]
"""Rows, each as the values of some columns."""


def has_all(ranges: Iterable[BucketRange]) -> bool:
    """Return whether `ranges` have all buckets together."""
    return merged(ranges) == [(0, BUCKETS)]


def in_ranges(bucket: Column[Any], ranges: Iterable[BucketRange]) -> ColumnElement[bool]:
    """Return whether a bucket is in one of `ranges`; of all of them, nothing is asked."""
    parts = merged(ranges)
    if parts == [(0, BUCKETS)]:
        return true()
    return or_(*(bucket.between(lo, hi - 1) for lo, hi in parts))


class GatheredQuery:
    # What differs from one execution to the next is bound by name, and no two of its columns have
    # the same name.

    def __init__(self, query: Select[Any]) -> None:
        self._query = query
        self._gathering: dict[RowDialect, Select[Any] | None] = {}

    async def columns(
        self, connection: AsyncConnection, given: Mapping[str, Any]
    ) -> list[Sequence[Any]]:
        """Return the columns of the rows; joins the caller's transaction."""
        # The rows stand in one order in all of them, which need not be that of the query.
        dialect = ROWS.of(connection)
        if dialect not in self._gathering:
            self._gathering[dialect] = _gathering(dialect, self._query)
        statement = self._gathering[dialect]
        if statement is None:
            rows = (await connection.execute(self._query, given)).all()
            return list(zip(*rows, strict=True)) or [()] * len(self._query.selected_columns)
        try:
            row = (await connection.execute(statement, given)).one()
        except DBAPIError as error:
            if dialect.cannot_gather(error):
                self._gathering[dialect] = None
            raise
        return [dialect.gathered(value) for value in row]


def _gathering(dialect: RowDialect, query: Select[Any]) -> Select[Any] | None:
    rows = query.subquery("gathered_rows")
    columns = dialect.gather(list(rows.c))
    return None if columns is None else select(*columns).select_from(rows)


# ---------------------------------------------------------------- sliced writes


WRITTEN_BYTES_MAX: Final = 4_194_304
"""Most bytes of the texts of one slice, unless one row has more."""


async def write_rows(
    connection: AsyncConnection, statement: Any, *, names: Sequence[str], rows: Rows, text: str
) -> None:
    """Execute an INSERT of `RowDialect.insert` for rows, slice by slice."""
    # `text` is the name of the column that may be long.
    for parameters in sliced(ROWS.of(connection), names, rows, text=text):
        await connection.execute(statement, parameters)


def sliced(dialect: RowDialect, names: Sequence[str], rows: Rows, *, text: str) -> Iterator[Any]:
    """Yield the parameters of an INSERT, slice by slice; as `write_rows` has them."""
    place = names.index(text)
    sizes = [len(row[place] or "") for row in rows]
    for some in slices(sizes, rows_max=dialect.rows_max, bytes_max=WRITTEN_BYTES_MAX):
        yield dialect.insert_parameters(names, rows[some])


async def delete_some(
    connection: AsyncConnection,
    table: Table,
    limit: int,
    *which: ColumnElement[bool],
    by: Column[Any] | None = None,
) -> int:
    """Delete rows, `limit` at most, in the order of `by`; return how many."""
    key = list(table.primary_key)
    some = select(*key).where(*which).order_by(by).limit(limit)
    # Asked again of the row itself: it may have been written since the list was made.
    gone = delete(table).where(*which, tuple_(*key).in_(some))
    return (await connection.execute(gone)).rowcount


# ---------------------------------------------------------------- streams


def python_type(type_: TypeEngine[Any]) -> type:
    """Return of which class the values of a column are; `object` if its type does not say."""
    try:
        return type_.python_type
    except NotImplementedError:
        return object


POSITION: Final = BigInteger().with_variant(Integer, "sqlite")
"""The type of positions; SQLite counts up only in a column that it calls INTEGER."""
KEEPS_COUNTING: Final[dict[str, Any]] = {"sqlite_autoincrement": True}
"""Options of a table: without them SQLite assigns the highest position again once its row was
deleted.
"""


def keep_counting(table: Table) -> None:
    """Give a table that is there already what `KEEPS_COUNTING` asks for."""
    table.dialect_options["sqlite"]["autoincrement"] = True


NO_COLUMN: Final = "there is no such column in the database"

LOGGED: Final = ("stream", "bucket", "key", "payload")
"""The columns of a log that are given to an event; the last one may be long."""
REFUSES: Final = "events are neither changed nor deleted, add one that corrects it"


class StreamDialect(ABC):
    @abstractmethod
    async def check_position(self, connection: AsyncConnection, column: Column[Any]) -> str:
        """Return the name of what assigns the values of `column`, for `last_assigned`; ModelError
        if the database does not, or not in an order that can be followed.
        """

    @abstractmethod
    async def problem_with_number(self, connection: AsyncConnection, column: Column[Any]) -> str:
        """Return why `column` keeps no whole numbers in the database; empty: it does."""

    @abstractmethod
    async def last_assigned(
        self, connection: AsyncConnection, column: Column[Any], counter: str
    ) -> int:
        """Return a position above which all later rows will be, and no lower than any that was
        assigned so far; 0 if there was none. ConfigurationError on a replica of the database.
        """

    @abstractmethod
    async def open_writers(
        self, connection: AsyncConnection, table: Table
    ) -> tuple[OpenWriter, ...]:
        """Return the transactions that may have added rows to `table` which are not visible yet:
        all of them that had taken a position before this was called.
        """

    @abstractmethod
    def event_guard(
        self, table: str, columns: Sequence[str], *, name: str, deletes: bool
    ) -> list[str]:
        """Return the statements that have a table refuse changes of these columns, and deletions if
        `deletes`. Names of table and columns are quoted, `name` is not.
        """

    @abstractmethod
    def no_event_guard(self, table: str, *, name: str) -> list[str]:
        """Return the statements that take `event_guard` back."""

    @abstractmethod
    async def append(self, connection: AsyncConnection, log: Table, rows: Rows) -> tuple[int, int]:
        """Insert events, one at least, in slices; return the first and the last position. A row has
        its values in the order of `LOGGED`.
        """


STREAMS: DialectPart[StreamDialect] = DialectPart("streams", StreamDialect)


@dataclass(frozen=True)
class KeyedTable:
    table: Table
    keys: tuple[Column[Any], ...]
    columns: tuple[Column[Any], ...]
    is_marked: bool  # there are other writers, so rows are written under their marks

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns; two models may have different ones of the same table."""
        return tuple(column.key for column in self.columns)


class FoldDialect(ABC):
    @abstractmethod
    async def read(
        self, connection: AsyncConnection, of: KeyedTable, keys: Sequence[tuple[Any, ...]]
    ) -> Sequence[Any]:
        """Return the rows with these keys, each as its columns and behind them its mark. No key is
        there twice, and there is one at least.
        """

    @abstractmethod
    async def insert(
        self, connection: AsyncConnection, of: KeyedTable, *, names: Sequence[str], rows: Rows
    ) -> int:
        """Insert rows, one at least, but none whose key is there; return how many were. Columns
        that are not named get their defaults. IntegrityError if a key is there and the database
        does not count what it leaves out.
        """

    @abstractmethod
    async def update(
        self, connection: AsyncConnection, of: KeyedTable, *, names: Sequence[str], rows: Rows
    ) -> int:
        """Update rows that are there and have their marks, if they are marked; return how many
        there were. Where these are fewer than `rows`, it may have written others: roll back. A row
        has its keys, its mark if there is one, and the values in the order of `names`.
        """


FOLDS: DialectPart[FoldDialect] = DialectPart("folds", FoldDialect)


def slot(number: int) -> str:
    """Return the name of a value of a row that is written; hosts' columns have other names."""
    return f"folded_{number}"
