"""What questions and checks ask of each database: a transaction that writes nothing, who has a row
in an open transaction, how a table is stored, and how a claim is planned.

Every method that has a connection joins its transaction, and never ends it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Connection, Integer, Table
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.dialects import known_dialects
from rowlock.insight.verdicts import TableLock, TouchingTransaction
from rowlock.spi import DialectPart, IndexSeen, LeasedTable, Query


@dataclass(frozen=True, slots=True)
class StorageSeen:
    """How a table is stored: `fillfactor` in percent, and how large a row is where each update
    writes all of it; else None, and 0.
    """

    fillfactor: int | None
    rows: int | None
    row_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TableSeen:
    columns: Mapping[str, ReflectedColumn]
    indexes: tuple[IndexSeen, ...]
    storage: StorageSeen


ENTRY_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")
"""The type of their numbers; SQLite counts up only in a column that it calls INTEGER."""


class InsightDialect(ABC):
    """What one database answers to questions and checks."""

    @abstractmethod
    async def storage(self, connection: AsyncConnection, table: Table) -> StorageSeen:
        """Return how the table is stored, without counting its rows."""

    @abstractmethod
    def plan(self, connection: Connection, query: Query) -> tuple[str, ...]:
        """Return the plan of a SELECT, line by line, as if the table were large."""

    @abstractmethod
    async def begin_reading(
        self, connection: AsyncConnection, *, statement_timeout: timedelta
    ) -> None:
        """Let the transaction write nothing, and bound its statements if the database can."""

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
        """Return a few transactions that were prepared long ago, and may have rows of `table`."""

    @abstractmethod
    def is_any_prepared(self) -> ColumnElement[bool] | None:
        """Return whether a transaction is prepared now; None where there never is one."""

    @abstractmethod
    async def try_hold_name(self, connection: AsyncConnection, name: str) -> bool:
        """Lock a name until the transaction has ended; return whether nobody else has it."""

    @abstractmethod
    def is_locked_out(self, raised: BaseException | None) -> bool:
        """Whether an exception of any driver says that another transaction has this database."""

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
