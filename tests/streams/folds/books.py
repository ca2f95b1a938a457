"""A host with payments, and tables that flows fold them into."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from sqlalchemy import CheckConstraint, String, event, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams import EventColumns, StepContext, StreamFlow, Streams
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..walk.flows import parked

SEED = 7
CENTS_MAX = 1_000_000


class Base(DeclarativeBase):
    """The host's."""


class Payment(EventColumns, Base):
    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str] = mapped_column(String(50))
    month: Mapped[int]
    cents: Mapped[int]


class Balance(Base):
    """What an account has; its note is the host's."""

    __tablename__ = "balances"
    __table_args__ = (CheckConstraint(f"cents < {CENTS_MAX}", name="few"),)
    account: Mapped[str] = mapped_column(String(50), primary_key=True)
    cents: Mapped[int] = mapped_column(default=0)
    payments: Mapped[int] = mapped_column(default=0)
    note: Mapped[str | None] = mapped_column(String(50))


class Monthly(Base):
    """What an account has paid in a month."""

    __tablename__ = "monthly"
    account: Mapped[str] = mapped_column(String(50), primary_key=True)
    month: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    cents: Mapped[int] = mapped_column(default=0)


class Labelled(Base):
    """A row to which the database gives something."""

    __tablename__ = "labelled"
    account: Mapped[str] = mapped_column(String(50), primary_key=True)
    cents: Mapped[int] = mapped_column(default=0)
    label: Mapped[str] = mapped_column(String(50), server_default="of the table")


Pay = tuple[str, int, int]
"""Account, month and cents."""


def payments(count: int, *, accounts: int = 20, seed: int = SEED) -> list[Pay]:
    rng = Random(seed)
    return [
        (f"a{rng.randrange(accounts)}", rng.randrange(1, 13), rng.randrange(1, 100))
        for _ in range(count)
    ]


def add(step: StepContext, balance: Balance, events: Sequence[Payment]) -> None:
    balance.cents += sum(event.cents for event in events)
    balance.payments += len(events)


@dataclass
class Books:
    """A host, and a flow over its payments."""

    database: TemporaryDatabase
    streams: Streams
    flow: StreamFlow[Payment]
    paid: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    months: Counter[tuple[str, int]] = field(default_factory=Counter)

    @property
    def sessions(self) -> async_sessionmaker[AsyncSession]:
        return self.database.session_factory

    async def pay(self, made: Sequence[Pay]) -> None:
        async with self.sessions.begin() as session:
            session.add_all(Payment(account=a, month=m, cents=c) for a, m, c in made)
        for account, month, cents in made:
            self.paid[account] += cents
            self.counts[account] += 1
            self.months[account, month] += cents

    async def settle(self) -> None:
        """Have a replica do all there is to do."""
        await run_until_settled(self.sessions, self.streams.pipelines())

    async def balances(self) -> dict[str, int]:
        async with self.sessions() as session:
            rows = await session.execute(select(Balance.account, Balance.cents))
            return {row.account: row.cents for row in rows}

    async def has_done_all(self) -> bool:
        """Whether all payments are in steps, and all shards have done these; fail where one is
        parked.
        """
        assert await parked(self) == []
        return await self.is_at_end()

    async def is_at_end(self) -> bool:
        """Whether all payments are in steps, and all shards have done these."""
        tables = self.streams.tables
        async with self.sessions() as session:
            flow = (await session.execute(select(tables.flows))).first()
            newest = await session.scalar(select(func.max(Payment.position))) or 0
            steps = set((await session.scalars(select(tables.shards.c.step))).all())
        return flow is not None and flow.upto["payments"] >= newest and steps == {flow.next_step}


async def open_books(
    database: TemporaryDatabase, *, by_default: bool = True, cache: bool = False, **settings: Any
) -> Books:
    """Create the tables, and declare a flow that folds payments into balances."""
    streams = Streams(Base)
    await database.create_tables(Base.metadata)
    options: dict[str, Any] = {"shards": 4, "step_rows_max": 40, "poll_interval": 0.05, **settings}
    flow = streams.flow("books", Payment, **options)
    if by_default:
        flow.fold(Balance, cache=cache)(add)
    return Books(database, streams, flow)


class Pause:
    """Holds a handler still in the middle of its first call, until the test lets it go on."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self) -> None:
        if not self.begun.is_set():
            self.begun.set()
            self.over.wait()


@contextmanager
def statements_about(database: TemporaryDatabase, table: str) -> Any:
    """Give a list to which each statement about a table is added by its first word."""
    seen: list[str] = []

    def note(_c: Any, _u: Any, statement: str, *_: Any) -> None:
        if f" {table} " in statement.replace("\n", " ") + " ":
            seen.append(statement.split(maxsplit=1)[0])

    engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)
