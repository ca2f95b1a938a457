"""Results as rows of the host: written with their step, and delivered by a pipeline over them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Enum,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    UniqueConstraint,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    ConfigurationError,
    LockColumns,
    PipelineManager,
    ScheduleColumns,
    UtcDateTime,
    database_now,
)
from rowlock.dispatch import (
    Completed,
    DispatchColumns,
    DispatchPipeline,
    LoopEngine,
    Task,
    dispatch_indexes,
)
from rowlock.streams import Checkpoint, EventColumns, Output, StepContext, StreamFlow, Streams
from rowlock.streams.outputs import _is_outbox_rule
from rowlock.testing import TemporaryDatabase, run_until_settled

from ...lengths import at_length
from ..walk.flows import FAST, until

SUM_MAX = 30


class Base(DeclarativeBase):
    """A host's."""


class Payment(EventColumns, Base):
    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str] = mapped_column(String(50))
    cents: Mapped[int]


class Line(Base):
    __tablename__ = "lines"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    who: Mapped[str] = mapped_column("account", String(50))
    amount: Mapped[Decimal] = mapped_column(Numeric(10, 2))
    step: Mapped[int] = mapped_column(BigInteger)
    more: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    kind: Mapped[str] = mapped_column(String(10), server_default="plain")
    note: Mapped[str | None] = mapped_column(String(10))
    at: Mapped[datetime] = mapped_column(UtcDateTime, default=database_now())


class Toned(Base):
    """A result with a column that cannot read all that it can keep."""

    __tablename__ = "toned"
    account: Mapped[str] = mapped_column(String(50), primary_key=True)
    tone: Mapped[Any] = mapped_column(Enum("red", "blue", native_enum=False), nullable=True)


class Alarm(LockColumns, ScheduleColumns, DispatchColumns, Base):
    """What is to be told outside: an outbox."""

    __tablename__ = "alarms"
    __table_args__ = dispatch_indexes("alarms")
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    account: Mapped[str] = mapped_column(String(50))


def new_flow(**settings: Any) -> tuple[Streams, StreamFlow[Payment]]:
    streams = Streams(Base)
    options: dict[str, Any] = {"shards": 4, "step_rows_max": 40, **settings}
    return streams, streams.flow("books", Payment, **options)


async def pay(database: TemporaryDatabase, payments: int) -> Counter[str]:
    made = [(f"a{n % 9}", n) for n in range(1, payments + 1)]
    async with database.session_factory.begin() as session:
        session.add_all(Payment(account=account, cents=cents) for account, cents in made)
    sums = Counter[str]()
    for account, cents in made:
        sums[account] += cents
    return sums


@pytest.mark.parametrize("steps", at_length([7], [1, 7]))
async def test_results_are_rows_of_the_host(database: TemporaryDatabase, steps: int) -> None:
    """A row would be missing or there twice, or lack what its model gives it by default."""
    streams, flow = new_flow(checkpoint=Checkpoint(steps=steps))
    lines = flow.output("lines", into=Line)

    @flow.by_key()
    def write(step: StepContext, account: str, _: None, events: Sequence[Payment]) -> None:
        for n, event in enumerate(events):
            given: dict[str, Any] = {
                "who": account,
                "amount": Decimal(event.cents) / 100,
                "step": step.number,
            }
            if n % 2:
                given["more"] = {"n": n}
                given["note"] = "odd"
            step.emit(lines, given)

    await database.create_tables(Base.metadata)
    sums = await pay(database, 200)
    await run_until_settled(database.session_factory, streams.pipelines())
    async with database.session_factory() as session:
        rows = (await session.scalars(select(Line))).all()
    found = Counter[str]()
    for row in rows:
        found[row.who] += int(row.amount * 100)
    assert (found, len(rows)) == (sums, 200)
    assert {row.note is None for row in rows} == {True, False}
    assert all((row.more == {}) == (row.note is None) for row in rows)
    assert {row.kind for row in rows} == {"plain"}
    assert all(row.at.tzinfo is not None for row in rows)
    assert {row.step for row in rows} == set(range(5))


@pytest.mark.either_database
@pytest.mark.parametrize("kind", ["into", "fold"])
async def test_a_value_that_could_not_be_read_is_not_written(
    database: TemporaryDatabase, kind: str
) -> None:
    """A typo would be written, and the host's own SELECT of the table fail from then on. The shard
    is parked, and its error names the column and the type of the value.
    """
    streams, flow = new_flow(failures_max=1, **FAST)
    if kind == "into":
        toned = flow.output("toned", into=Toned)

        @flow.by_key()
        def write(step: StepContext, account: str, _: None, events: Sequence[Payment]) -> None:
            step.emit(toned, {"account": account, "tone": "green"})
    else:

        @flow.fold(Toned)
        def change(step: StepContext, row: Toned, events: Sequence[Payment]) -> None:
            row.tone = "green"

    await database.create_tables(Base.metadata)
    await pay(database, 1)
    errors: list[str | None] = []

    async def is_parked() -> bool:
        async with database.session_factory() as session:
            shards = (await flow.status(session)).shards
        errors.extend(shard.error for shard in shards if shard.is_parked)
        return bool(errors)

    async with PipelineManager(database.session_factory, streams.pipelines()):
        await until(is_parked)
    assert "Toned.tone cannot be set to a value of type str" in str(errors[0])
    async with database.session_factory() as session:
        assert (await session.scalars(select(Toned))).all() == []


