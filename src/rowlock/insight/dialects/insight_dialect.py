"""What questions ask of each database: a transaction that writes nothing, who has a row in an open
transaction, and how a table is stored.

Every method joins the transaction of the connection that is its first parameter, and never ends it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.dialects import DialectPart
from rowlock.insight.checking.seen import IndexSeen, StorageSeen, TableLock
from rowlock.insight.verdicts import TouchingTransaction
from rowlock.rows.leased_table import LeasedTable


class InsightDialect(ABC):
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
    async def open_transaction(
        self, connection: AsyncConnection, leased: LeasedTable, key: Any
    ) -> TouchingTransaction | None:
        """Return who has locked or written the row with this key, and has not committed."""

    @abstractmethod
    async def table_lock(self, connection: AsyncConnection, table: Table) -> TableLock | None:
        """Return which transaction lets nobody read the table, without waiting for it."""

    @abstractmethod
    async def indexes(self, connection: AsyncConnection, table: Table) -> tuple[IndexSeen, ...]:
        """Return the indexes of the table but that of its key, by name."""

    @abstractmethod
    async def storage(self, connection: AsyncConnection, table: Table) -> StorageSeen:
        """Return how the table is stored, without counting its rows."""

    @abstractmethod
    async def plan(self, connection: AsyncConnection, query: str) -> tuple[str, ...]:
        """Return the plan of a SELECT without parameters, line by line, as it is if the table is
        large: an index is read where one can be.
        """

    @abstractmethod
    def reads_whole_table(self, lines: Sequence[str]) -> bool:
        """Return whether a `plan` may read a whole table, or sort it; a small one beside that of
        the claim counts, too.
        """

    @abstractmethod
    def serves(self, connection: Connection, table: Table, *, query: str, index: str) -> bool:
        """Return whether an index can be read for a SELECT of the table, in its order: that of this
        name, or where nobody can ask for one any.
        """

    @abstractmethod
    def alter_column(
        self, table: Table, column: str, options: Mapping[str, str], *, types: tuple[str, str]
    ) -> tuple[str, ...]:
        """Return the lines of a migration that alter a column.

        Args:
            table: of the column.
            column: its name.
            options: of Alembic's ``alter_column``, as code.
            types: what it was and what it becomes, as DDL has it; empty if its type stays.
        """

    @abstractmethod
    def repaired(self, table: Table, index: str) -> str | None:
        """Return the statement that builds an invalid index again while rows are read and written;
        None where indexes are never invalid.
        """


INSIGHT: DialectPart[InsightDialect] = DialectPart("insight", InsightDialect)
