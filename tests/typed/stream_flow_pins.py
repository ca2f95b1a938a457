"""What type checkers say of flows as a host declares and reads them. Never run: `test_pins.py` has
it checked.

A line that ends in ``# refused`` is an error for each of them, and no other line is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_type

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams import (
    FORGET,
    Appended,
    EventBatch,
    EventColumns,
    EventLog,
    ExchangeStage,
    Forget,
    InputRow,
    Output,
    StepContext,
    StreamFlow,
    Streams,
    TableSource,
)

Sessions = async_sessionmaker[AsyncSession]


class Base(DeclarativeBase):
    """The host's base."""


class Transfer(EventColumns, Base):
    """A fact in a table of the host."""

    __tablename__ = "transfers"
    __stream_key__ = "account"
    account: Mapped[str] = mapped_column()
    cents: Mapped[int] = mapped_column()


class Balance(Base):
    __tablename__ = "balances"
    account: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int] = mapped_column(default=0)


@dataclass(frozen=True)
class Use:
    meter: str
    units: int


@dataclass(frozen=True)
class Total:
    meter: str
    units: int = 0


streams = Streams(Base)
uses = streams.log("uses", Use, key=lambda use: use.meter)
transfers = TableSource(Transfer, position=Transfer.position, key=Transfer.account)
metering = streams.flow("metering", uses)
balances = streams.flow("balances", transfers)
both: StreamFlow[Use | Transfer] = streams.flow("both", uses, transfers)
without_one: StreamFlow[Use] = streams.flow("both", uses, transfers)  # refused
totals = metering.output("totals", Total)
second = metering.exchange("second", Total)
streams.log("uses", Use, key=lambda use: use.account)  # refused

assert_type(uses, EventLog[Use])
assert_type(transfers, TableSource[Transfer])
assert_type(metering, StreamFlow[Use])
assert_type(balances, StreamFlow[Transfer])
assert_type(totals, Output[Total])
assert_type(second, ExchangeStage[Total])
assert_type(balances.output("rows", into=Balance), Output[Balance])


@metering.by_key(state=Total)
def meter(
    step: StepContext, key: str, total: Total | None, events: Sequence[Use]
) -> Total | Forget:
    before = total or Total(key)
    after = replace(before, units=before.units + sum(use.units for use in events))
    step.emit(totals, after)
    step.send(second, "all", after)
    step.emit(totals, events[0])  # refused
    step.send(second, "all", events[0])  # refused
    step.send(totals, "all", after)  # refused
    return after if after.units else FORGET


@second.batch()
def ignore(step: StepContext, batch: EventBatch[Total], states: object) -> None:
    assert_type(batch.rows, list[Total])


@metering.by_key(state=int)  # refused
def of_another_state(
    step: StepContext, key: str, total: Total | None, events: Sequence[Use]
) -> Total:
    return total or Total(key)


@metering.by_key(state=Total)  # refused
async def later(step: StepContext, key: str, total: Total | None, events: Sequence[Use]) -> Total:
    return total or Total(key)


@metering.by_key(state=Total)  # refused
def forgets_return(step: StepContext, key: str, total: Total | None, events: Sequence[Use]) -> None:
    """Return nothing."""


@metering.by_key()  # refused
def has_a_state(step: StepContext, key: str, total: Total | None, events: Sequence[Use]) -> Total:
    return total or Total(key)


@second.batch()  # refused
def of_other_messages(step: StepContext, batch: EventBatch[Use], states: object) -> None:
    """Take what is not sent."""


@balances.fold(Balance)
def fold(step: StepContext, row: Balance, events: Sequence[Transfer]) -> None:
    row.cents += sum(transfer.cents for transfer in events)


@balances.fold(Balance)  # refused
def fold_of_another_row(step: StepContext, row: Transfer, events: Sequence[Transfer]) -> None:
    """Change a row of another model."""


@balances.fold(Balance)  # refused
def fold_of_other_events(step: StepContext, row: Balance, events: Sequence[Use]) -> None:
    """Take events of another flow."""


@both.by_key()
def either(step: StepContext, key: str, state: None, events: Sequence[Use | Transfer]) -> None:
    for event in events:
        if isinstance(event, Use):
            assert_type(event, Use)
        else:
            assert_type(event, Transfer)


@both.by_key()  # refused
def only_one(step: StepContext, key: str, state: None, events: Sequence[Use]) -> None:
    """Take the events of one of two sources."""


metering.by_key(state=Total, poison="forget")  # refused


async def append(session: AsyncSession) -> None:
    assert_type(await uses.append(session, [Use("a", 1)], producer="m", seq=1), Appended)
    await uses.append(session, [Total("a", 1)])  # refused
    await uses.append(session, ["a"])  # refused
    await uses.append(session, [Use("a", 1)], producer="m", seq="1")  # refused
    inputs = await metering.inputs_of(session, 5)
    assert_type(inputs.rows, Sequence[InputRow[Use]])


async def consume(sessions: Sessions) -> None:
    async for step in totals.consume(sessions, consumer="invoices"):
        assert_type(step.values, list[Total])
        assert_type(step.rows[0].value, Total)
        assert_type(step.values[0].cents, int)  # refused
        async with sessions.begin() as session:
            await step.ack(session)
        await step.ack(sessions)  # refused
