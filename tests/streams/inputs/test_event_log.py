"""Logs: events are added with the host's transaction, and once for each number of a producer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import attrgetter
from random import Random
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase

from rowlock import ConfigurationError, ProducerConflictError, StepExpired, pipeline_hinter
from rowlock.rows.database_time import database_time_after
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.inputs import event_log
from rowlock.streams.inputs.event_log import APPEND_EVENTS_MAX, Appended, EventLog
from rowlock.streams.streams import Streams
from rowlock.testing import TemporaryDatabase

from .reading import HALVES, events_of, events_of_shards, rows_of


@dataclass(frozen=True)
class Usage:
    account: str
    units: int


@dataclass(frozen=True)
class Text:
    account: str
    text: str


@dataclass
class Host:
    """A host with two logs."""

    database: TemporaryDatabase
    streams: Streams
    usage: EventLog[Usage]
    other: EventLog[Usage]

    async def append(self, *units: int, **producer: Any) -> Appended:
        async with self.database.session_factory.begin() as session:
            return await self.usage.append(session, events(*units), **producer)

    async def units(self) -> list[int]:
        return [event.units for event in await events_of(self.database.engine, self.usage)]

    async def count(self, name: str) -> int:
        """Return how many rows one of the wing's tables has."""
        async with self.database.engine.connect() as connection:
            table = getattr(self.streams.tables, name)
            return await connection.scalar(select(func.count()).select_from(table)) or 0

    async def age(self, name: str, days: float) -> None:
        table = getattr(self.streams.tables, name)
        async with self.database.engine.begin() as connection:
            at = database_time_after(timedelta(days=-days))
            await connection.execute(update(table).values(at=at))

    async def expire(self, before: int) -> int:
        async with self.database.engine.begin() as connection:
            return await self.usage.expire(connection, before)


def events(*units: int) -> list[Usage]:
    return [Usage(f"a{each % 10}", each) for each in units]


class Base(DeclarativeBase):
    pass


@pytest.fixture
async def host(database: TemporaryDatabase) -> Host:
    streams = Streams(Base)
    key = attrgetter("account")
    await database.create_tables(Base.metadata)
    return Host(
        database,
        streams,
        streams.log("usage", Usage, key=key),
        streams.log("other", Usage, key=key),
    )


async def test_events_are_read_as_they_were_added(host: Host) -> None:
    """Events would be lost, change their order, or come from another log."""
    async with host.database.session_factory.begin() as session:
        await host.other.append(session, events(100, 101))
    first = await host.append(*range(5))
    async with host.database.session_factory.begin() as session:
        await host.other.append(session, events(102))
    second = await host.append(*range(5, 7))
    assert (first.is_new, first.last - first.first) == (True, 4)
    assert (second.first, second.last) == (first.last + 2, first.last + 3)
    assert await host.units() == list(range(7))
    rows = await rows_of(host.database.engine, host.usage)
    assert list(rows.buckets) == [bucket_of(key) for key in rows.keys]
    rest = await rows_of(host.database.engine, host.usage, after=first.last)
    assert list(rest.positions) == [second.first, second.last]
    async with host.database.engine.begin() as connection:
        ahead, _ = await host.usage.ahead(connection, after=first.first, upto=second.last, limit=5)
    assert list(ahead) == [*range(first.first + 1, first.last + 1), second.first]


async def test_each_shard_reads_its_own_events(host: Host) -> None:
    """An event would be worked on by two shards, or by none."""
    await host.append(*range(50))
    shards = await events_of_shards(host.database.engine, host.usage)
    assert sorted(event.units for shard in shards for event in shard) == list(range(50))
    for half, own in zip(HALVES, shards, strict=True):
        assert own
        assert all(half.lo <= bucket_of(event.account) < half.hi for event in own)


async def test_a_number_is_added_once(host: Host) -> None:
    """A retry, where the answer was lost, would be counted twice; or its sender would not learn
    where its events are.
    """
    first = await host.append(1, 2, 3, producer="meter", seq=7)
    again = await host.append(1, 2, 3, producer="meter", seq=7)
    assert (first.is_new, again.is_new) == (True, False)
    assert (again.first, again.last) == (first.first, first.last)
    others = [
        await host.append(1, 2, 3, producer="meter", seq=6),
        await host.append(1, 2, 3, producer="other meter", seq=7),
    ]
    assert all(done.is_new for done in others)
    assert await host.append(1, 2, 3, producer="meter", seq=7) == again
    assert await host.units() == [1, 2, 3] * 3
    async with host.database.session_factory() as session:
        assert await host.usage.last_seq(session, "meter") == 7
        assert await host.usage.last_seq(session, "nobody") is None


