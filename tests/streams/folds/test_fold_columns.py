"""Folds into rows with columns and keys of many types, on both databases."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import (
    JSON,
    Computed,
    Enum,
    Integer,
    LargeBinary,
    Numeric,
    PickleType,
    String,
    TypeDecorator,
    func,
    select,
    text,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    composite,
    deferred,
    mapped_column,
)

from rowlock import UtcDateTime
from rowlock.streams import StepContext, StreamFlow, Streams
from rowlock.testing import TemporaryDatabase, run_until_settled

from ...lengths import at_length

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True)
class Money:
    """Another one, whose values are compared by the host's own code."""

    cents: int


class MoneyType(TypeDecorator[Money]):
    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: Money | None, dialect: Any) -> int | None:
        return None if value is None else value.cents

    def process_result_value(self, value: int | None, dialect: Any) -> Money | None:
        return None if value is None else Money(value)


@dataclass
class Span:
    first: int
    last: int


class Base(DeclarativeBase):
    """The host's."""


class Wide(Base):
    __tablename__ = "wide"
    key: Mapped[str] = mapped_column("wide_key", String(50), primary_key=True)
    amount: Mapped[Decimal] = mapped_column(Numeric(12, 2), default=Decimal(0))
    device: Mapped[UUID | None]
    at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    day: Mapped[date | None]
    took: Mapped[timedelta | None]
    mood: Mapped[Mood] = mapped_column(Enum(Mood), default=Mood.GOOD)
    seen: Mapped[dict[str, int]] = mapped_column(JSON, default=dict)
    last: Mapped[list[Any]] = mapped_column(JSON, default=[])
    raw: Mapped[bytes] = mapped_column(LargeBinary, default=b"")
    bag: Mapped[Any] = mapped_column(PickleType, default=set)
    share: Mapped[float] = mapped_column(default=0.5)
    flag: Mapped[bool] = mapped_column(default=False)
    money: Mapped[Money] = mapped_column(MoneyType, default=Money(0))
    first: Mapped[int] = mapped_column(default=0)
    latest: Mapped[int] = mapped_column(default=0)
    span: Mapped[Span] = composite("first", "latest")
    doubled: Mapped[int] = mapped_column(Computed("first * 2"))
    note: Mapped[str | None] = deferred(mapped_column(String(50)))
    kind: Mapped[str] = mapped_column(String(10), server_default="plain")
    made: Mapped[datetime] = mapped_column(UtcDateTime, default=func.now())
    tag: Mapped[str] = mapped_column(String(40), default=lambda: str(uuid4()))
    changed: Mapped[int] = mapped_column(default=0, onupdate=text("changed + 1"))


@dataclass(frozen=True)
class Event:
    key: str
    number: int


def new_flow(base: Any, key: Callable[[Any], Any], **options: Any) -> tuple[Any, Any, Any]:
    """Return a host's streams, a log, and a flow over it."""
    streams = Streams(base)
    log = streams.log("events", Event, key=key)
    return streams, log, streams.flow("fold", log, shards=4, step_rows_max=20, **options)


async def append(database: TemporaryDatabase, log: Any, events: Sequence[Event]) -> None:
    """Add events to a log, in transactions of five."""
    for begin in range(0, len(events), 5):
        async with database.session_factory.begin() as session:
            await log.append(session, events[begin : begin + 5])


def register_wide(flow: StreamFlow[Event]) -> None:
    """Register a fold that changes all columns, most of them in place where that can be done."""

    @flow.fold(Wide)
    def change(step: StepContext, row: Wide, events: Sequence[Event]) -> None:
        for event in events:
            row.amount += Decimal(event.number) / 4
            row.device = UUID(int=event.number)
            row.at = NOON + timedelta(seconds=event.number)
            row.day = date(2026, 1, 1) + timedelta(event.number)
            row.took = timedelta(seconds=event.number)
            row.mood = Mood.BAD if event.number % 2 else Mood.GOOD
            row.seen[str(event.number % 3)] = row.seen.get(str(event.number % 3), 0) + 1
            row.last.append(event.number)
            row.raw += bytes([event.number % 256])
            row.bag.add(event.number)
            row.share = event.number / 8
            row.flag = not row.flag
            row.money = Money(row.money.cents + event.number)
            row.span = Span(row.first + 1, event.number)
            row.note = f"n{event.number}"


async def test_values_of_many_types(database: TemporaryDatabase) -> None:
    """A value would be lost or be another one; one that was changed in place not be written."""
    streams, log, flow = new_flow(Base, attrgetter("key"))
    register_wide(flow)
    await database.create_tables(Base.metadata)
    events = [Event(f"k{n % 4}", n) for n in range(1, 81)]
    await append(database, log, events[:40])
    await run_until_settled(database.session_factory, streams.pipelines())
    async with database.session_factory() as session:
        tags = {row.key: row.tag for row in (await session.scalars(select(Wide))).all()}
    await append(database, log, events[40:])
    await run_until_settled(database.session_factory, streams.pipelines())
    async with database.session_factory() as session:
        rows = (await session.scalars(select(Wide))).all()
        notes = dict((await session.execute(select(Wide.key, Wide.note))).all())
    assert {row.key for row in rows} == {f"k{n}" for n in range(4)}
    for row in rows:
        own = [event.number for event in events if event.key == row.key]
        assert row.amount == Decimal(sum(own)) / 4
        assert (row.device, row.at) == (UUID(int=own[-1]), NOON + timedelta(seconds=own[-1]))
        assert row.day == date(2026, 1, 1) + timedelta(own[-1])
        assert row.took == timedelta(seconds=own[-1])
        assert row.mood is (Mood.BAD if own[-1] % 2 else Mood.GOOD)
        assert row.seen == Counter(str(number % 3) for number in own)
        assert (row.last, row.raw, row.bag) == (own, bytes(own), set(own))
        assert (row.share, row.flag) == (own[-1] / 8, len(own) % 2 == 1)
        assert row.money == Money(sum(own))
        assert (row.first, row.latest, row.doubled) == (len(own), own[-1], 2 * len(own))
        assert notes[row.key] == f"n{own[-1]}"
        assert (row.kind, row.tag) == ("plain", tags[row.key])
        assert row.made.tzinfo is not None
        assert 1 <= row.changed <= len(own)


