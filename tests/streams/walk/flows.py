"""Flows of balances over payments, and what their tests ask of the database."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.streams.computing.handlers import StepContext
from rowlock.streams.flow import StreamFlow
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.streams.streams import Streams
from rowlock.testing import TemporaryDatabase

from .payments import Paid, new_base, pay

SEED = 3
BASE, PAYMENT = new_base()
"""One for all: its statements are compiled once."""


@dataclass
class Bank:
    """A host with payments and one flow over them.

    Attributes:
        database: where the rows are.
        payment: the model of the payments.
        streams: of the host.
        flow: the balances of accounts.
        paid: what the balances are to be.
    """

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
        """Add payments, so many of them in a transaction."""
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
        """Return step, key and value of each result, in their order."""
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
        """Return how many rows one of the wing's tables has."""
        async with self.sessions() as session:
            found = select(func.count()).select_from(getattr(self.streams.tables, table))
            return (await session.execute(found)).scalar_one()


async def open_bank(database: TemporaryDatabase, **settings: Any) -> Bank:
    """Create the tables, and declare a flow that adds up payments and emits each new balance."""
    streams = Streams(BASE)
    await database.create_tables(BASE.metadata)
    options: dict[str, Any] = {"shards": 4, "step_rows_max": 50, "poll_interval": 0.05, **settings}
    flow = streams.flow("balances", PAYMENT, **options)
    return Bank(database, PAYMENT, streams, flow, Counter())


def add_up(bank: Bank) -> None:
    """Register the handler that keeps balances, and emits each new one."""
    seen = bank.flow.output("seen", int)

    @bank.flow.by_key(state=int)
    def add(step: StepContext, key: str, balance: int | None, events: list[Paid]) -> int:
        after = (balance or 0) + sum(event.cents for event in events)
        step.emit(seen, after)
        return after