async def test_numbers_belong_to_their_log(host: Host) -> None:
    """A producer that sends to two logs would lose what it sends to the second one."""
    await host.append(1, producer="meter", seq=7)
    async with host.database.session_factory.begin() as session:
        done = await host.other.append(session, events(1), producer="meter", seq=7)
        assert done.is_new
        assert await host.other.last_seq(session, "meter") == 7


@pytest.mark.parametrize("units", [(1, 2), (1, 2, 3, 4), (1, 2, 13), (3, 2, 1), ()])
async def test_a_number_stands_for_its_events(host: Host, units: tuple[int, ...]) -> None:
    """A producer that counts wrongly would lose events in silence."""
    await host.append(1, 2, 3, producer="meter", seq=7)
    with pytest.raises(ProducerConflictError) as caught:
        await host.append(*units, producer="meter", seq=7)
    assert (caught.value.stream, caught.value.producer, caught.value.seq) == ("usage", "meter", 7)
    assert await host.units() == [1, 2, 3]


async def test_no_events_are_a_number_too(host: Host) -> None:
    """A producer that has nothing to send could not say so twice."""
    none = Appended(is_new=True, first=0, last=0, stream="usage")
    assert await host.append(producer="meter", seq=1) == none
    assert await host.append(producer="meter", seq=1) == replace(none, is_new=False)
    assert await host.append() == none


async def test_what_is_rolled_back_was_never_sent(host: Host) -> None:
    """A number would be taken by events that are not there, so a retry would be lost."""
    async with host.database.session_factory() as session:
        await host.usage.append(session, events(1), producer="meter", seq=1)
        await session.rollback()
    async with host.database.session_factory.begin() as session:
        savepoint = await session.begin_nested()
        await host.usage.append(session, events(1), producer="meter", seq=1)
        await savepoint.rollback()
    assert await host.units() == []
    done = await host.append(1, producer="meter", seq=1)
    assert done.is_new
    assert await host.units() == [1]


async def test_hints_come_after_the_commit(host: Host) -> None:
    """A flow would look before there is something to see, and then wait."""
    woken: list[int] = []

    def wake() -> None:
        woken.append(1)

    pipeline_hinter.attach(host.usage.topic, wake)
    try:
        async with host.database.session_factory() as session:
            await host.usage.append(session, events(1), producer="meter", seq=1)
            assert not woken
            await session.commit()
            assert len(woken) == 1
            await host.usage.append(session, events(1), producer="meter", seq=1)
            await session.commit()
            assert len(woken) == 1, "nothing is new"
    finally:
        pipeline_hinter.detach(host.usage.topic, wake)


async def test_many_senders_of_the_same_numbers(host: Host) -> None:
    """Two attempts at one time would both be new."""
    is_server = host.database.dialect_name == "postgresql"
    senders, numbers = (80, 10) if is_server else (20, 5)
    engine = host.database.create_engine(pool_size=40 if is_server else 5, max_overflow=0)
    rng = Random(11)
    sent = [rng.randrange(numbers) for _ in range(senders)]
    sent[:numbers] = range(numbers)
    gate = asyncio.Semaphore(40)

    async def send(seq: int) -> Appended:
        async with gate, async_sessionmaker(engine).begin() as session:
            return await host.usage.append(
                session, events(seq * 2, seq * 2 + 1), producer="meter", seq=seq
            )

    done = await asyncio.gather(*map(send, sent))
    assert sum(each.is_new for each in done) == numbers
    for seq in range(numbers):
        places = {(one.first, one.last) for one, own in zip(done, sent, strict=True) if own == seq}
        assert len(places) == 1, "each attempt learns the same"
    assert sorted(await host.units()) == list(range(numbers * 2))


def refused() -> list[Any]:
    many = events(1) * (APPEND_EVENTS_MAX + 1)
    return [
        pytest.param(many, {}, ConfigurationError, "10,000 is the maximum", id="too many"),
        pytest.param(events(1), {"producer": "m"}, ConfigurationError, "pass both", id="no number"),
        pytest.param(events(1), {"seq": 1}, ConfigurationError, "pass both", id="no producer"),
        pytest.param([1], {}, TypeError, "is no Usage", id="of another type"),
        pytest.param([Usage("k" * 256, 1)], {}, ValueError, "255", id="long key"),
        pytest.param([Text("k", "x" * 2_000_000)], {}, TypeError, "Usage", id="another class"),
    ]


