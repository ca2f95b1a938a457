"""`run_flow`, `recorded` and `reference`: what a flow came to, and what it must have come to; also
of further stages, and of folds into tables of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Index, String, delete, insert, update
from sqlalchemy.orm import Mapped, mapped_column

from rowlock.errors import ConfigurationError, PipelineError
from rowlock.streams import FORGET, Checkpoint, EventBatch, Forget, StepContext
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.shards.layout import even_layout
from rowlock.testing import TemporaryDatabase
from rowlock.testing.streams import recorded, reference, run_flow
from rowlock.testing.streams.running import read_reference

from ...lengths import at_length
from ...streams.exchange.ledger import open_ledger
from ...streams.folds.books import Balance, Labelled, Monthly, Payment, open_books, payments
from ...streams.walk.flows import Bank, Paid, add_up, open_bank, pay

pytestmark = pytest.mark.either_database

WAIT = timedelta(minutes=5)


def windows(bank: Bank) -> None:
    """Register a handler that uses all that a handler may: timers, forgetting, random numbers."""
    closed = bank.flow.output("closed", int)
    lots = bank.flow.output("lots", str)

    @bank.flow.by_key(state=int)
    def collect(step: StepContext, key: str, sum_: int | None, events: list[Paid]) -> int | Forget:
        if not events:
            step.emit(closed, sum_ or 0)
            step.emit(lots, f"{step.random(key).random()} {step.idempotency_key()}", key="all")
            return FORGET
        step.set_timer(step.now + WAIT)
        return (sum_ or 0) + sum(event.cents for event in events)


async def test_states_of_an_earlier_step(database: TemporaryDatabase) -> None:
    """What a snapshot has could not be judged."""
    bank = await open_bank(database)
    add_up(bank)
    await bank.pay(100)
    first = await run_flow(bank.sessions, bank.flow)
    await bank.pay(100)
    second = await run_flow(bank.sessions, bank.flow)
    assert second.next_step > first.next_step
    earlier = await reference(bank.sessions, bank.flow, before=first.next_step)
    assert first.differences(earlier) == []
    assert second.differences(earlier) != []


async def test_rows_of_the_host_are_compared(database: TemporaryDatabase) -> None:
    """A result that is a row of the host could be lost, or there twice, and no test would fail."""
    bank = await open_bank(database)
    base: Any = next(one for one in bank.payment.__bases__ if hasattr(one, "metadata"))

    class Alarm(base):
        __tablename__ = "alarms"
        id: Mapped[int] = mapped_column(primary_key=True)
        dedup_key: Mapped[str] = mapped_column(String(50))
        cents: Mapped[int]
        note: Mapped[str] = mapped_column(String(50), default="new")
        __table_args__ = (Index("one_alarm", "dedup_key", unique=True),)

    await database.create_tables(Alarm.metadata)
    alarms = bank.flow.output("alarms", into=Alarm)

    @bank.flow.batch()
    def alarm(step: StepContext, batch: EventBatch[Paid], states: dict[str, Any]) -> None:
        for key, cents in zip(batch.keys, batch.column("cents"), strict=True):
            step.emit(alarms, {"dedup_key": key, "cents": cents})

    await bank.pay(100)
    record = await run_flow(bank.sessions, bank.flow)
    expected = await reference(bank.sessions, bank.flow)
    assert len(expected.rows["alarms"]) == len(bank.paid)
    assert record.differences(expected) == []
    async with bank.sessions.begin() as session:
        await session.execute(delete(Alarm).where(Alarm.dedup_key == min(bank.paid)))
        session.add(Alarm(dedup_key="more", cents=1))
    (text,) = (await recorded(bank.sessions, bank.flow)).differences(expected)
    assert "'more'" in text
    assert min(bank.paid) in text


async def test_each_difference_is_told(database: TemporaryDatabase) -> None:
    """A flow that is wrong would be found right."""
    bank = await open_bank(database)
    windows(bank)
    await bank.pay(100)
    await run_flow(bank.sessions, bank.flow)
    expected = await reference(bank.sessions, bank.flow)
    state, outputs = bank.streams.tables.state, bank.streams.tables.outputs
    some = state.c.key == min(bank.paid)
    statements = [
        (update(state).where(some).values(value="-1"), "states of 'collect'"),
        (update(state).where(some).values(timer_at=None), "timers of 'collect'"),
        (outputs.insert().values(**_a_result(bank)), "too many"),
    ]
    for statement, told in statements:
        async with bank.sessions.begin() as session:
            await session.execute(statement)
        differences = (await recorded(bank.sessions, bank.flow)).differences(expected)
        assert told in differences[0] or told in differences[-1]
        assert differences
    later = replace(expected, next_step=expected.next_step + 1)
    assert "steps, not" in expected.differences(later)[0]


def _a_result(bank: Bank) -> dict[str, Any]:
    names = {"output": "closed", "step": 0, "lo": 0, "seq": 0, "bucket": 0, "key": "a"}
    return {"flow_id": bank.flow.program.id, "payload": "5", **names}


async def test_what_cannot_be_compared_is_an_error(database: TemporaryDatabase) -> None:
    """A flow would be found right that has not done its steps."""
    bank = await open_bank(database, failures_max=1)

    @bank.flow.by_key(state=int)
    def add(step: StepContext, key: str, balance: int | None, events: list[Paid]) -> int:
        if key == "bad":
            raise LookupError("no such account")
        return 0

    with pytest.raises(PipelineError, match="ever started"):
        await reference(bank.sessions, bank.flow)
    with pytest.raises(PipelineError, match="there are none"):
        await recorded(bank.sessions, bank.flow)
    await bank.pay(100)
    await run_flow(bank.sessions, bank.flow)
    await pay(bank.sessions, bank.payment, [("bad", 1)])
    with pytest.raises(PipelineError, match=r"parked: .*no such account"):
        await run_flow(bank.sessions, bank.flow)
    with pytest.raises(PipelineError, match=r"reference .* fails: .*'bad'"):
        await reference(bank.sessions, bank.flow)
    steps = bank.streams.tables.steps
    async with bank.sessions.begin() as session:
        await session.execute(delete(steps).where(steps.c.step < 1))
    with pytest.raises(PipelineError, match="kept"):
        await reference(bank.sessions, bank.flow)
    async with bank.sessions.begin() as session:
        await bank.flow.unpark(session)
    with pytest.raises(PipelineError, match="not at one step"):
        await recorded(bank.sessions, bank.flow)


@pytest.mark.parametrize(("steps", "shards"), at_length([(7, 2)], [(1, 16), (7, 1), (7, 2)]))
async def test_messages_between_stages(
    database: TemporaryDatabase, steps: int, shards: int
) -> None:
    """A flow whose shards send each other messages could not be compared with one loop."""
    ledger = await open_ledger(database)
    for _ in range(2):
        await ledger.transfer_some(120)
        record = await run_flow(
            ledger.sessions, ledger.flow, shards=shards, checkpoint=Checkpoint(steps=steps)
        )
        assert record.differences(await reference(ledger.sessions, ledger.flow)) == []
        assert record.differences(await reference(ledger.sessions, ledger.flow, shards=8)) == []
    assert record.states["post"]
    assert sum(record.states["post"].values()) == 0


async def test_rows_of_a_fold(database: TemporaryDatabase) -> None:
    """A balance in the host's table could be wrong, or be missing, and no test would fail."""
    books = await open_books(database)
    for _ in range(2):
        await books.pay(payments(100))
        record = await run_flow(books.sessions, books.flow)
        expected = await reference(books.sessions, books.flow, shards=16)
        assert {key: row["cents"] for key, row in expected.folds["add"].items()} == books.paid
        assert record.differences(expected) == []
        assert "add" not in record.states
    await _write(database, update(Balance).values(note="of the host"))
    assert (await recorded(books.sessions, books.flow)).differences(expected) == []
    account, other = sorted(books.paid)[:2]
    await _write(
        database,
        update(Balance).where(Balance.account == account).values(cents=-1),
        delete(Balance).where(Balance.account == other),
        insert(Balance).values(account="more"),
    )
    texts = (await recorded(books.sessions, books.flow)).differences(expected)
    assert [text.split(" has ")[0] for text in texts] == [
        f"rows of the fold 'add': {key!r}" for key in (account, other, "more")
    ]


