"""What a flow reads: rows that are only ever added, each with a position, a key and a bucket; and
the reader of such rows, by position and as columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    LargeBinary,
    ScalarSelect,
    Select,
    String,
    Text,
    bindparam,
    cast,
    literal,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.spi import ROWS, RowDialect, innermost
from rowlock.stream_errors import StepExpired
from rowlock.streams.computing.hashing import (
    BUCKETS,
    KEY_CHARS_MAX,
    BucketRange,
    bucket_of,
    key_text,
    key_texts,
)
from rowlock.streams.computing.rows import NOTHING_BROKEN, Decoder, SourceRows
from rowlock.streams.dialects.stream_dialect import STREAMS, GatheredQuery, in_ranges
from rowlock.streams.inputs.high_water import HighWater, HighWaterLook, check_bucket, newest_of

E_co = TypeVar("E_co", covariant=True)


class NextRows(NamedTuple):
    """The next rows of a source: ascending positions, and the bytes of what may be long."""

    positions: Sequence[int]
    sizes: Sequence[int]


NO_ROWS: Final = NextRows((), ())


class SourceWatch(Protocol):
    async def look(self, connection: AsyncConnection, *, recorded: int) -> HighWater:
        """Find up to where the source is complete, in a transaction that reads no row."""
        # `recorded` is up to where rows were read already; 0 if none were.
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

    async def check_kept(self, connection: AsyncConnection, after: int) -> None:
        """Refuse rows behind `after` that were just read, if some of them were deleted."""
        # Behind the read: what was deleted before was missing, and what is deleted now was read.
        gone = await self.begins_after(connection)
        if after < gone:
            raise StepExpired(source=self.name, step=after + 1, first=gone + 1)

    @abstractmethod
    async def ahead(
        self, connection: AsyncConnection, *, after: int, upto: int, limit: int
    ) -> NextRows:
        """Return positions and sizes of the next rows, `limit` at most; joins the caller's
        transaction.
        """

    @abstractmethod
    async def read(
        self, connection: AsyncConnection, ranges: Sequence[BucketRange], *, after: int, upto: int
    ) -> SourceRows:
        """Return the rows of these buckets, and those without a bucket, by position; joins the
        caller's transaction.

        Args:
            connection: in a transaction that began after the look that found `upto`.
            ranges: of the shards that read.
            after: the last position that does not belong to it.
            upto: the last that does.
        """


E = TypeVar("E")

SHORT_CHARS_MAX = 1_000
"""Texts that are declared with this length at most do not count where rows are weighed."""
QUERIES_MAX = 16
"""Most sets of ranges whose query is kept: they change when shards move."""


@dataclass(frozen=True, eq=False)
class RowColumns:
    source: str
    position: Column[Any]
    key: Column[Any]
    bucket: Column[Any] | None  # None: the table has none, so all rows are read by each replica
    values: tuple[Column[Any], ...]  # what an event is made of
    pack: Callable[..., Sequence[Any]]  # makes the raw rows of the columns of `values`
    decoder: Decoder[Any]
    # Which rows of the table belong to the stream; None: all
    rows: ColumnElement[bool] | None = None
    are_foreign: bool = False  # the host has filled the buckets, so they are compared with the keys


def _misplaced(keys: Sequence[str], buckets: Sequence[int | None]) -> set[tuple[str, int]]:
    # Each key once: its hash takes longer than all else that is done to a row here.
    found = set(zip(keys, buckets, strict=True))
    return {
        (key, bucket) for key, bucket in found if bucket is not None and bucket_of(key) != bucket
    }


def size_of(columns: Sequence[Column[Any]], dialect: RowDialect) -> ColumnElement[int]:
    """Return how many bytes a row has in those of its columns that may be long."""
    kinds = {column: innermost(column.type) for column in columns}
    texts = [
        cast(column, Text) if isinstance(kind, JSON) else column
        for column, kind in kinds.items()
        if isinstance(kind, JSON | LargeBinary)
        or (isinstance(kind, String) and (kind.length or SHORT_CHARS_MAX + 1) > SHORT_CHARS_MAX)
    ]
    return sum(map(dialect.text_bytes, texts), start=literal(0, BigInteger))


def in_order(columns: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Return columns whose rows stand in the order of the first one, which has no value twice."""
    # The rows came out of an ordered subquery, and so they nearly always do already.
    first = columns[0]
    if list(first) == sorted(first):
        return columns
    order = sorted(range(len(first)), key=first.__getitem__)
    return [[column[index] for index in order] for column in columns]


