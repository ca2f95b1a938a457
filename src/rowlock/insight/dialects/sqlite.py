"""Questions and checks on SQLite: a transaction that only reads delays no other, and the single
writer leaves no trace in a row; the schema is text, and columns are altered by copying the table.

Source: SQLite, "The Schema Table", "EXPLAIN QUERY PLAN" and "The INDEXED BY Clause".
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, Table, func, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.dialects.sqlite.leases import explaining
from rowlock.insight.dialects.insight_dialect import IndexSeen, InsightDialect, StorageSeen
from rowlock.insight.verdicts import TableLock, TouchingTransaction
from rowlock.spi import LeasedTable, Query, plan_of

_SORTED: Final = "USE TEMP B-TREE FOR ORDER BY"
_BODY: Final = re.compile(r"\bON\b[^(]*(\(.*)", re.IGNORECASE | re.DOTALL)


SIZED_ROWS: Final = 10
"""So many rows are asked for their size: to know the length of a text SQLite reads it."""


_PRIMARY: Final = 0xFF


class SqliteInsight(InsightDialect):
    async def indexes(self, connection: AsyncConnection, table: Table) -> tuple[IndexSeen, ...]:
        """Read the schema; indexes of constraints have no statement there."""
        quote = connection.dialect.identifier_preparer.quote
        schema = "" if table.schema is None else f"{quote(table.schema)}."
        statement = text(
            f"SELECT name, sql FROM {schema}sqlite_master"  # noqa: S608 - a name, quoted
            " WHERE type = 'index' AND tbl_name = :name AND sql IS NOT NULL ORDER BY name LIMIT 200"
        )
        rows = (await connection.execute(statement, {"name": table.name})).all()
        # What stands in front of the columns is left out.
        bodies = [found[1] if (found := _BODY.search(str(sql))) else str(sql) for _, sql in rows]
        return tuple(IndexSeen(str(row[0]), body) for row, body in zip(rows, bodies, strict=True))

    async def storage(self, connection: AsyncConnection, table: Table) -> StorageSeen:
        """Return the size of the newest rows; nothing else is known."""
        sizes_of: list[Any] = [func.coalesce(func.length(column), 0) for column in table.columns]
        newest = [column.desc() for column in table.primary_key]
        size: Any = sum(sizes_of)
        statement = select(size).select_from(table).order_by(*newest).limit(SIZED_ROWS)
        try:
            sizes = (await connection.scalars(statement)).all()
        except OperationalError:
            # A column is missing, which is a finding of its own.
            sizes = ()
        return StorageSeen(None, None, max(sizes, default=0))

    async def plan(self, connection: AsyncConnection, query: Query) -> tuple[str, ...]:
        rows = await plan_of(connection, query, prefix=await explaining(connection))
        return tuple(str(row[-1]) for row in rows.all())

    def reads_whole_table(self, lines: Sequence[str]) -> bool:
        return any(
            _SORTED in line or (line.startswith("SCAN ") and " USING " not in line)
            for line in lines
        )

    def serves(self, connection: Connection, table: Table, *, query: str, index: str) -> bool:
        """Demand the index; SQLite refuses where it does not fit."""
        preparer = connection.dialect.identifier_preparer
        source = f"FROM {preparer.format_table(table)}"
        demanded = query.replace(source, f"{source} INDEXED BY {preparer.quote(index)}", 1)
        try:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {demanded}").all()
        except OperationalError as error:
            if "no query solution" not in str(error):
                raise
            return False
        return not any(_SORTED in str(row[-1]) for row in plan)

    async def begin_reading(
        self, connection: AsyncConnection, *, statement_timeout: timedelta
    ) -> None:
        """Set nothing: a setting of a connection would outlive its transaction."""

    # A writer has the whole file, and no transaction outlives its connection; so none keeps a row,
    # or a table, from others.

    async def open_transaction(
        self, connection: AsyncConnection, leased: LeasedTable, key: Any
    ) -> TouchingTransaction | None:
        return None

    async def table_lock(
        self, connection: AsyncConnection, tables: Sequence[Table]
    ) -> TableLock | None:
        return None

    async def left_prepared(
        self, connection: AsyncConnection, table: Table
    ) -> tuple[TouchingTransaction, ...]:
        return ()

    def is_any_prepared(self) -> None: ...

    async def try_hold_name(self, connection: AsyncConnection, name: str) -> bool:
        return True

    def is_locked_out(self, raised: BaseException | None) -> bool:
        code: int = getattr(raised, "sqlite_errorcode", None) or 0
        return code & _PRIMARY in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

    def begin_without_writing(self, connection: Connection) -> None:
        """Set it on the connection, each time: it may have been taken back."""
        connection.exec_driver_sql("PRAGMA query_only = ON")
