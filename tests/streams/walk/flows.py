"""Flows of balances over payments, and what their tests ask of the database and wait for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

from sqlalchemy import String, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams.computing.handlers import StepContext
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.flow import StreamFlow
from rowlock.streams.inputs.table_source import EventColumns
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.streams.streams import Streams
from rowlock.testing import TemporaryDatabase

MEANT: Final = {"rowlock_changes_events": True}
"""Options of a statement that changes events on purpose."""


class Paid(Protocol):
    """An event: the model of each base is a class of its own."""

    account: str
    cents: int


def new_base() -> tuple[type[DeclarativeBase], Any]:
    class Base(DeclarativeBase):
        pass

    class Payment(EventColumns, Base):
        __tablename__ = "payments"
        __stream_key__ = "account"
        account: Mapped[str] = mapped_column(String(50))
        cents: Mapped[int]

    return Base, Payment


async def pay(
    sessions: async_sessionmaker[AsyncSession], model: Any, payments: Sequence[tuple[str, int]]
) -> None:
    rows = [
        {"account": account, "cents": cents, "bucket": None if n % 3 == 2 else bucket_of(account)}
        for n, (account, cents) in enumerate(payments)
    ]
    async with sessions.begin() as session:
        await session.execute(insert(model), rows)


SEED = 3
BASE, PAYMENT = new_base()
"""One for all: its statements are compiled once."""


@dataclass
class Bank:
    """A host with payments and one flow over them."""

    database: TemporaryDatabase
    payment: Any
    streams: Streams
    flow: StreamFlow[Paid]
    paid: Counter[str]

    @property
    def sessions(self) -> async_sessionmaker[AsyncSession]:
        return self.database.session_factory

    def pipeline(self) -> FlowPipeline:
        pipelines = self.streams.pipelines(self.flow)
        (found,) = [one for one in pipelines if isinstance(one, FlowPipeline)]
        return found

    async def pay(self, payments: int, *, accounts: int = 30, per_commit: int = 60) -> None:
        rng = Random(SEED + sum(self.paid.values()))
        made = [(f"a{rng.randrange(accounts)}", rng.randrange(1, 100)) for _ in range(payments)]
        for begin in range(0, payments, per_commit):
            await pay(self.sessions, self.payment, made[begin : begin + per_commit])
        for account, cents in made:
            self.paid[account] += cents

    async def balances(self) -> dict[str, int]:
        table = self.streams.tables.state
        async with self.sessions() as session:
            rows = await session.execute(select(table.c.key, table.c.value))
            return {key: int(value) for key, value in rows if value is not None}

    async def results(self) -> list[tuple[int, str, int]]:
        table = self.streams.tables.outputs
        async with self.sessions() as session:
            rows = await session.execute(
                select(table.c.step, table.c.key, table.c.payload).order_by(
                    table.c.step, table.c.key, table.c.lo, table.c.seq
                )
            )
            return [(step, key, int(payload)) for step, key, payload in rows]

    async def shards(self) -> list[Any]:
        """Return the rows of the shards, in the order of their buckets."""
        table = self.streams.tables.shards
        async with self.sessions() as session:
            return list((await session.execute(select(table).order_by(table.c.lo))).all())

    async def flow_row(self) -> Any:
        """Return the row of the flow; None as long as there is none."""
        async with self.sessions() as session:
            return (await session.execute(select(self.streams.tables.flows))).first()

    async def count(self, table: str) -> int:
        async with self.sessions() as session:
            found = select(func.count()).select_from(getattr(self.streams.tables, table))
            return (await session.execute(found)).scalar_one()


async def open_bank(database: TemporaryDatabase, **settings: Any) -> Bank:
    """Create the tables, and declare a flow that adds up payments and emits each new balance."""
    streams = Streams(BASE)
    await database.create_tables(BASE.metadata)
    options: dict[str, Any] = {"shards": 4, "step_rows_max": 50, "poll_interval": 0.1, **settings}
    flow = streams.flow("balances", PAYMENT, **options)
    return Bank(database, PAYMENT, streams, flow, Counter())


def add_up(bank: Bank) -> None:
    seen = bank.flow.output("seen", int)

    @bank.flow.by_key(state=int)
    def add(step: StepContext, key: str, balance: int | None, events: list[Paid]) -> int:
        after = (balance or 0) + sum(event.cents for event in events)
        step.emit(seen, after)
        return after


FAST: dict[str, Any] = {"lock_timeout": 6.0, "renew_timeout": 1.8, "fetch_delays": (0.1,)}
"""Settings of pipelines under which replicas notice each other soon. A starved machine may stand
still for so long as a renewal may take, and no open transaction is aborted.
"""


ASKS_AGAIN_S: Final = 0.01
"""How soon a question is asked again for the first time. **Unit** seconds."""
ASKS_AGAIN_S_MAX: Final = 0.1
"""How soon it is asked again in the end: each answer takes time of the loop that works on it.
**Unit** seconds.
"""


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a question is answered with yes; the test's own limit ends it."""
    again_s = ASKS_AGAIN_S
    while not await check():
        await asyncio.sleep(again_s)
        again_s = min(again_s * 1.5, ASKS_AGAIN_S_MAX)


async def is_at_end(bank: Bank) -> bool:
    """Whether all that was added is cut, and all that is cut is done."""
    row = await bank.flow_row()
    async with bank.sessions() as session:
        newest = await session.scalar(select(func.max(bank.payment.position))) or 0
    if row is None or row.upto["payments"] < newest:
        return False
    return {one.step for one in await bank.shards()} == {row.next_step}


async def lose_leases(host: Any, *lows: int) -> None:
    """Take the leases of shards that begin there, or of all, as if nobody had taken them yet."""
    shards = host.streams.tables.shards
    lost = update(shards).where(*[shards.c.lo.in_(lows)] * bool(lows))
    free = {"lock_token": None, "lock_owner": None, "lock_expires_at": None}
    async with host.sessions.begin() as session:
        await session.execute(lost.values(free))


async def parked(host: Any) -> list[str]:
    """Return the errors of the shards that are parked."""
    shards = host.streams.tables.shards
    async with host.sessions() as session:
        found = select(shards.c.last_error).where(shards.c.parked_at.is_not(None))
        return list(await session.scalars(found))


async def until_parked(host: Any, count: int = 1) -> list[str]:
    """Wait until so many shards are parked; return their errors."""
    while len(errors := await parked(host)) < count:  # noqa: ASYNC110 - no event of ours
        await asyncio.sleep(ASKS_AGAIN_S_MAX)
    return errors
