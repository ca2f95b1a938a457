"""Tables of hosts as streams: which ones can be, and what is read of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from copy import copy
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    DateTime,
    ForeignKey,
    Identity,
    Integer,
    LargeBinary,
    Numeric,
    String,
    insert,
    inspect,
    text,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    deferred,
    mapped_column,
    relationship,
)
from sqlalchemy.orm.exc import DetachedInstanceError

from rowlock import ModelError, UtcDateTime
from rowlock.streams.computing.hashing import BucketRange, bucket_of
from rowlock.streams.computing.rows import divide, input_digest
from rowlock.streams.inputs.source import in_order
from rowlock.streams.inputs.table_source import EventColumns, TableSource, event_table
from rowlock.testing import TemporaryDatabase

from .reading import HALVES, events_of, events_of_shards, rows_of

POSITION = BigInteger().with_variant(Integer, "sqlite")
WHEN = datetime(2026, 3, 1, 10, tzinfo=UTC)


class Base(DeclarativeBase):
    """A host's."""


class Person(Base):
    """Somebody to be loaded together with a payment."""

    __tablename__ = "people"
    id: Mapped[int] = mapped_column(primary_key=True)


class Payment(EventColumns, Base):
    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str] = mapped_column("acct")
    cents: Mapped[int]
    person_id: Mapped[int | None] = mapped_column(ForeignKey("people.id"))
    person: Mapped[Person | None] = relationship(lazy="joined")


class Measured(Base):
    """A table that was there before, with columns of many types."""

    __tablename__ = "measured"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012
    id: Mapped[int] = mapped_column(POSITION, Identity(), primary_key=True)
    device: Mapped[UUID]
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    amount: Mapped[Decimal] = mapped_column(Numeric(10, 2))
    raw: Mapped[bytes] = mapped_column(LargeBinary)
    more: Mapped[dict[str, Any]] = mapped_column(JSON)
    note: Mapped[str | None] = deferred(mapped_column(String(20)))


class DataclassBase(MappedAsDataclass, DeclarativeBase):
    """A host whose models are dataclasses."""


class Reading(EventColumns, DataclassBase):
    __tablename__ = "readings"
    __stream_key__ = "meter"
    meter: Mapped[int]
    units: Mapped[int] = mapped_column(default=1)


def measured() -> TableSource[Measured]:
    return TableSource(Measured, position=Measured.id, key=Measured.device)


