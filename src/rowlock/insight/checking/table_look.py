"""Looks at one table in the database; reads its catalogue, and a few rows
at most.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Dialect, Table, inspect
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.checking.seen import ColumnSeen, TableSeen
from rowlock.insight.dialects.insight_dialect import INSIGHT


async def look_at_table(connection: AsyncConnection, table: Table) -> TableSeen | None:
    """Return what the table is; None if there is none. Joins the caller's transaction."""
    columns = await connection.run_sync(_columns_of, table)
    if not columns:
        return None
    dialect = INSIGHT.of(connection)
    return TableSeen(
        columns,
        await dialect.indexes(connection, table),
        await dialect.storage(connection, table),
    )


def _columns_of(connection: Connection, table: Table) -> dict[str, ColumnSeen]:
    inspector = inspect(connection)
    try:
        found: Any = inspector.get_columns(table.name, schema=table.schema)
    except NoSuchTableError:
        return {}
    return {column["name"]: _column_of(column, connection.dialect) for column in found}


def _column_of(column: Any, dialect: Dialect) -> ColumnSeen:
    type_ = column["type"]
    has_default = column.get("default") is not None or bool(column.get("identity"))
    return ColumnSeen(
        column["name"],
        type_.compile(dialect=dialect),
        f"sa.{type_!r}",
        bool(column["nullable"]),
        has_default or bool(column.get("computed")),
    )
