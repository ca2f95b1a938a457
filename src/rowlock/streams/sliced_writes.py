"""Writes many rows slice by slice.

The one idea: what a driver makes of the rows of a statement is made within the event loop, which is
busy for as long. Between two slices all else has its turn. A slice is bounded by rows, and by the
bytes of what is long in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.database.bulk_dialect import BULK, BulkDialect
from rowlock.streams.computing.encoding import slices

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
    """Execute an INSERT for rows; joins the caller's transaction.

    Args:
        connection: in a transaction.
        statement: of `BulkDialect.insert` for these names.
        names: of the columns.
        rows: the values of each in the order of `names`.
        text: the name of the column that may be long.
    """
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
