"""A log of the wing's own as a stream: events of any type, added in the host's transactions, once
for each number of a producer.

The one idea of producers: a retry is told apart by its producer and its number. The
row that says so is inserted first, in the transaction of the events: a second attempt waits there
until the first one has ended, and then adds nothing.

Source: idempotent producers of Kafka (KIP-98), with the transaction of the host instead of epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import hint_after_commit
from rowlock.clock import sleep
from rowlock.errors import ConfigurationError
from rowlock.spi import ROWS, database_time_after
from rowlock.stream_errors import ProducerConflictError
from rowlock.streams.computing.encoding import Codec, kind_of
from rowlock.streams.computing.hashing import BucketRange, Key, bucket_of, digest_of, key_text
from rowlock.streams.computing.rows import SourceRows
from rowlock.streams.dialects.stream_dialect import STREAMS, delete_some
from rowlock.streams.inputs.source import RowColumns, RowSource
from rowlock.streams.settings import check_party, check_whole_number
from rowlock.streams.tables import StreamTables

E = TypeVar("E")

APPEND_EVENTS_MAX = 10_000
"""Most events of one `EventLog.append`."""
ENCODED_AT_ONCE = 1_000
"""So many events are made texts in one turn of the event loop."""
EXPIRY_ROWS_MAX = 5_000
"""Most events that are deleted in one transaction, and most numbers of producers."""
KEEP_DEFAULT = timedelta(days=7)
"""How long events and numbers of producers are kept at least."""

_EXPIRED: Final = ""
"""No producer has this name: its row says up to where events were deleted."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append.

    Attributes:
        is_new: the events were added; not, where this number of the producer was there.
        first: the position of the first of these events; 0 if there were none.
        last: the position of the last. Events of others may stand between.
        stream: the name of the log.
    """

    is_new: bool
    first: int
    last: int
    stream: str


class EventLog(RowSource[E]):
    """A log of events, made by `Streams.log`.

    Args:
        name: its own; events belong to it.
        type_: of the events, such as a dataclass.
        key: returns the key of an event.
        keep: how long events and numbers of producers are kept at least.
        tables: where.

    Raises:
        TypeError: values of this type cannot be stored.
        ConfigurationError: `keep` is no timedelta or negative, or `key` is no function.
    """

    def __init__(
        self,
        name: str,
        type_: type[E],
        *,
        key: Callable[[E], Key],
        keep: timedelta = KEEP_DEFAULT,
        tables: StreamTables,
    ) -> None:
        if not isinstance(keep, timedelta):
            raise ConfigurationError(
                f"the log {name!r} is kept for a timedelta, such as timedelta(days=7), not {keep!r}"
            )
        if keep < timedelta(0):
            raise ConfigurationError(f"the log {name!r} cannot be kept for {keep}")
        if not callable(key):
            raise ConfigurationError(
                f"the key of the log {name!r} is a function of an event, such as"
                f" attrgetter({key!r:.100}), not {key!r:.100}"
            )
        self.codec: Codec[E] = Codec(type_)
        self.tables = tables
        self.keep = keep
        self._key = key
        c = tables.log.c
        columns = RowColumns(
            name,
            c.position,
            c.key,
            c.bucket,
            (c.payload,),
            lambda only: only,
            self.codec,
            c.stream == name,
        )
        super().__init__(columns, topic=f"stream:{name}")

    def fingerprint(self) -> str:
        """Return the log and the type of its events."""
        return f"{self.name} = log of {self.codec.name}"

    async def append(
        self,
        session: AsyncSession,
        events: Sequence[E],
        *,
        producer: str | None = None,
        seq: int | None = None,
    ) -> Appended:
        """Add events, in their order, in the caller's transaction; flows that read the log get a
        hint after the commit.

        With a producer and a number, events are added once, however often they are sent: in a
        second attempt nothing is written. It waits for the first one if that is under way.

        Args:
            session: whose transaction it is.
            events: `APPEND_EVENTS_MAX` at most.
            producer: who sends them: a name that stays, such as that of a device.
            seq: its number for just these events. Numbers need not follow each other.

        Raises:
            ProducerConflictError: the number was used for other events.
            ConfigurationError: a producer without a number, or the reverse; too many events; a name
                or a number out of bounds.
            TypeError: an event, or its key, is of another type.
            ValueError: an event is too long, or its key is none.
        """
        _check(events, producer, seq)
        rows = await self._rows(events)
        connection = await self.tables.connection(session)
        if producer is None or seq is None:
            first, last = await self._add(connection, rows)
        else:
            digest = digest_of([row[2] for row in rows], [row[3] for row in rows])
            known = await self._known(connection, producer, seq, rows=len(rows), digest=digest)
            if known is not None:
                return known
            first, last = await self._add(connection, rows)
            await connection.execute(
                update(self.tables.appends)
                .where(*self._number(producer, seq))
                .values(first=first, last=last)
            )
        hint_after_commit(session, self.topic)
        return Appended(is_new=True, first=first, last=last, stream=self.name)

    async def last_seq(self, session: AsyncSession, producer: str) -> int | None:
        """Return the highest number of a producer that is kept, None if there is none; joins the
        caller's transaction.

        Raises:
            ConfigurationError: the name is none.
        """
        check_party(producer, "a producer")
        c = self.tables.appends.c
        connection = await self.tables.connection(session)
        found = select(func.max(c.seq)).where(c.stream == self.name, c.producer == producer)
        last: int | None = await connection.scalar(found)
        return last

    def position_of(self, added: object) -> int | None:
        """Return the position of the last event of an append."""
        if isinstance(added, Appended) and added.stream == self.name:
            return added.last
        return None

    async def begins_after(self, connection: AsyncConnection) -> int:
        """Return the last position whose event was deleted, 0 if there is none; joins the caller's
        transaction.
        """
        found = select(self.tables.appends.c.last).where(*self._number(_EXPIRED, 0))
        return await connection.scalar(found) or 0

    async def lock_begin(self, connection: AsyncConnection) -> int:
        """Return what `begins_after` does; nothing more is deleted until the caller's transaction
        ends.
        """
        await self.lock_expiry(connection)
        return await self.begins_after(connection)

    async def lock_expiry(self, connection: AsyncConnection) -> None:
        """Make other expiries of this log, and the creation of a flow over it, wait until the
        caller's transaction ends.
        """
        await self._note_expired(connection, 0)
        c = self.tables.appends.c
        own = update(self.tables.appends).where(*self._number(_EXPIRED, 0))
        await connection.execute(own.values(last=c.last))

    async def read(
        self, connection: AsyncConnection, ranges: Sequence[BucketRange], *, after: int, upto: int
    ) -> SourceRows:
        """Return the events of these buckets by position; joins the caller's transaction.

        Raises:
            StepExpired: some of them were deleted.
        """
        rows = await super().read(connection, ranges, after=after, upto=upto)
        await self.check_kept(connection, after)
        return rows

    async def expire(self, connection: AsyncConnection, before: int) -> int:
        """Delete events below the position `before` that are older than `keep`, and numbers of
        producers of that age, `EXPIRY_ROWS_MAX` of each; joins the caller's transaction.

        Args:
            connection: in the caller's transaction.
            before: the first position that a flow may read again.

        Returns:
            How many rows were deleted; call again, in another transaction, until there are none.
        """
        events = await self._expire_events(connection, before)
        c = self.tables.appends.c
        old = (c.stream == self.name, c.producer != _EXPIRED, self._is_old(c.at))
        # The oldest first, or `last_seq` would go back in between.
        return events + await delete_some(connection, c.at.table, EXPIRY_ROWS_MAX, *old, by=c.at)

    async def _expire_events(self, connection: AsyncConnection, before: int) -> int:
        log = self.tables.log
        oldest = (
            select(log.c.position, self._is_old(log.c.at))
            .where(log.c.stream == self.name, log.c.position < before)
            .order_by(log.c.position)
            .limit(EXPIRY_ROWS_MAX)
        )
        end = 0
        for position, is_old in await connection.execute(oldest):
            if not is_old:
                break
            end = position
        if not end:
            return 0
        gone = delete(log).where(log.c.stream == self.name, log.c.position <= end)
        count = (await connection.execute(gone)).rowcount
        await self._note_expired(connection, end)
        return count

    async def _note_expired(self, connection: AsyncConnection, last: int) -> None:
        appends = self.tables.appends
        own = self._number(_EXPIRED, 0)
        further = update(appends).where(*own, appends.c.last < last).values(last=last)
        if not (await connection.execute(further)).rowcount:
            await self._add_number(connection, _EXPIRED, 0, last=last)

    def _is_old(self, at: ColumnElement[Any]) -> ColumnElement[bool]:
        return at < database_time_after(-self.keep)

    async def _rows(self, events: Sequence[E]) -> list[tuple[str, int, str, str]]:
        rows: list[tuple[str, int, str, str]] = []
        for begin in range(0, len(events), ENCODED_AT_ONCE):
            some = events[begin : begin + ENCODED_AT_ONCE]
            payloads = self.codec.encode_many(some)  # First: a key is asked of what is an event.
            keys = [key_text(self._key(event)) for event in some]
            rows += [
                (self.name, bucket_of(key), key, payload)
                for key, payload in zip(keys, payloads, strict=True)
            ]
            if len(rows) < len(events):
                # All else in the loop has its turn.
                await sleep(0)
        return rows

    async def _add(self, connection: AsyncConnection, rows: Sequence[Any]) -> tuple[int, int]:
        if not rows:
            return 0, 0
        return await STREAMS.of(connection).append(connection, self.tables.log, rows)

    async def _known(
        self, connection: AsyncConnection, producer: str, seq: int, *, rows: int, digest: str
    ) -> Appended | None:
        """Claim a number for these events; return their append if it was claimed before."""
        if await self._add_number(connection, producer, seq, rows=rows, digest=digest):
            return None
        c = self.tables.appends.c
        found = select(c.rows, c.digest, c.first, c.last).where(*self._number(producer, seq))
        known = (await connection.execute(found)).one()
        if (known.rows, known.digest) != (rows, digest):
            raise ProducerConflictError(stream=self.name, producer=producer, seq=seq)
        return Appended(is_new=False, first=known.first, last=known.last, stream=self.name)

    async def _add_number(
        self, connection: AsyncConnection, producer: str, seq: int, **values: Any
    ) -> bool:
        """Add a number of a producer; return whether there was none."""
        appends = self.tables.appends
        new = ROWS.of(connection).insert_unless_there(appends, list(appends.primary_key))
        nothing = {"rows": 0, "digest": "", "first": 0, "last": 0}
        own = {"stream": self.name, "producer": producer, "seq": seq, **nothing, **values}
        return bool((await connection.execute(new, own)).rowcount)

    def _number(self, producer: str, seq: int) -> tuple[ColumnElement[bool], ...]:
        c = self.tables.appends.c
        return c.stream == self.name, c.producer == producer, c.seq == seq


def _check(events: Sequence[Any], producer: str | None, seq: int | None) -> None:
    if not isinstance(events, Sequence) or isinstance(events, str):
        raise TypeError(f"append takes a list of events, not {kind_of(events)}: write [event]")
    if len(events) > APPEND_EVENTS_MAX:
        raise ConfigurationError(
            f"{len(events):,} events in one append; {APPEND_EVENTS_MAX:,} is the maximum: call it"
            " several times in the transaction"
        )
    if (producer is None) != (seq is None):
        raise ConfigurationError(
            "a producer has a number for its events, and a number belongs to a producer: pass"
            " both `producer` and `seq`, or none"
        )
    if producer is not None:
        check_party(producer, "a producer")
        check_whole_number(seq, "the number of a producer")
