"""What questions ask of each database: a transaction that writes nothing, and who has a row in an
open transaction.

Every method joins the transaction of the connection that is its first parameter, and never ends it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from rowlock.dialects import DialectPart, known_dialects
from rowlock.insight.dialects.check_dialect import CheckDialect
from rowlock.insight.verdicts import TableLock, TouchingTransaction
from rowlock.rows.leased_table import LeasedTable


class InsightDialect(CheckDialect, ABC):
    """One database's side of questions.

    Attributes:
        knows_transactions: whether it tells who has locked or written a row.
    """

    knows_transactions: bool

    @abstractmethod
    async def begin_reading(
        self, connection: AsyncConnection, *, statement_timeout: timedelta
    ) -> None:
        """Let the transaction write nothing, and each of its statements last so long at most, as
        far as the database can.
        """

    @abstractmethod
    def as_kept(self, value: Any, type_: TypeEngine[Any]) -> ColumnElement[Any]:
        """Return an expression that gives `value` as a column of `type_` would keep it."""

    @abstractmethod
    async def open_transaction(
        self, connection: AsyncConnection, leased: LeasedTable, key: Any
    ) -> TouchingTransaction | None:
        """Return who has locked or written the row with this key, and has not committed."""

    @abstractmethod
    async def table_lock(
        self, connection: AsyncConnection, tables: Sequence[Table]
    ) -> TableLock | None:
        """Return who keeps everybody out of one of `tables`, as far as the database tells."""

    @abstractmethod
    async def left_prepared(
        self, connection: AsyncConnection, table: Table
    ) -> tuple[TouchingTransaction, ...]:
        """Return the transactions that were prepared long ago, were never committed, and may have
        rows of `table`; the oldest first, a few.
        """

    @abstractmethod
    def is_any_prepared(self) -> ColumnElement[bool] | None:
        """Whether any transaction is prepared now; None where there never is one."""

    @abstractmethod
    async def try_hold_name(self, connection: AsyncConnection, name: str) -> bool:
        """Lock a name until the transaction, which writes, has ended; return whether nobody else
        has it.
        """

    @abstractmethod
    def is_locked_out(self, raised: BaseException | None) -> bool:
        """Whether an exception of a driver says that another transaction has the whole database.

        Every database is asked about each error, so it must know its own.
        """

    @abstractmethod
    def begin_without_writing(self, connection: Connection) -> None:
        """Let a transaction that was begun write nothing, whatever is said in it. One that commits
        each statement by itself: nor what comes after it on this connection.
        """


INSIGHT: DialectPart[InsightDialect] = DialectPart("insight", InsightDialect)


def is_locked_out(error: BaseException) -> bool:
    """Whether another transaction has the whole database, so that no statement is answered."""
    raised = error.orig if isinstance(error, DBAPIError) else None
    return any(INSIGHT.on(dialect.name).is_locked_out(raised) for dialect in known_dialects())
