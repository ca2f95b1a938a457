"""What a check asks of each database: how a table is stored, whether an index serves, and how a
migration is spelt there.

Every method that has a connection joins its transaction, and never ends it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.checking.seen import IndexSeen, StorageSeen
from rowlock.leases.indexes.plans import Query


class CheckDialect(ABC):
    """One database's side of checks."""

    @abstractmethod
    async def indexes(self, connection: AsyncConnection, table: Table) -> tuple[IndexSeen, ...]:
        """Return the indexes of the table but that of its key, by name."""

    @abstractmethod
    async def storage(self, connection: AsyncConnection, table: Table) -> StorageSeen:
        """Return how the table is stored, without counting its rows."""

    @abstractmethod
    async def plan(self, connection: AsyncConnection, query: Query) -> tuple[str, ...]:
        """Return the plan of a SELECT, line by line, as it is if the table is large: an index is
        read where one can be.
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
