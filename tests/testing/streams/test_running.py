"""`run_flow`, `recorded` and `reference`: what a flow came to, and what it must have come to."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Index, String, delete, update
from sqlalchemy.orm import Mapped, mapped_column

from rowlock.errors import PipelineError
from rowlock.streams import FORGET, EventBatch, Forget, StepContext
from rowlock.testing import TemporaryDatabase
from rowlock.testing.streams import recorded, reference, run_flow

from ...streams.walk.flows import Bank, add_up, open_bank
from ...streams.walk.payments import Paid, pay

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