class RowSource(Source[E]):
    """A source whose rows are those of one table."""

    def __init__(self, columns: RowColumns, *, topic: str) -> None:
        self.name, self.topic, self.decoder = columns.source, topic, columns.decoder
        self._columns = columns
        # By dialect, and by ranges: both are few, and queries are slow to build
        self._ahead = lru_cache(QUERIES_MAX)(self._ahead_by)
        self._within = lru_cache(QUERIES_MAX)(self._within_ranges)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    async def check(self, connection: AsyncConnection) -> None:
        await STREAMS.of(connection).check_position(connection, self._columns.position)
        if self._columns.bucket is not None:
            await check_bucket(connection, self._columns.bucket)

    def watcher(self) -> HighWaterLook:
        return HighWaterLook(self._columns.position, self._columns.rows, name=self.name)

    def newest(self) -> ScalarSelect[Any]:
        return newest_of(self._columns.position, self._columns.rows).scalar_subquery()

    async def ahead(
        self, connection: AsyncConnection, *, after: int, upto: int, limit: int
    ) -> NextRows:
        query = self._ahead(ROWS.of(connection))
        given = {"after": after, "upto": upto, "limit": limit}
        return NextRows(*in_order(await query.columns(connection, given)))

    async def read(
        self, connection: AsyncConnection, ranges: Sequence[BucketRange], *, after: int, upto: int
    ) -> SourceRows:
        """Return the rows of these buckets, and those without a bucket, by position."""
        # A row whose key is none, or whose bucket is that of another key, has a key that names the
        # row.
        query = self._within(tuple(sorted(ranges)))
        found = in_order(await query.columns(connection, {"after": after, "upto": upto}))
        columns = dict(zip(self._wanted, found, strict=True))
        positions = columns[self._columns.position]
        buckets = (
            [None] * len(positions)
            if self._columns.bucket is None
            else columns[self._columns.bucket]
        )
        keys, broken = self._keyed(positions, columns[self._columns.key])
        if self._columns.are_foreign:
            keys, buckets, broken = self._placed(positions, keys, buckets, broken=broken)
        return SourceRows(
            self.name,
            positions,
            buckets,
            keys,
            self._columns.pack(*(columns[column] for column in self._columns.values)),
            self.decoder,
            broken=broken,
        )

    @property
    def _wanted(self) -> list[Column[Any]]:
        given = self._columns
        bucket = () if given.bucket is None else (given.bucket,)
        return list(dict.fromkeys((given.position, given.key, *bucket, *given.values)))

    def _ahead_by(self, dialect: RowDialect) -> GatheredQuery:
        size = size_of(self._columns.values, dialect).label("size")
        found = self._in_step([self._columns.position]).add_columns(size)
        return GatheredQuery(found.limit(bindparam("limit", type_=Integer())))

    def _within_ranges(self, ranges: tuple[BucketRange, ...]) -> GatheredQuery:
        found, bucket = self._in_step(self._wanted), self._columns.bucket
        if bucket is not None:
            own = in_ranges(bucket, ranges) | bucket.is_(None)
            if self._columns.are_foreign:
                # What is no bucket would be read by no replica, without a word.
                own |= ~bucket.between(0, BUCKETS - 1)
            found = found.where(own)
        return GatheredQuery(found)

    def _in_step(self, columns: Sequence[Column[Any]]) -> Select[Any]:
        found = select(*(column.label(f"c{n}") for n, column in enumerate(columns))).where(
            self._columns.position > bindparam("after", type_=self._columns.position.type),
            self._columns.position <= bindparam("upto", type_=self._columns.position.type),
        )
        return (found if self._columns.rows is None else found.where(self._columns.rows)).order_by(
            self._columns.position
        )

    def _keyed(
        self, positions: Sequence[int], keys: Sequence[Any]
    ) -> tuple[Sequence[str], Mapping[str, Exception]]:
        """Return the texts of keys; a row without one gets a text that names it, and an error."""
        try:
            return key_texts(keys), NOTHING_BROKEN
        except (TypeError, ValueError):
            texts: list[str] = []
            broken: dict[str, Exception] = {}
            for position, key in zip(positions, keys, strict=True):
                try:
                    text = key_text(key)
                except (TypeError, ValueError) as error:
                    text = self._name(position)
                    msg = f"the row at position {position} of {self.name} has no key: {error}"
                    broken[text] = ValueError(msg)
                texts.append(text)
            return texts, broken

    def _placed(
        self,
        positions: Sequence[int],
        keys: Sequence[str],
        buckets: Sequence[int | None],
        *,
        broken: Mapping[str, Exception],
    ) -> tuple[Sequence[str], Sequence[int | None], Mapping[str, Exception]]:
        """Return keys and buckets; a row in another bucket than that of its key is broken."""
        wrong = _misplaced(keys, buckets)
        if not wrong:
            return keys, buckets, broken
        keys, buckets, broken = list(keys), list(buckets), dict(broken)
        for index, (key, bucket) in enumerate(zip(keys, buckets, strict=True)):
            if bucket is None or (key, bucket) not in wrong:
                continue
            if not 0 <= bucket < BUCKETS:
                buckets[index] = None
            if key not in broken:
                keys[index] = self._name(positions[index])
                broken[keys[index]] = ValueError(
                    f"the row at position {positions[index]} of {self.name} has the bucket"
                    f" {bucket}, and its key {key!r:.100} has {bucket_of(key)}"
                )
        return keys, buckets, broken

    def _name(self, position: int) -> str:
        """Return the key of a row that has none."""
        return f"position {position} of {self.name}"[:KEY_CHARS_MAX]
