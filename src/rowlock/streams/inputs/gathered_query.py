"""A query whose rows are wanted as columns.

The one idea: where the database has a value for a whole column, a row costs neither the driver nor
SQLAlchemy an object, which took longer than all else that happened to a row. Elsewhere the rows are
read as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.database.bulk_dialect import BULK, BulkDialect


class GatheredQuery:
    """Runs one query again and again.

    Args:
        query: what differs from one execution to the next is bound by name. No two of its columns
            have the same name.
    """

    def __init__(self, query: Select[Any]) -> None:
        self._query = query
        self._gathering: dict[BulkDialect, Select[Any] | None] = {}

    async def columns(
        self, connection: AsyncConnection, given: Mapping[str, Any]
    ) -> list[Sequence[Any]]:
        """Return the columns of the rows; joins the caller's transaction. The rows stand in one
        order in all of them, which need not be that of the query.

        Raises:
            DBAPIError: as of the database. Where columns are too large for one value of it, the
                next call reads row by row.
        """
        dialect = BULK.of(connection)
        if dialect not in self._gathering:
            self._gathering[dialect] = _gathering(dialect, self._query)
        statement = self._gathering[dialect]
        if statement is None:
            return _turned(await connection.execute(self._query, given), self._query)
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


def _turned(rows: Any, query: Select[Any]) -> list[Sequence[Any]]:
    found = rows.all()
    return list(zip(*found, strict=True)) or [()] * len(query.selected_columns)
