"""A host whose flows are run by processes that die: its tables, and the flows over them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import LockColumns, ScheduleColumns
from rowlock.dispatch import DispatchColumns, dispatch_indexes
from rowlock.streams import EventBatch, EventColumns, Output, StepContext, StreamFlow, Streams
from rowlock.streams.cut_plan import Checkpoint
from rowlock.streams.tables import StreamTables

__all__ = ["Alarm", "Balance", "Base", "Click", "Flow", "Frozen", "Invoiced", "Payment", "Told"]

SETTINGS: Final[dict[str, Any]] = {
    "shards": 2,
    "step_rows_max": 4,
    "poll_interval": 0.05,
    # Longer than a starved machine stands still: what is tried must not depend on its speed.
    "lock_timeout": 120.0,
    "database_timeout": 60.0,
    "fetch_delays": (0.05,),
}
ALARM_ABOVE: Final = 100


class Base(DeclarativeBase):
    """The host's."""


StreamTables.of(Base)


class Payment(EventColumns, Base):
    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str] = mapped_column(String(50))
    payee: Mapped[str] = mapped_column(String(50))
    cents: Mapped[int]


class Balance(Base):
    """What an account has paid: the state of a fold."""

    __tablename__ = "balances"
    account: Mapped[str] = mapped_column(String(50), primary_key=True)
    cents: Mapped[int] = mapped_column(default=0)
    payments: Mapped[int] = mapped_column(default=0)


class Alarm(LockColumns, ScheduleColumns, DispatchColumns, Base):
    """What is to be told outside: an outbox."""

    __tablename__ = "alarms"
    __table_args__ = dispatch_indexes("alarms")
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    account: Mapped[str] = mapped_column(String(50))
    cents: Mapped[int]


class Invoiced(Base):
    """What a consumer has put on the invoice of an account."""

    __tablename__ = "invoiced"
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    account: Mapped[str] = mapped_column(String(50), primary_key=True)
    cents: Mapped[int]


class Told(Base):
    """What the outside has heard of an alarm."""

    __tablename__ = "told"
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    account: Mapped[str] = mapped_column(String(50))
    cents: Mapped[int]


class Frozen(Base):
    """What a reader of a snapshot has put down."""

    __tablename__ = "frozen"
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    account: Mapped[str] = mapped_column(String(50), primary_key=True)
    cents: Mapped[int]


@dataclass(frozen=True)
class Click:
    account: str
    cents: int


@dataclass(frozen=True)
class Flow:
    """A flow of the host, declared anew for each process."""

    streams: Streams
    flow: StreamFlow[Any]


def balances(steps: int = 1, **settings: Any) -> Flow:
    """Return a flow that adds up the payments of accounts, and emits each new balance."""
    streams = Streams(Base)
    options = {**SETTINGS, "checkpoint": Checkpoint(steps=steps), **settings}
    flow: StreamFlow[Payment] = streams.flow("balances", Payment, **options)
    seen = flow.output("seen", int)

    @flow.by_key(state=int)
    def add(step: StepContext, key: str, cents: int | None, events: list[Payment]) -> int:
        after = (cents or 0) + sum(event.cents for event in events)
        step.emit(seen, after)
        return after

    return Flow(streams, flow)


def chained() -> Flow:
    """Return a flow that adds up, by account, the balances that another one has emitted."""
    first = balances()
    options = {**SETTINGS, "shards": 4}
    seen: Output[int] = first.flow.outputs["seen"]
    flow: StreamFlow[int] = first.streams.flow("sums", seen, **options)

    @flow.by_key(state=int)
    def add(step: StepContext, key: str, total: int | None, events: list[int]) -> int:
        return (total or 0) + sum(events)

    return Flow(first.streams, flow)


def folded() -> Flow:
    streams = Streams(Base)
    flow: StreamFlow[Payment] = streams.flow("folded", Payment, **SETTINGS)

    @flow.fold(Balance)
    def add(step: StepContext, balance: Balance, events: Sequence[Payment]) -> None:
        balance.cents += sum(event.cents for event in events)
        balance.payments += len(events)

    return Flow(streams, flow)


def alarming() -> Flow:
    """Return a flow whose results are rows of an outbox: one for each account that comes to have
    more than `ALARM_ABOVE`.
    """
    streams = Streams(Base)
    flow: StreamFlow[Payment] = streams.flow("alarms", Payment, **SETTINGS)
    alarms = flow.output("alarms", into=Alarm)

    @flow.by_key(state=int)
    def add(step: StepContext, key: str, cents: int | None, events: list[Payment]) -> int:
        before = cents or 0
        after = before + sum(event.cents for event in events)
        if before <= ALARM_ABOVE < after:
            told = {"account": key, "cents": after, "dedup_key": step.idempotency_key("alarm")}
            step.emit(alarms, told)
        return after

    return Flow(streams, flow)


def ledger(steps: int = 1, **settings: Any) -> Flow:
    """Return a flow of two stages, in which each payment is posted at two accounts."""
    streams = Streams(Base)
    options = {**SETTINGS, "checkpoint": Checkpoint(steps=steps), **settings}
    flow: StreamFlow[Payment] = streams.flow("ledger", Payment, **options)
    postings = flow.exchange("postings", int)
    seen = flow.output("seen", int)

    @flow.batch()
    def split(step: StepContext, batch: EventBatch[Any], _: Any) -> None:
        cents = batch.column("cents")
        step.send_many(postings, batch.column("account"), [-one for one in cents])
        step.send_many(postings, batch.column("payee"), cents)

    @postings.by_key(state=int)
    def post(step: StepContext, account: str, cents: int | None, moves: list[int]) -> int:
        after = (cents or 0) + sum(moves)
        step.emit(seen, after)
        return after

    return Flow(streams, flow)


def clicks(**settings: Any) -> Flow:
    streams = Streams(Base)
    log = streams.log("clicks", Click, key=lambda one: one.account)
    flow: StreamFlow[Click] = streams.flow("clicks", log, **{**SETTINGS, **settings})

    @flow.by_key(state=int)
    def add(step: StepContext, key: str, cents: int | None, events: list[Click]) -> int:
        return (cents or 0) + sum(event.cents for event in events)

    return Flow(streams, flow)
