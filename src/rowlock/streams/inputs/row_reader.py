"""Reads the rows of a stream by position: those of a table, or a part of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.streams.computing.buckets import BucketRange
from rowlock.streams.computing.hashing import Key, key_text
from rowlock.streams.computing.rows import Decoder, SourceRows
from rowlock.streams.inputs.high_water import HighWaterLook
from rowlock.streams.inputs.source import Source
from rowlock.streams.range_condition import has_all, in_ranges

E = TypeVar("E")


@dataclass(frozen=True)
class RowReader:
    """Where a stream has what, in one table.

    Attributes:
        source: the name of the stream.
        position: gives the order.
        key: of the rows.
        bucket: of their keys; None: the table has none, so all rows are read by each replica.
        values: what an event is made of.
        pack: makes the raw rows of the columns of `values`.
        decoder: makes events of the raw rows.
        rows: which rows of the table belong to the stream; None: all.
    """

    source: str
    position: Column[Any]
    key: Column[Any]
    bucket: Column[Any] | None
    values: tuple[Column[Any], ...]
    pack: Callable[..., Sequence[Any]]
    decoder: Decoder[Any]
    rows: ColumnElement[bool] | None = None

    async def ahead(
        self, connection: AsyncConnection, *, after: int, upto: int, limit: int
    ) -> Sequence[int]:
        """Return the positions of the next rows, ascending; joins the caller's transaction."""
        found = select(self.position).where(self.position > after, self.position <= upto)
        if self.rows is not None:
            found = found.where(self.rows)
        return (await connection.scalars(found.order_by(self.position).limit(limit))).all()

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

        Raises:
            ValueError: a row has a key that is none; the text names the row.
        """
        bucket = self.bucket
        given = (self.position, self.key, *(() if bucket is None else (bucket,)))
        found = select(*given, *self.values).where(self.position > after, self.position <= upto)
        if self.rows is not None:
            found = found.where(self.rows)
        if bucket is not None and not has_all(ranges):
            found = found.where(in_ranges(bucket, ranges) | bucket.is_(None))
        rows = (await connection.execute(found.order_by(self.position))).all()
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * (
            len(given) + len(self.values)
        )
        positions = columns[0]
        return SourceRows(
            self.source,
            positions,
            [None] * len(rows) if bucket is None else columns[2],
            self._texts(positions, columns[1]),
            self.pack(*columns[len(given) :]),
            self.decoder,
        )

    def _texts(self, positions: Sequence[int], keys: Sequence[Key]) -> list[str]:
        try:
            return list(map(key_text, keys))
        except (TypeError, ValueError):
            for position, key in zip(positions, keys, strict=True):
                self._check(position, key)
            raise

    def _check(self, position: int, key: Key) -> None:
        try:
            key_text(key)
        except (TypeError, ValueError) as error:
            msg = f"the row at position {position} of {self.source} has no key: {error}"
            raise ValueError(msg) from error


class RowSource(Source[E]):
    """A source whose rows are those of one table."""

    def __init__(self, reader: RowReader, *, topic: str) -> None:
        self.name, self.topic, self.decoder = reader.source, topic, reader.decoder
        self._reader = reader

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def watcher(self) -> HighWaterLook:
        """Return what looks at the table, for one replica."""
        return HighWaterLook(self._reader.position, self._reader.rows, name=self.name)

    async def ahead(
        self, connection: AsyncConnection, *, after: int, upto: int, limit: int
    ) -> Sequence[int]:
        """Return the positions of the next rows; joins the caller's transaction."""
        return await self._reader.ahead(connection, after=after, upto=upto, limit=limit)

    async def read(
        self,
        connection: AsyncConnection,
        ranges: Sequence[BucketRange],
        *,
        after: int,
        upto: int,
    ) -> SourceRows:
        """Return the rows of these buckets by position; joins the caller's transaction.

        Raises:
            ValueError: a row has a key that is none.
        """
        return await self._reader.read(connection, ranges, after=after, upto=upto)
