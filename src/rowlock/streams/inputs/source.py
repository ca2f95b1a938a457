"""What a flow reads: rows that are only ever added, each with a position, a key and a bucket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from sqlalchemy import ScalarSelect
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.streams.computing.buckets import BucketRange
from rowlock.streams.computing.rows import Decoder, SourceRows
from rowlock.streams.inputs.high_water import HighWater

E_co = TypeVar("E_co", covariant=True)


class NextRows(NamedTuple):
    """The next rows of a source.

    Attributes:
        positions: ascending, one for each row where several have the same.
        sizes: how many bytes each row has of what may be long: texts, bytes and JSON.
    """

    positions: Sequence[int]
    sizes: Sequence[int]


NO_ROWS: Final = NextRows((), ())


class SourceWatch(Protocol):
    """Looks at one source, again and again; belongs to one replica."""

    async def look(self, connection: AsyncConnection, *, recorded: int) -> HighWater:
        """Find up to where the source is complete; joins the caller's transaction, in which no row
        may be read.

        Args:
            connection: to the server that rows are added to.
            recorded: up to where rows were read already; 0 if none were.

        Raises:
            PositionsWentBackError: positions that were read will be assigned again.
        """
        ...


class Source(ABC, Generic[E_co]):
    """A stream, as a flow reads it.

    Attributes:
        name: within a flow.
        topic: of hints for new rows.
        decoder: makes events of its rows.
        rows_per_position: how many rows a position counts for, where steps are put together.
        key_chars_max: the longest text that keys can have, as far as that is declared; None: it is
            not.
    """

    name: str
    topic: str
    decoder: Decoder[E_co]
    rows_per_position: int = 1
    key_chars_max: int | None = None

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a text of what must not change while a flow reads it."""

    @abstractmethod
    def watcher(self) -> SourceWatch:
        """Return what looks at it, for one replica."""

    @abstractmethod
    def newest(self) -> ScalarSelect[Any]:
        """Return the query for the last position that is visible, null if there is none: it says
        whether there is something new, and not up to where the source is complete.
        """

    def position_of(self, added: object) -> int | None:
        """Return the position of what a service has added, of several events that of the last; None
        if it is nothing of this source.

        Raises:
            ConfigurationError: it was not written, or its position cannot be told any more.
        """
        return None

    async def check(self, connection: AsyncConnection) -> None:
        """Refuse a source that the database has otherwise than a flow needs; joins the caller's
        transaction.

        Raises:
            ModelError: it has; the text says what to change.
        """

    async def begins_after(self, connection: AsyncConnection) -> int:
        """Return the last position that is kept no more, 0 if all are; joins the caller's
        transaction.
        """
        return 0

    async def lock_begin(self, connection: AsyncConnection) -> int:
        """Return what `begins_after` does, and keep it so until the caller's transaction ends."""
        return await self.begins_after(connection)

    @abstractmethod
    async def ahead(
        self, connection: AsyncConnection, *, after: int, upto: int, limit: int
    ) -> NextRows:
        """Return positions and sizes of the next rows, `limit` at most; joins the caller's
        transaction.
        """

    @abstractmethod
    async def read(
        self,
        connection: AsyncConnection,
        ranges: Sequence[BucketRange],
        *,
        after: int,
        upto: int,
    ) -> SourceRows:
        """Return the rows of these buckets, and those without a bucket, by position; joins the
        caller's transaction.

        Args:
            connection: in a transaction that began after the look that found `upto`.
            ranges: of the shards that read.
            after: the last position that does not belong to it.
            upto: the last that does.
        """
