"""A host whose flows hold to their contract: a log with sessions that end by timers, and a second
stage; and a table of payments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams import (
    FORGET,
    EventBatch,
    EventColumns,
    Forget,
    StepContext,
    StreamFlow,
    Streams,
)

PAUSE = timedelta(minutes=10)


class Base(DeclarativeBase):
    """The host's."""


class Payment(EventColumns, Base):
    """An event in a table of its own."""

    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str] = mapped_column(String(50))
    cents: Mapped[int]


class Balance(Base):
    __tablename__ = "balances"
    account: Mapped[str] = mapped_column(String(50), primary_key=True)
    cents: Mapped[int] = mapped_column(default=0)


@dataclass(frozen=True)
class Visit:
    person: str
    page: str


@dataclass(frozen=True)
class Session:
    """The pages of a person, until there is a pause."""

    pages: tuple[str, ...] = ()


streams = Streams(Base)
visits = streams.log("visits", Visit, key=attrgetter("person"))
sessions = streams.flow("sessions", visits, shards=4)
read = sessions.exchange("read", int)
ended = sessions.output("ended", str)


@sessions.by_key(state=Session, poison="dead_letter")
def collect(
    step: StepContext, person: str, session: Session | None, events: list[Visit]
) -> Session | Forget:
    """Collect the pages of a session; send how many there were when it has ended."""
    pages = () if session is None else session.pages
    if not events:
        step.emit(ended, f"{len(pages)} {step.random(person).random()} {step.idempotency_key()}")
        for page in sorted(set(pages)):
            step.send(read, page, pages.count(page))
        return FORGET
    step.set_timer(step.now + PAUSE)
    return Session((*pages, *(event.page for event in events)))


@read.by_key(state=int)
def add_up(step: StepContext, page: str, times: int | None, more: list[int]) -> int:
    return (times or 0) + sum(more)


balances = streams.flow("balances", Payment, shards=2)


@balances.fold(Balance)
def add(step: StepContext, balance: Balance, payments: Sequence[Payment]) -> None:
    balance.cents += sum(payment.cents for payment in payments)


sums = streams.flow("sums", Payment, shards=2)
changed = sums.output("changed", int)


@sums.batch(state=int)
def sum_up(step: StepContext, batch: EventBatch[Payment], states: dict[str, int]) -> dict[str, int]:
    after = dict(states)
    for key, cents in zip(batch.keys, batch.column("cents"), strict=True):
        after[key] = after.get(key, 0) + cents
    for key, sum_ in after.items():
        step.emit(changed, sum_, key=key)
    return after


tops: StreamFlow[int] = streams.flow("tops", changed, shards=1)


@tops.by_key(state=int)
def highest(step: StepContext, key: str, top: int | None, values: list[int]) -> int:
    return max([top or 0, *values])


unordered = streams.flow("unordered", Payment, shards=1)


@unordered.by_key(state=str)
def listed(step: StepContext, key: str, before: str | None, events: list[Payment]) -> str:
    return ",".join({f"{key}{number}" for number in range(9)})


scattered = streams.flow("scattered", Payment, shards=1)
names = scattered.output("names", str)


@scattered.by_key()
def scatter(step: StepContext, key: str, _: None, events: list[Payment]) -> None:
    """Hand out names in the order of a set."""
    for name in {f"{key}{number}" for number in range(9)}:
        step.emit(names, name)


def some_visits() -> list[Visit]:
    return [Visit(f"p{n % 7}", f"page {n * n % 5}") for n in range(60)]


def some_payments() -> list[Payment]:
    return [Payment(account=f"a{n * n % 11}", cents=n % 17) for n in range(60)]
