"""The host of simulated flows: payments in a table of its own, usage in a log, and what comes of
them: results by step, alarms in an outbox, and what a consumer has booked.

Not here: what goes wrong, and what is compared (``flows.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from operator import attrgetter
from typing import Any, Final, TypeAlias

from sqlalchemy import Index, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams import (
    FORGET,
    EventBatch,
    EventColumns,
    EventLog,
    ExchangeStage,
    Forget,
    Output,
    StepContext,
    StreamFlow,
    Streams,
    StreamStage,
)

WINDOWS_S: Final = (0.0, 0.7, 4.0)
"""How long a window may be open. **Unit** virtual seconds."""
ROUND: Final = 50
"""An alarm is raised whenever so many cents more are there."""


class Base(DeclarativeBase):
    """The mapped classes of this host."""


class Payment(EventColumns, Base):
    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str] = mapped_column(String(20))
    cents: Mapped[int]


class Alarm(Base):
    """An outbox: one row for each thing that is to be told."""

    __tablename__ = "alarms"
    __table_args__ = (Index("one_alarm", "dedup_key", unique=True),)
    id: Mapped[int] = mapped_column(primary_key=True)
    dedup_key: Mapped[str] = mapped_column(String(60))
    account: Mapped[str] = mapped_column(String(20))
    rounds: Mapped[int]


class Booking(Base):
    __tablename__ = "bookings"
    id: Mapped[int] = mapped_column(primary_key=True)
    step: Mapped[int]
    account: Mapped[str] = mapped_column(String(20))
    cents: Mapped[int]
    units: Mapped[int]


@dataclass(frozen=True)
class Used:
    account: str
    units: int


@dataclass(frozen=True)
class Account:
    """What is kept of an account: all of it since its window was opened."""

    cents: int = 0
    units: int = 0
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Moved:
    """A result: what one step has added to an account."""

    account: str
    cents: int
    units: int
    events: tuple[int, ...]


@dataclass(frozen=True)
class Closed:
    """A result: the window of an account has ended."""

    account: str
    cents: int
    units: int
    steps: tuple[int, ...]
    lot: int


@dataclass(frozen=True)
class Region:
    """What is kept of the accounts of a region, or of all of them."""

    cents: int = 0
    trail: str = ""


@dataclass
class Host:
    """One declaration of the flow."""

    streams: Streams
    usage: EventLog[Used]
    flow: StreamFlow[Any]
    moved: Output[Moved]
    closed: Output[Closed]
    summed: Output[Region]
    breaks: Callable[[str], None]


def declare(
    breaks: Callable[[str], None], *, stages: int, are_batches: Sequence[bool], **settings: Any
) -> Host:
    """Declare a flow."""
    streams = Streams(Base)
    kept = timedelta(seconds=settings["keep"])
    usage = streams.log("usage", Used, key=attrgetter("account"), keep=kept)
    flow: StreamFlow[Any] = streams.flow("accounts", Payment, usage, **settings)
    moved, closed = flow.output("moved", Moved), flow.output("closed", Closed)
    host = Host(streams, usage, flow, moved, closed, flow.output("summed", Region), breaks)
    regions = [flow.exchange(name, Moved) for name in ("regions", "all")[: stages - 1]]
    _register(flow, "account", _account_handler(host, regions), Account, is_batch=are_batches[0])
    for number, stage in enumerate(regions):
        later = regions[number + 1 :]
        handler = _region_handler(host, later)
        name = f"sum_of_{stage.name}"
        _register(stage, name, handler, Region, is_batch=are_batches[number + 1])
    return host


Handler: TypeAlias = Callable[[StepContext, str, Any, Sequence[Any]], Any]


def _register(
    stage: StreamStage[Any], name: str, handler: Handler, state: type, *, is_batch: bool
) -> None:
    """Have a stage call a handler of keys, in one way or the other."""

    def of_batch(
        step: StepContext, batch: EventBatch[Any], states: dict[str, Any]
    ) -> Mapping[str, Any]:
        groups = batch.groups()
        due = [key for key in batch.timers if key not in groups]
        return {
            key: handler(step, key, states.get(key), groups.get(key, ())) for key in [*groups, *due]
        }

    if is_batch:
        of_batch.__name__ = name
        stage.batch(state=state)(of_batch)
    else:
        handler.__name__ = name
        stage.by_key(state=state)(handler)


def _account_handler(host: Host, regions: Sequence[ExchangeStage[Moved]]) -> Handler:
    alarms = host.flow.output("alarms", into=Alarm)

    def of_key(
        step: StepContext, key: str, account: Account | None, events: Sequence[Any]
    ) -> Account | Forget:
        host.breaks(key)
        if not events:
            assert account is not None
            lot = step.random(key).randrange(1_000_000)
            window = Closed(key, account.cents, account.units, account.steps, lot)
            step.emit(host.closed, window, key=key)
            return FORGET
        if account is None:
            open_s = step.random(key).choice(WINDOWS_S)
            step.set_timer(step.now + timedelta(seconds=open_s), key=key)
            account = Account()
        paid = [event.cents for event in events if isinstance(event, Payment)]
        used = [event.units for event in events if isinstance(event, Used)]
        result = Moved(key, sum(paid), sum(used), (*paid, *used))
        step.emit(host.moved, result, key=key)
        for region in regions:
            step.send(region, region_of(key, region.name), result)
        cents = account.cents + sum(paid)
        if cents // ROUND > account.cents // ROUND:
            alarm = {"account": key, "rounds": cents // ROUND}
            step.emit(alarms, {"dedup_key": step.idempotency_key(key), **alarm})
        steps = (*account.steps, step.number)
        return Account(cents, account.units + sum(used), steps)

    return of_key


def _region_handler(host: Host, later: Sequence[ExchangeStage[Moved]]) -> Handler:
    def of_key(
        step: StepContext, key: str, region: Region | None, events: Sequence[Moved]
    ) -> Region | Forget:
        host.breaks(key)
        if not events:
            assert region is not None
            return Region(region.cents, f"timer {step.number}")
        cents, trail = (0, "") if region is None else (region.cents, region.trail)
        for event in events:
            cents += event.cents
            trail = sha256(f"{trail} {event}".encode()).hexdigest()[:8]
        if cents % 3 == 0:
            step.set_timer(step.now + timedelta(seconds=1), key=key)
        after = Region(cents, trail)
        step.emit(host.summed, after, key=key)
        for stage in later:
            step.send(stage, region_of(key, stage.name), Moved(key, cents, 0, ()))
        return after

    return of_key


def region_of(key: str, stage: str) -> str:
    return "all" if stage == "all" else f"r{int(key[1:]) % 3}"