async def test_rows_by_several_columns(database: TemporaryDatabase) -> None:
    """Of a fold into parts of keys, rows of an earlier step would be looked for elsewhere."""
    books = await open_books(database, by_default=False)

    @books.flow.fold(Monthly, by=lambda event: (event.account, event.month))
    def add(step: StepContext, row: Monthly, events: Sequence[Payment]) -> None:
        row.cents += sum(event.cents for event in events)

    await books.pay(payments(100))
    record = await run_flow(books.sessions, books.flow)
    expected = await reference(books.sessions, books.flow, shards=4)
    assert {key: row["cents"] for key, row in expected.folds["add"].items()} == books.months
    assert record.differences(expected) == []
    early, late = even_layout(2)
    async with database.engine.connect() as connection:
        half = await read_reference(
            connection, books.flow.program, versions={early: 0, late: record.next_step}
        )
    assert {key[0] for key in half.folds["add"]} == {a for a in books.paid if bucket_of(a) in late}


async def test_what_the_database_gives_is_not_compared(database: TemporaryDatabase) -> None:
    """A fold into a table with a default of the database would never be found right."""
    books = await open_books(database, by_default=False)

    @books.flow.fold(Labelled)
    def add(step: StepContext, row: Labelled, events: Sequence[Payment]) -> None:
        row.cents += sum(event.cents for event in events)
        if row.account == "a1":
            row.label = "of the handler"

    await books.pay(payments(60))
    record = await run_flow(books.sessions, books.flow)
    expected = await reference(books.sessions, books.flow)
    assert record.differences(expected) == []
    assert expected.folds["add"]["a1"]["label"] == "of the handler"
    assert record.folds["add"]["a2"]["label"] == "of the table"
    await _write(database, update(Labelled).values(label="lost"))
    (text,) = (await recorded(books.sessions, books.flow)).differences(expected)
    assert "'a1'" in text


