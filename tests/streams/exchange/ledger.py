"""A ledger: transfers between accounts, each of which is posted at both of them in one step; and a
recount of it that knows nothing of shards.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from random import Random
from typing import Any

from sqlalchemy import String, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import PipelineManager
from rowlock.streams import (
    EventBatch,
    EventColumns,
    ExchangeStage,
    StepContext,
    StreamFlow,
    Streams,
)
from rowlock.streams.computing.hashing import bucket_of
from rowlock.testing import TemporaryDatabase

from ..walk.flows import FAST, until

SEED = 7
ACCOUNTS = 40


@dataclass
class Ledger:
    """A host with transfers and a flow of two stages over them.

    Attributes:
        database: where the rows are.
        transfer: the model of the transfers.
        streams: of the host.
        flow: the ledger.
        postings: its second stage.
        note: the model of rows that are results.
        made: how many transfers there are.
        broken: accounts that cannot be posted at, each with the first step of which that is so.
        unstorable: accounts whose results no database stores.
        fee: cents that are taken from each transfer, by code that has changed.
    """

    database: TemporaryDatabase
    transfer: Any
    streams: Streams
    flow: StreamFlow[Any]
    postings: ExchangeStage[int]
    note: Any
    made: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    unstorable: set[str] = field(default_factory=set)
    fee: int = 0

    @property
    def sessions(self) -> async_sessionmaker[AsyncSession]:
        return self.database.session_factory

    async def transfer_some(self, count: int, *, per_commit: int = 40) -> None:
        """Add transfers, so many of them in a transaction."""
        rng = Random(SEED + self.made)
        rows = [
            {
                "payer": (payer := f"a{rng.randrange(ACCOUNTS)}"),
                "payee": f"a{rng.randrange(ACCOUNTS)}",
                "cents": rng.randrange(1, 100),
                "bucket": bucket_of(payer),
            }
            for _ in range(count)
        ]
        for begin in range(0, count, per_commit):
            async with self.sessions.begin() as session:
                await session.execute(insert(self.transfer), rows[begin : begin + per_commit])
        self.made += count

    async def rows(self, table: str, *order: str) -> list[Any]:
        """Return the rows of one of the wing's tables."""
        found = getattr(self.streams.tables, table)
        async with self.sessions() as session:
            by = [found.c[name] for name in order]
            return list((await session.execute(select(found).order_by(*by))).all())

    async def shards(self) -> list[Any]:
        """Return the rows of the shards, in the order of their buckets."""
        return await self.rows("shards", "lo")

    async def flow_row(self) -> Any:
        """Return the row of the flow; None as long as there is none."""
        return next(iter(await self.rows("flows")), None)

    async def is_at_end(self) -> bool:
        """Whether all that was added is cut, and all that is cut is done."""
        row = await self.flow_row()
        if row is None:
            return False
        async with self.sessions() as session:
            newest = await session.scalar(select(func.max(self.transfer.position))) or 0
        steps = {one.step for one in await self.shards()}
        return row.upto["transfers"] >= newest and steps == {row.next_step}

    async def wait_for_end(self) -> None:
        """Wait until it is there; the test's own limit ends it."""
        await until(self.is_at_end)

    async def check(self) -> None:
        """Compare all results with a recount over the cuts; and see that nothing was made or lost
        on the way, at every step.
        """
        expected = await self._recount()
        found = [
            (row.step, row.key, int(row.payload))
            for row in await self.rows("outputs", "step", "key", "seq")
        ]
        assert found == expected
        balances: dict[str, int] = {}
        for step, results in groupby(found, key=itemgetter(0)):
            balances.update((key, cents) for _, key, cents in results)
            assert sum(balances.values()) == 0, step

    async def check_states(self) -> None:
        """Compare the stored states with the last results; all have to be written."""
        rows = await self.rows("state", "key")
        last = {key: cents for _, key, cents in await self._recount()}
        found = {row.key: int(row.value) for row in rows if row.name == "post"}
        assert found == last

    async def _recount(self) -> list[tuple[int, str, int]]:
        """Return step, account and balance of each account that a step has touched."""
        model = self.transfer
        columns = (model.position, model.payer, model.payee, model.cents)
        async with self.sessions() as session:
            rows = (await session.execute(select(*columns).order_by(model.position))).all()
        cuts = [(row.step, row.upto["transfers"]) for row in await self.rows("steps", "step")]
        balances: defaultdict[str, int] = defaultdict(int)
        found = []
        left = deque(rows)
        for step, upto in cuts:
            touched = set()
            while left and left[0].position <= upto:
                row = left.popleft()
                balances[row.payer] -= row.cents
                balances[row.payee] += row.cents
                touched |= {row.payer, row.payee}
            found += [(step, key, balances[key]) for key in sorted(touched)]
        return found

    @asynccontextmanager
    async def replicas(self, count: int = 1) -> AsyncIterator[Sequence[PipelineManager]]:
        managers = [PipelineManager(self.sessions, self.streams.pipelines()) for _ in range(count)]
        for manager in managers:
            await manager.__aenter__()
        try:
            yield managers
        finally:
            for manager in managers:
                await manager.__aexit__(None, None, None)


class Base(DeclarativeBase):
    pass


class Transfer(EventColumns, Base):
    __tablename__ = "transfers"
    __stream_key__ = "payer"
    payer: Mapped[str] = mapped_column(String(50))
    payee: Mapped[str] = mapped_column(String(50))
    cents: Mapped[int]


class Note(Base):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str] = mapped_column(String(50))


async def open_ledger(database: TemporaryDatabase, **settings: Any) -> Ledger:
    streams = Streams(Base)
    await database.create_tables(Base.metadata)
    options: dict[str, Any] = {
        "shards": 4,
        "step_rows_max": 50,
        "poll_interval": 0.1,
        **FAST,
        **settings,
    }
    flow = streams.flow("ledger", Transfer, **options)
    ledger = Ledger(database, Transfer, streams, flow, flow.exchange("postings", int), Note)
    declare(ledger)
    return ledger


def declare(ledger: Ledger) -> None:
    postings = ledger.postings
    seen = ledger.flow.output("seen", int)
    notes = ledger.flow.output("notes", into=ledger.note)

    @ledger.flow.batch()
    def split(step: StepContext, batch: EventBatch[Any], _: Any) -> None:
        cents = batch.column("cents")
        step.send_many(postings, batch.column("payer"), [-one for one in cents])
        step.send_many(postings, batch.column("payee"), [one - ledger.fee for one in cents])

    @postings.by_key(state=int)
    def post(step: StepContext, account: str, cents: int | None, moves: list[int]) -> int:
        if step.number >= ledger.broken.get(account, step.number + 1):
            raise LookupError("no such account")
        after = (cents or 0) + sum(moves)
        step.emit(seen, after)
        if account in ledger.unstorable:
            for _ in range(2):
                step.emit(notes, {"id": 1, "account": account})
        return after