async def test_a_json_value_that_python_takes_for_the_same(database: TemporaryDatabase) -> None:
    """A handler that makes True of 1 would have changed nothing."""
    streams, log, flow = new_flow(Base, attrgetter("key"))

    @flow.fold(Wide)
    def change(step: StepContext, row: Wide, events: Sequence[Event]) -> None:
        for event in events:
            row.seen["is"] = True if event.number == 2 else 1

    await database.create_tables(Base.metadata)
    for number in (1, 2):
        await append(database, log, [Event("k", number)])
        await run_until_settled(database.session_factory, streams.pipelines())
    async with database.session_factory() as session:
        assert (await session.scalars(select(Wide.seen))).one()["is"] is True


class DataclassBase(MappedAsDataclass, DeclarativeBase):
    """A host whose models are dataclasses."""


class Total(DataclassBase):
    __tablename__ = "totals"
    key: Mapped[str] = mapped_column(String(50), primary_key=True)
    units: Mapped[int] = mapped_column(default=0)
    parts: Mapped[list[int]] = mapped_column(JSON, default_factory=list)
    rank: Mapped[int] = mapped_column(init=False, default=5)
    made: Mapped[int | None] = mapped_column(default=None)


@pytest.mark.parametrize("cache", at_length([True], [False, True]))
async def test_rows_that_are_dataclasses(database: TemporaryDatabase, cache: bool) -> None:
    """Hosts with mapped dataclasses could not fold, or their defaults would be missing."""
    streams, log, flow = new_flow(DataclassBase, attrgetter("key"))

    @flow.fold(Total, cache=cache)
    def change(step: StepContext, row: Total, events: Sequence[Event]) -> None:
        row.units += sum(event.number for event in events)
        row.parts += [event.number for event in events]
        row.rank += 1

    await database.create_tables(DataclassBase.metadata)
    events = [Event(f"k{n % 3}", n) for n in range(30)]
    for half in (events[:15], events[15:]):
        await append(database, log, half)
        await run_until_settled(database.session_factory, streams.pipelines())
    async with database.session_factory() as session:
        rows = (await session.scalars(select(Total))).all()
    for row in rows:
        own = [event.number for event in events if event.key == row.key]
        assert (row.units, row.parts, row.made) == (sum(own), own, None)
        assert row.rank > 5
    assert len(rows) == 3


class Keyed(DeclarativeBase):
    """A host with keys of many types."""


class ByNumber(Keyed):
    __tablename__ = "by_number"
    key: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    count: Mapped[int] = mapped_column(default=0)


class ByUuid(Keyed):
    __tablename__ = "by_uuid"
    key: Mapped[UUID] = mapped_column(primary_key=True)
    count: Mapped[int] = mapped_column(default=0)


class ByDay(Keyed):
    __tablename__ = "by_day"
    key: Mapped[date] = mapped_column(primary_key=True)
    count: Mapped[int] = mapped_column(default=0)


class ByTime(Keyed):
    __tablename__ = "by_time"
    key: Mapped[datetime] = mapped_column(UtcDateTime, primary_key=True)
    count: Mapped[int] = mapped_column(default=0)


class ByBoth(Keyed):
    """A row of a UUID and a date."""

    __tablename__ = "by_both"
    device: Mapped[UUID] = mapped_column(primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    hour: Mapped[datetime] = mapped_column(UtcDateTime, primary_key=True)
    count: Mapped[int] = mapped_column(default=0)


def _uuid(event: Event) -> UUID:
    return UUID(int=event.number % 5)


def _day(event: Event) -> date:
    return date(2026, 1, 1) + timedelta(event.number % 5)


def _time(event: Event) -> datetime:
    return NOON + timedelta(seconds=event.number % 5, microseconds=event.number % 2)


def _both(event: Event) -> tuple[UUID, date, datetime]:
    return _uuid(event), _day(event), _time(event)


@pytest.mark.parametrize(
    ("model", "key", "by"),
    [
        (ByNumber, lambda event: event.number % 5 - 2, None),
        (ByBoth, _uuid, _both),
        *at_length(
            [],
            [
                (ByNumber, lambda event: event.number % 5 - 2, lambda event: event.number % 5 - 2),
                (ByUuid, _uuid, None),
                (ByDay, _day, None),
                (ByTime, _time, None),
            ],
        ),
    ],
)
async def test_keys_of_many_types(
    database: TemporaryDatabase, model: Any, key: Callable[[Event], Any], by: Any
) -> None:
    """A row would not be found again, so each step would begin anew or be refused."""
    streams, log, flow = new_flow(Keyed, key)

    @flow.fold(model, by=by)
    def count(step: StepContext, row: Any, events: Sequence[Event]) -> None:
        row.count += len(events)

    await database.create_tables(Keyed.metadata)
    events = [Event("", n) for n in range(60)]
    for half in (events[:30], events[30:]):
        await append(database, log, half)
        await run_until_settled(database.session_factory, streams.pipelines())
    keys = list(model.__table__.primary_key)
    async with database.session_factory() as session:
        rows = (await session.execute(select(*keys, model.count))).all()
    found = {(row[0] if by is not _both else tuple(row[:-1])): row[-1] for row in rows}
    assert found == Counter(map(by or key, events))