async def test_a_further_stage_may_fold_and_set_aside(database: TemporaryDatabase) -> None:
    """Behind an exchange, rows of the host would be wrong, or messages that fail be lost."""
    books = await open_books(database, by_default=False, failures_max=1)
    picky = books.flow.exchange("picky", int)
    totals = books.flow.exchange("totals", int)

    @books.flow.by_key()
    def send(step: StepContext, key: str, _: None, events: list[Payment]) -> None:
        for event in events:
            step.send(totals, key, event.cents)
            step.send(picky, event.month, event.cents)

    @totals.fold(Balance)
    def add(step: StepContext, row: Balance, cents: Sequence[int]) -> None:
        row.cents += sum(cents)

    @picky.by_key(state=int, poison="dead_letter")
    def add_up(step: StepContext, month: str, sum_: int | None, cents: list[int]) -> int:
        if month == "7":
            raise LookupError("closed")
        return (sum_ or 0) + sum(cents)

    await books.pay(payments(100))
    record = await run_flow(books.sessions, books.flow)
    assert record.differences(await reference(books.sessions, books.flow, shards=8)) == []
    assert {key: row["cents"] for key, row in record.folds["add"].items()} == books.paid
    dead = record.values("dead_letters")
    assert {(one.stage, one.key, one.source) for one in dead} == {("add_up", "7", "picky/0")}
    in_july = sum(cents for (_, month), cents in books.months.items() if month == 7)
    assert sum(int(one.payload) for one in dead) == in_july
    assert "7" not in record.states["add_up"]


async def test_a_fold_writes_with_every_step(database: TemporaryDatabase) -> None:
    """A test would run a flow as no host can declare it, and find faults that are none."""
    books = await open_books(database)
    with pytest.raises(ConfigurationError, match="every step"):
        await run_flow(books.sessions, books.flow, checkpoint=Checkpoint(steps=7))


async def _write(database: TemporaryDatabase, *statements: Any) -> None:
    async with database.session_factory.begin() as session:
        for statement in statements:
            await session.execute(statement)