async def add_payments(database: TemporaryDatabase, count: int) -> None:
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        for n in range(count // 3):
            session.add(Payment(account=f"a{n % 20}", cents=n))
        rest = range(count // 3, count)
        await session.execute(
            insert(Payment), [{"account": f"a{n % 20}", "cents": n} for n in rest[::2]]
        )
        await session.execute(
            insert(Payment).values([{"account": f"a{n % 20}", "cents": n} for n in rest[1::2]])
        )


async def test_rows_are_events(database: TemporaryDatabase) -> None:
    """A handler would see other values than the host has stored, or a row twice."""
    await add_payments(database, 60)
    events = await events_of(database.engine, event_table(Payment))
    assert sorted(event.cents for event in events) == list(range(60))
    assert all(event.account == f"a{event.cents % 20}" for event in events)
    assert [event.position for event in events] == sorted(event.position for event in events)
    # Of rows in one VALUES, SQLAlchemy asks for the default of a column without saying which row.
    assert {event.bucket for event in events} == {None, *(bucket_of(f"a{n}") for n in range(20))}
    assert all(event.bucket in (None, bucket_of(event.account)) for event in events)
    assert sum(event.bucket is None for event in events) == 20


def test_an_event_has_a_state_once_it_is_asked_for() -> None:
    """Handlers get a cheap row: a flow over a host's table would cost twice one over a log. It is
    an instance like any other all the same.
    """
    source = event_table(Payment)
    row = {"position": 5, "account": "a", "cents": 1, "person_id": None, "bucket": 7}
    raw = [tuple(row[name] for name in source.decoder._names)]  # type: ignore[attr-defined]
    event, other, third = source.decoder.build(raw * 3)
    assert vars(event) == row
    copied, pickled = copy(event), pickle.loads(pickle.dumps(other))
    for one in (event, copied, pickled):
        state: Any = inspect(one)
        assert (state.detached, state.modified, state.identity) == (True, False, (5,))
        one.cents += 1
        assert (state.modified, state.attrs.cents.history.deleted) == (True, [1])
    with pytest.raises(DetachedInstanceError):
        _ = third.person
    assert not hasattr(Payment.__new__(Payment), "_sa_instance_state")
    assert (inspect(Payment(account="a", cents=1)).transient, Reading(meter=1).units) == (True, 1)


async def test_each_shard_reads_its_own_rows(database: TemporaryDatabase) -> None:
    """A row would be worked on by two shards, or by none."""
    await add_payments(database, 60)
    raw = "INSERT INTO payments (acct, cents) VALUES ('raw 1', 100), ('raw 2', 101), ('a3', 102)"
    async with database.engine.begin() as connection:
        await connection.execute(text(raw))
    shards = await events_of_shards(database.engine, event_table(Payment))
    assert all(shards)
    assert sorted(event.cents for shard in shards for event in shard) == [
        *range(60),
        *range(100, 103),
    ]
    for half, events in zip(HALVES, shards, strict=True):
        assert all(half.lo <= bucket_of(event.account) < half.hi for event in events)


async def test_only_own_rows_and_those_without_a_bucket_are_fetched(
    database: TemporaryDatabase,
) -> None:
    """Each replica would read all rows of all others."""
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add_all(Payment(account=f"a{n}", cents=n) for n in range(20))
        raw = "INSERT INTO payments (acct, cents) VALUES ('raw', 100)"
        await session.execute(text(raw))
    own = bucket_of("a3")
    rows = await rows_of(database.engine, event_table(Payment), [BucketRange(own, own + 1)])
    assert {*rows.keys} == {"a3", "raw"}


async def test_values_of_many_types(database: TemporaryDatabase) -> None:
    """A handler would get what the driver returns instead of what the host has stored; and a
    replay would find other rows than the step did.
    """
    await database.create_tables(Base.metadata)
    values: dict[str, Any] = {
        "device": uuid4(),
        "at": WHEN,
        "amount": Decimal("1.50"),
        "raw": b"\0\1",
        "more": {"a": [1]},
    }
    async with database.session_factory.begin() as session:
        session.add(Measured(**values, note="later changed"))
    source = measured()
    (event,) = await events_of(database.engine, source)
    assert {name: getattr(event, name) for name in values} == values
    assert "note" not in vars(event)
    rows = await rows_of(database.engine, source)
    assert rows.keys == [str(values["device"])]
    assert source.decoder.column(source.decoder.parse(rows.raw), "amount") == [Decimal("1.50")]
    digest = input_digest([rows])
    async with database.engine.begin() as connection:
        await connection.execute(text("UPDATE measured SET note = 'changed'"))
    assert input_digest([await rows_of(database.engine, source)]) == digest


async def test_events_that_are_dataclasses(database: TemporaryDatabase) -> None:
    """Hosts with mapped dataclasses could have no streams, or would have to give positions."""
    await database.create_tables(DataclassBase.metadata)
    async with database.session_factory.begin() as session:
        session.add_all([Reading(meter=7), Reading(8, units=3)])
    events = await events_of(database.engine, event_table(Reading))
    assert [(event.meter, event.units, event.bucket) for event in events] == [
        (7, 1, bucket_of(7)),
        (8, 3, bucket_of(8)),
    ]


async def test_ahead_is_bounded_and_ascending(database: TemporaryDatabase) -> None:
    """A replica that comes late would read the positions of a whole table into memory."""
    await add_payments(database, 30)
    source = event_table(Payment)
    async with database.engine.begin() as connection:
        ahead, _ = await source.ahead(connection, after=4, upto=25, limit=10)
        rest, _ = await source.ahead(connection, after=14, upto=25, limit=100)
    assert list(ahead) == list(range(5, 15))
    assert list(rest) == list(range(15, 26))


async def test_a_key_that_is_none(database: TemporaryDatabase) -> None:
    """Whoever looks for the row that stops a flow would have to look at all of them."""
    await add_payments(database, 3)
    async with database.engine.begin() as connection:
        raw = text("INSERT INTO payments (acct, cents) VALUES (:key, 1)")
        await connection.execute(raw, {"key": "k" * 256})
    rows = await rows_of(database.engine, event_table(Payment))
    ((key, error),) = rows.broken.items()
    assert rows.keys[3] == key == "position 4 of payments"
    assert "position 4 of payments has no key" in str(error)
    assert "256 characters" in str(error)
    halves = await rows_of(database.engine, event_table(Payment), HALVES)
    assert [list(half.broken) for half in divide(halves, HALVES) if half.broken] == [[key]]


@pytest.mark.parametrize("given", [0, 40_000, -1, 1 << 16])
async def test_a_bucket_of_another_key(database: TemporaryDatabase, given: int) -> None:
    """Two shards would each keep a state of one key, and overwrite the other's; or none would have
    the row.
    """
    await add_payments(database, 3)
    async with database.session_factory.begin() as session:
        session.add(Payment(account="a1", cents=1, bucket=given))
    name = "position 4 of payments"
    rows = await rows_of(database.engine, event_table(Payment))
    assert list(rows.keys)[3:] == list(rows.broken) == [name]
    why = f"has the bucket {given}, and its key 'a1' has {bucket_of('a1')}"
    assert why in str(rows.broken[name])
    read = [await rows_of(database.engine, event_table(Payment), [half]) for half in HALVES]
    own = [divide(half, [each])[0] for half, each in zip(read, HALVES, strict=True)]
    assert [key for half in own for key in half.broken] == [name]
    assert sorted(at for half in own for at in half.positions) == [1, 2, 3, 4]


async def test_bad_keys_are_refused_where_they_are_added(database: TemporaryDatabase) -> None:
    """A row that no shard can take would stop its flow."""
    await database.create_tables(Base.metadata)
    async with database.session_factory() as session:
        session.add(Payment(account="k" * 256, cents=1))
        with pytest.raises(Exception, match="255 is the maximum"):
            await session.flush()


async def test_an_expression_as_key_gives_no_bucket(database: TemporaryDatabase) -> None:
    """What SQL computes is not known here; a wrong bucket would be worse than none."""
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add(Payment(account=text("'a' || 'b'"), cents=1))
    rows = await rows_of(database.engine, event_table(Payment))
    assert (rows.keys, list(rows.buckets)) == (["ab"], [None])


def models() -> Iterator[Any]:
    class Host(DeclarativeBase):
        pass

    class NoKey(EventColumns, Host):
        __tablename__ = "no_key"

    yield pytest.param(lambda: event_table(NoKey), "__stream_key__ must name", id="no key named")

    class WrongKey(EventColumns, Host):
        __tablename__ = "wrong_key"
        __stream_key__ = "acount"
        account: Mapped[str]

    yield pytest.param(lambda: event_table(WrongKey), "not 'acount'", id="wrong key named")

    class NullKey(EventColumns, Host):
        __tablename__ = "null_key"
        __stream_key__ = "account"
        account: Mapped[str | None]

    yield pytest.param(lambda: event_table(NullKey), "may be null", id="nullable key")

    class SecondKey(EventColumns, Host):
        __tablename__ = "second_key"
        __stream_key__ = "id"
        id: Mapped[str] = mapped_column(primary_key=True)

    yield pytest.param(lambda: event_table(SecondKey), "primary key beside", id="two keys")


def columns() -> Iterator[Any]:
    """Yield columns that a stream cannot have, and why."""

    class Host(DeclarativeBase):
        pass

    class Plain(Host):
        __tablename__ = "plain"
        id: Mapped[int] = mapped_column(POSITION, Identity(), primary_key=True)
        naive: Mapped[datetime] = mapped_column(DateTime())
        flag: Mapped[bool] = mapped_column(Boolean)
        amount: Mapped[float]
        day: Mapped[date]
        name: Mapped[str]
        kind: Mapped[str]

    class Other(Host):
        __tablename__ = "other"
        id: Mapped[int] = mapped_column(primary_key=True)

    yield pytest.param(lambda: event_table(Plain), "is no stream: add EventColumns", id="plain")
    for name in ("naive", "flag", "amount"):
        yield pytest.param(
            lambda name=name: TableSource(Plain, position=Plain.id, key=getattr(Plain, name)),
            f"plain.{name} is no key of a stream",
            id=f"key {name}",
        )
    yield pytest.param(
        lambda: TableSource(Plain, position=Plain.day, key=Plain.name),
        "positions are whole numbers",
        id="position of days",
    )
    yield pytest.param(
        lambda: TableSource(Plain, position=Plain.id, key=Other.id),
        "key of a stream is a column of plain",
        id="key elsewhere",
    )
    yield pytest.param(
        lambda: TableSource(Plain, position=Plain.id, key=Plain.name, bucket="bucket"),
        "bucket of a stream is a column of plain",
        id="bucket by name",
    )

    class Animal(Host):
        __tablename__ = "animals"
        id: Mapped[int] = mapped_column(POSITION, Identity(), primary_key=True)
        kind: Mapped[str]
        __mapper_args__ = {"polymorphic_on": "kind"}  # noqa: RUF012

    yield pytest.param(
        lambda: TableSource(Animal, position=Animal.id, key=Animal.kind), "hierarchy", id="classes"
    )


@pytest.mark.parametrize(("make", "why"), [*models(), *columns()])
def test_what_cannot_be_a_stream(make: Any, why: str) -> None:
    """A flow would begin, and lose rows or stop at its first step."""
    with pytest.raises(ModelError, match=why):
        make()


def test_what_must_not_change() -> None:
    """A flow would go on reading another table, or by another key, from where it was."""
    assert event_table(Payment).fingerprint() == "payments = table payments by position, acct"
    assert measured().fingerprint() == "measured = table measured by id, device"
    named = TableSource(Payment, position=Payment.position, key=Payment.account, name="paid")
    assert (named.name, named.topic) == ("paid", "Payment")
    with pytest.raises(ValueError, match="has no column person;"):
        named.decoder.column([], "person")


def test_columns_are_put_in_order() -> None:
    """Events of a key would change places, and a replay find another order than the step did."""
    assert in_order([(3, 1, 2), ("c", "a", "b")]) == [[1, 2, 3], ["a", "b", "c"]]


def test_columns_in_order_are_left() -> None:
    """Each row would be touched once more."""
    columns = [(1, 2), ("a", "b")]
    assert in_order(columns) is columns
    assert in_order([(), ()]) == [(), ()]