async def test_an_outbox_is_delivered_once_for_each_key(database: TemporaryDatabase) -> None:
    """An alarm would be sent twice, or never, since nobody hears that there is one."""
    streams, flow = new_flow(step_rows_max=20)
    alarms = flow.output("alarms", into=Alarm)

    @flow.by_key(state=int)
    def add(step: StepContext, account: str, cents: int | None, events: Sequence[Payment]) -> int:
        after = (cents or 0) + sum(event.cents for event in events)
        if after > SUM_MAX:
            # Of the account alone: what comes while the first alarm waits is about the same.
            step.emit(alarms, {"dedup_key": account, "account": account})
        return after

    await database.create_tables(Base.metadata)
    sent = Counter[str]()

    async def tell(task: Task[Alarm]) -> AsyncIterator[Completed]:
        sent[task.row.account] += 1
        yield Completed()

    sums = await pay(database, 200)
    await run_until_settled(database.session_factory, streams.pipelines())
    async with database.session_factory() as session:
        keys = (await session.scalars(select(Alarm.dedup_key))).all()
    assert sorted(keys) == sorted(sums)
    mails = DispatchPipeline(Alarm, handler=tell, engine=LoopEngine(4))
    await run_until_settled(database.session_factory, [mails])
    assert sent == dict.fromkeys(sums, 1)


class Letter(Base):
    """A result that is there once, by a constraint."""

    __tablename__ = "letters"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    dedup_key: Mapped[str] = mapped_column(String(50), unique=True)
    step: Mapped[int]


class Notice(Base):
    """A result that is there once, since that is its primary key."""

    __tablename__ = "notices"
    dedup_key: Mapped[str] = mapped_column(String(50), primary_key=True)
    step: Mapped[int]


@pytest.mark.parametrize("model", at_length([Notice], [Letter, Notice]))
async def test_a_key_is_unique_however_it_was_declared(
    database: TemporaryDatabase, model: type[Letter | Notice]
) -> None:
    """The second result of a key would be refused by the database, and park its shard."""
    streams, flow = new_flow(step_rows_max=20, failures_max=1)
    rows: Output[Letter | Notice] = flow.output("rows", into=model)
    assert rows.is_outbox  # type: ignore[attr-defined]

    @flow.by_key()
    def tell(step: StepContext, account: str, _: None, events: Sequence[Payment]) -> None:
        step.emit(rows, {"dedup_key": account, "step": step.number})

    await database.create_tables(Base.metadata)
    sums = await pay(database, 60)
    await run_until_settled(database.session_factory, streams.pipelines())
    async with database.session_factory() as session:
        found = (await session.execute(select(model.dedup_key, model.step))).all()
        assert (await flow.status(session)).frontier == 3
    assert {row.dedup_key: row.step for row in found} == dict.fromkeys(sums, 0)


async def test_a_key_that_is_checked_later_is_no_outbox() -> None:
    """PostgreSQL would refuse each step: a deferrable constraint names no row to leave out."""
    table = Table(
        "later",
        MetaData(),
        Column("id", Integer, primary_key=True),
        Column("dedup_key", String(50)),
        UniqueConstraint("dedup_key", deferrable=True),
    )
    assert not any(map(_is_outbox_rule, (*table.indexes, *table.constraints)))


async def test_the_pipeline_of_the_rows_is_woken() -> None:
    """Alarms would wait until the pipeline over them looks by itself."""
    _, flow = new_flow()
    assert flow.output("alarms", into=Alarm).topic == "Alarm"


@pytest.mark.parametrize(
    ("value", "error", "why"),
    [
        (
            {"who": "a", "amount": 1, "step": 1, "sum": 1},
            TypeError,
            "no column sum; it has id, who",
        ),
        ({"account": "a", "amount": 1, "step": 1}, TypeError, "no column account"),
        ({"who": "a", "step": 1}, ValueError, "needs amount"),
        ({"who": "a", "amount": None, "step": 1}, ValueError, "needs amount"),
        (Line(who="a", step=1), ValueError, "needs amount"),
        ("a", TypeError, "by their names"),
    ],
)
def test_what_is_no_row_is_refused_where_it_is_emitted(
    value: Any, error: type[Exception], why: str
) -> None:
    """The database would refuse it in the transaction of other shards, and not say who gave it."""
    _, flow = new_flow()
    lines = flow.output("lines", into=Line)
    with pytest.raises(error, match=why):
        lines.stored(value)


@pytest.mark.either_database
async def test_rows_of_the_host_are_read_by_the_host(database: TemporaryDatabase) -> None:
    """A consumer would wait for ever for results that are elsewhere."""
    _, flow = new_flow()
    lines = flow.output("lines", into=Line)
    assert lines.fingerprint() == "lines into lines"
    with pytest.raises(ConfigurationError, match="rows of lines: read them there"):
        lines.consume(database.session_factory)
    async with database.session_factory() as session:
        with pytest.raises(ConfigurationError, match="delete them there"):
            await lines.discard(session, 1)
    with pytest.raises(ConfigurationError, match="pass `type` or `into`"):
        flow.output("both", Line, into=Line)
