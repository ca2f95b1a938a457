"""What folds ask of each database: rows of the host's table by their keys, many at once, and their
writes, which count only where no other writer has changed the row since it was read.

The one idea: each row has a *mark*, a text that is another one after every write of the row. What
is computed from a row is written under its mark, so a change of the host's in between is never
overwritten.

Every method joins the transaction of the connection that is its first parameter, and never ends it.

Source: optimistic concurrency control, H. T. Kung, J. T. Robinson (1981).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.dialects import DialectPart


@dataclass(frozen=True)
class KeyedTable:
    """A table whose rows are found by their keys.

    Attributes:
        table: of the host.
        keys: its primary key.
        columns: that are read, the keys among them.
    """

    table: Table
    keys: tuple[Column[Any], ...]
    columns: tuple[Column[Any], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns; two models may have different ones of the same table."""
        return tuple(column.key for column in self.columns)


class FoldDialect(ABC):
    """One database's side of folds."""

    @abstractmethod
    async def read(
        self, connection: AsyncConnection, of: KeyedTable, keys: Sequence[tuple[Any, ...]]
    ) -> Sequence[Any]:
        """Return the rows with these keys, each as its columns and behind them its mark.

        Args:
            connection: in a transaction.
            of: the table.
            keys: none of them twice; one at least.
        """

    @abstractmethod
    async def insert(
        self,
        connection: AsyncConnection,
        of: KeyedTable,
        *,
        names: Sequence[str],
        rows: Sequence[Sequence[Any]],
    ) -> int:
        """Insert rows, but none whose key is there; return how many were.

        Args:
            connection: in a transaction that writes.
            of: the table.
            names: of the columns that are given; the others get their defaults.
            rows: the values of each in the order of `names`; one at least.

        Raises:
            IntegrityError: a key is there, where the database does not count what it leaves out.
        """

    @abstractmethod
    async def update(
        self,
        connection: AsyncConnection,
        of: KeyedTable,
        *,
        names: Sequence[str],
        rows: Sequence[Sequence[Any]],
        marked: bool,
    ) -> int:
        """Update rows that are there and have their marks; return how many there were. Where these
        are fewer than `rows`, it may have written others: roll back.

        Args:
            connection: in a transaction that writes.
            of: the table.
            names: of the columns that are given.
            rows: of each its keys, then its mark if they are `marked`, then the values in the order
                of `names`; one at least.
            marked: rows have marks; otherwise it is enough that they are there.
        """


FOLDS: DialectPart[FoldDialect] = DialectPart("folds", FoldDialect)
