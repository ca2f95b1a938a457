"""Questions on SQLite: a transaction that only reads holds nobody up, and one writer at a time
leaves no trace in a row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Table, literal
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from rowlock.insight.dialects.insight_dialect import InsightDialect
from rowlock.insight.dialects.sqlite_checks import SqliteChecks
from rowlock.insight.verdicts import TableLock, TouchingTransaction
from rowlock.rows.leased_table import LeasedTable

_PRIMARY: Final = 0xFF
"""The part of a code that is left without what extends it."""


class SqliteInsight(SqliteChecks, InsightDialect):
    """Nothing is set: a setting of a connection would outlive its transaction."""

    knows_transactions = False

    async def begin_reading(
        self, connection: AsyncConnection, *, statement_timeout: timedelta
    ) -> None:
        """Do nothing."""

    def as_kept(self, value: Any, type_: TypeEngine[Any]) -> ColumnElement[Any]:
        """Return the value as it is bound: a cast would make a number of a time."""
        return literal(value, type_)

    async def open_transaction(
        self, connection: AsyncConnection, leased: LeasedTable, key: Any
    ) -> TouchingTransaction | None:
        """Return None: a writer has the whole file."""
        return None

    async def table_lock(
        self, connection: AsyncConnection, tables: Sequence[Table]
    ) -> TableLock | None:
        """Return None: a writer has the whole file, and readers see what was there before."""
        return None

    async def left_prepared(
        self, connection: AsyncConnection, table: Table
    ) -> tuple[TouchingTransaction, ...]:
        """Return none: no transaction outlives its connection."""
        return ()

    def is_any_prepared(self) -> None:
        """Return None: no transaction outlives its connection."""

    async def try_hold_name(self, connection: AsyncConnection, name: str) -> bool:
        """Return True: who writes is alone."""
        return True

    def is_locked_out(self, raised: BaseException | None) -> bool:
        """Return whether another process has the file."""
        code: int = getattr(raised, "sqlite_errorcode", None) or 0
        return code & _PRIMARY in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

    def begin_without_writing(self, connection: Connection) -> None:
        """Set it on the connection, each time: it may have been taken back."""
        connection.exec_driver_sql("PRAGMA query_only = ON")
