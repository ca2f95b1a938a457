"""Statements over many rows: ranges of buckets as conditions, queries whose rows are wanted as
columns, and writes slice by slice.

Where the database has a value for a whole column, a row costs neither the driver nor SQLAlchemy an
object, which took longer than all else that happened to a row. And what a driver makes of the rows
of a statement is made within the event loop, which is busy for as long: between two slices, bounded
by rows and by bytes, all else has its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Select, or_, select, true
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.spi import BULK, BulkDialect
from rowlock.streams.computing.encoding import slices
from rowlock.streams.computing.hashing import BUCKETS, BucketRange, merged


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
        self._gathering: dict[BulkDialect, Select[Any] | None] = {}

    async def columns(
        self, connection: AsyncConnection, given: Mapping[str, Any]
    ) -> list[Sequence[Any]]:
        """Return the columns of the rows; joins the caller's transaction."""
        # The rows stand in one order in all of them, which need not be that of the query.
        dialect = BULK.of(connection)
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


def _gathering(dialect: BulkDialect, query: Select[Any]) -> Select[Any] | None:
    rows = query.subquery("gathered_rows")
    columns = dialect.gather(list(rows.c))
    return None if columns is None else select(*columns).select_from(rows)


# ---------------------------------------------------------------- sliced writes


WRITTEN_BYTES_MAX: Final = 4_194_304
"""Most bytes of the texts of one slice, unless one row has more."""


async def write_rows(
    connection: AsyncConnection,
    statement: Any,
    *,
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    text: str,
) -> None:
    """Execute an INSERT of `BulkDialect.insert` for rows, slice by slice."""
    # `text` is the name of the column that may be long.
    for parameters in sliced(BULK.of(connection), names, rows, text=text):
        await connection.execute(statement, parameters)


def sliced(
    dialect: BulkDialect, names: Sequence[str], rows: Sequence[Sequence[Any]], *, text: str
) -> Iterator[Any]:
    """Yield the parameters of an INSERT, slice by slice; as `write_rows` has them."""
    place = names.index(text)
    sizes = [len(row[place] or "") for row in rows]
    for some in slices(sizes, rows_max=dialect.rows_max, bytes_max=WRITTEN_BYTES_MAX):
        yield dialect.insert_parameters(names, rows[some])
