"""What streams ask of each database: who may still add rows below those that are visible, and
whether a column gives positions.

Every method joins the transaction of the connection that is its first parameter, and never ends it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Column, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.dialects import DialectPart
from rowlock.streams.inputs.candidates import OpenWriter

NO_COLUMN: Final = "there is no such column in the database"

REFUSES: Final = "events are neither changed nor deleted, add one that corrects it"


class StreamDialect(ABC):
    """One database's side of streams."""

    @abstractmethod
    async def check_position(self, connection: AsyncConnection, column: Column[Any]) -> str:
        """Return the name of what assigns the values of `column`, for `last_assigned`.

        Raises:
            ModelError: the database does not assign them, or not in an order that can be followed.
        """

    @abstractmethod
    async def problem_with_number(self, connection: AsyncConnection, column: Column[Any]) -> str:
        """Return why `column` keeps no whole numbers in the database; empty: it does."""

    @abstractmethod
    async def last_assigned(
        self, connection: AsyncConnection, column: Column[Any], counter: str
    ) -> int:
        """Return a position above which all later rows will be, and no lower than any that was
        assigned so far; 0 if there was none.

        Raises:
            ConfigurationError: this is not the server that assigns them.
        """

    @abstractmethod
    async def open_writers(
        self, connection: AsyncConnection, table: Table
    ) -> tuple[OpenWriter, ...]:
        """Return the transactions that may have added rows to `table` which are not visible yet:
        all of them that had taken a position before this was called.
        """

    @abstractmethod
    def event_guard(
        self, table: str, columns: Sequence[str], *, name: str, deletes: bool
    ) -> list[str]:
        """Return the statements that have a table refuse changes of its rows.

        Args:
            table: its name, quoted.
            columns: that never change, quoted.
            name: of what is made, without quotes.
            deletes: also deletions are refused.
        """

    @abstractmethod
    def no_event_guard(self, table: str, *, name: str) -> list[str]:
        """Return the statements that take `event_guard` back."""

    @abstractmethod
    async def append(
        self,
        connection: AsyncConnection,
        position: Column[Any],
        *,
        names: Sequence[str],
        rows: Sequence[Sequence[Any]],
        text: str,
    ) -> tuple[int, int]:
        """Insert rows into the table of `position`, slice by slice; return the first and the last
        of theirs.

        Args:
            connection: in the caller's transaction.
            position: whose values the database assigns.
            names: of the columns that are given.
            rows: the values of each in the order of `names`; one at least.
            text: the name of the column that may be long.
        """


STREAMS: DialectPart[StreamDialect] = DialectPart("streams", StreamDialect)