@pytest.mark.parametrize(("given", "producer", "error", "why"), refused())
async def test_refused_appends_write_nothing(
    host: Host, given: list[Any], producer: dict[str, Any], error: Any, why: str
) -> None:
    """A part of the events would be there, or the database would tell what is wrong."""
    async with host.database.session_factory.begin() as session:
        with pytest.raises(error, match=why):
            await host.usage.append(session, [*events(1), *given], **producer)
    assert (await host.count("log"), await host.count("appends")) == (0, 0)


async def test_old_events_are_deleted_below_what_is_needed(host: Host) -> None:
    """A flow that has to read a step again would find a part of it."""
    done = await host.append(*range(10))
    assert await host.expire(done.last + 1) == 0, "they are young"
    await host.age("log", 8)
    assert await host.expire(done.first + 4) == 4
    assert await host.expire(done.first + 4) == 0
    async with host.database.engine.connect() as connection:
        assert await host.usage.begins_after(connection) == done.first + 3
    with pytest.raises(StepExpired) as caught:
        await rows_of(host.database.engine, host.usage, after=done.first + 2)
    assert (caught.value.step, caught.value.first) == (done.first + 3, done.first + 4)
    rows = await rows_of(host.database.engine, host.usage, after=done.first + 3)
    assert list(rows.positions) == list(range(done.first + 4, done.last + 1))


async def test_expiry_goes_in_order_and_is_bounded(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old event behind a young one would leave a hole; and a host that comes back after a month
    would delete everything in one transaction.
    """
    monkeypatch.setattr(event_log, "EXPIRY_ROWS_MAX", 4)
    done = await host.append(*range(10))
    await host.age("log", 8)
    log = host.streams.tables.log
    async with host.database.engine.begin() as connection:
        young = update(log).where(log.c.position == done.first + 6)
        await connection.execute(young.values(at=database_time_after(timedelta())))
    assert [await host.expire(done.last + 1) for _ in range(3)] == [4, 2, 0]
    async with host.database.engine.connect() as connection:
        assert await host.usage.begins_after(connection) == done.first + 5


async def test_expiry_of_one_log_leaves_others(host: Host) -> None:
    """Events of a log whose flows lag would go with those of another one."""
    async with host.database.session_factory.begin() as session:
        await host.other.append(session, events(1, 2), producer="m", seq=1)
    done = await host.append(1, 2)
    await host.age("log", 8)
    await host.age("appends", 8)
    assert await host.expire(done.last + 1) == 2
    assert await events_of(host.database.engine, host.other) == events(1, 2)
    async with host.database.session_factory() as session:
        assert await host.other.last_seq(session, "m") == 1


async def test_old_numbers_are_forgotten(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of numbers would grow for ever; and what says how far was deleted is none."""
    monkeypatch.setattr(event_log, "EXPIRY_ROWS_MAX", 3)
    done = await host.append(1, producer="meter", seq=0)
    for seq in range(1, 5):
        await host.append(1, producer="meter", seq=seq)
    await host.age("log", 8)
    await host.expire(done.last + 1)
    await host.age("appends", 8)
    await host.append(1, producer="meter", seq=5)
    assert [await host.expire(0) for _ in range(3)] == [3, 2, 0]
    async with host.database.session_factory() as session:
        assert await host.usage.last_seq(session, "meter") == 5
        assert await host.usage.begins_after(await session.connection()) == done.last


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda s: s.log("usage", Usage, key=str), "there is a log 'usage' already"),
        (lambda s: s.log("", Usage, key=str), "1 to 255 characters"),
        (lambda s: s.log("a/b", Usage, key=str), "without '/'"),
        (lambda s: s.log("x", Usage, key=str, keep=timedelta(-1)), "cannot be kept"),
    ],
)
def test_bad_logs(make: Callable[[Streams], Any], why: str) -> None:
    """A log would be declared that cannot be read later."""
    streams = Streams(Base)
    streams.log("usage", Usage, key=attrgetter("account"))
    with pytest.raises(ConfigurationError, match=why):
        make(streams)
