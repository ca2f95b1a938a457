"""The host whose streams are measured: payments in a log, and a flow that keeps the balance of each
account.

The flow is paused while payments are added, so what is measured begins with a backlog and with
shards that are open: its start has a measure of its own.
"""

from __future__ import annotations

import asyncio
from bisect import bisect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate
from random import Random
from typing import Any

from measure import Place
from meter import Meter
from sqlalchemy import String, Table, func, insert, select, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import PipelineManager
from rowlock.streams import (
    EventBatch,
    EventColumns,
    EventLog,
    Output,
    StepContext,
    StreamFlow,
    Streams,
)

LOOKS_EVERY_S = 0.001
APPENDED_AT_ONCE = 10_000
KEYS = 10_000
ZIPF = 1.1
SEED = 18


@dataclass(frozen=True, slots=True)
class Payment:
    account: str
    cents: int
    shop: str


@dataclass(eq=False)
class EventHost:
    """Streams in a database of their own.

    Attributes:
        engine: of the replica that is measured.
        sessions: of its host.
        streams: one log and one flow.
        log: of payments.
        model: a table of the host's with payments, which the flow reads instead; None: the log.
        flow: keeps balances.
        balances: each new balance, if they are emitted.
        seen: how many events the handler got.
        state_chars: the length of states that are texts.
        on_call: called with each account that the handler gets events of.
    """

    engine: AsyncEngine
    sessions: async_sessionmaker[AsyncSession]
    streams: Streams
    log: EventLog[Payment]
    flow: StreamFlow[Any]
    model: Any = None
    balances: Output[int] | None = None
    seen: int = 0
    state_chars: int = 0
    on_call: Callable[[str], None] | None = None

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        place: Place,
        *,
        empty: bool = True,
        emits: bool = False,
        exchanges: bool = False,
        is_table: bool = False,
        state_chars: int = 0,
        **options: Any,
    ) -> AsyncIterator[EventHost]:
        """Make the tables anew, unless somebody else did.

        Args:
            place: where.
            empty: whether they are made.
            emits: whether each new balance is a result.
            exchanges: balances are kept in a second stage, by keys of other shards.
            is_table: payments are rows of a table of the host's.
            state_chars: states are texts of this length instead of balances.
            options: of the flow.
        """
        engine = create_async_engine(place.url)
        base: Any = type("EventBase", (DeclarativeBase,), {"__doc__": "The bench's streams."})
        streams = Streams(base)
        log = streams.log("payments", Payment, key=_account)
        model = _payment_row(base) if is_table else None
        flow = streams.flow("balances", model or log, **options)
        sessions = async_sessionmaker(engine, expire_on_commit=False)
        host = cls(engine, sessions, streams, log, flow, model)
        host.balances = flow.output("seen", int) if emits else None
        if exchanges:
            host.add_second_stage()
        elif state_chars:
            host.state_chars = state_chars
            flow.by_key(state=str)(host.grow)
        else:
            flow.by_key(state=int)(host.add_up)
        try:
            if empty:
                async with engine.begin() as connection:
                    await connection.run_sync(base.metadata.drop_all)
                    await connection.run_sync(base.metadata.create_all)
            yield host
        finally:
            await engine.dispose()

    def add_up(
        self, step: StepContext, account: str, cents: int | None, payments: list[Payment]
    ) -> int:
        self.seen += len(payments)
        if self.on_call is not None:
            self.on_call(account)
        after = (cents or 0) + sum(payment.cents for payment in payments)
        if self.balances is not None:
            step.emit(self.balances, after)
        return after

    def add_second_stage(self) -> None:
        """Have each payment sent to the shard that keeps the balance of its account, which is
        another one as a rule.
        """
        moves = self.flow.exchange("moves", int)

        @self.flow.batch()
        def send(step: StepContext, batch: EventBatch[Payment], _: Mapping[str, None]) -> None:
            keys = [account[::-1] for account in batch.column("account")]
            step.send_many(moves, keys, batch.column("cents"))

        @moves.by_key(state=int)
        def add_moves(step: StepContext, account: str, cents: int | None, some: list[int]) -> int:
            self.seen += len(some)
            return (cents or 0) + sum(some)

    def grow(
        self, step: StepContext, account: str, before: str | None, payments: list[Payment]
    ) -> str:
        """Keep a long text for an account, another one with each event."""
        self.seen += len(payments)
        return str(step.number).ljust(self.state_chars, "x")

    @property
    def is_postgresql(self) -> bool:
        return self.engine.dialect.name == "postgresql"

    @property
    def source(self) -> Table:
        return self.streams.tables.log if self.model is None else self.model.__table__

    @asynccontextmanager
    async def running(self) -> AsyncIterator[PipelineManager]:
        """Run the flow in one replica, whose shards are open when this is entered."""
        manager = PipelineManager(self.sessions, self.streams.pipelines())
        async with manager:
            await self.append(payments_of(1))
            await self.wait_until_done()
            yield manager

    async def append(self, payments: Sequence[Payment]) -> None:
        """Add payments as a service does, many in a transaction."""
        for begin in range(0, len(payments), APPENDED_AT_ONCE):
            some = payments[begin : begin + APPENDED_AT_ONCE]
            async with self.sessions.begin() as session:
                if self.model is None:
                    await self.log.append(session, some)
                else:
                    await session.execute(insert(self.model), [asdict(one) for one in some])

    async def append_behind_pause(self, payments: Sequence[Payment]) -> None:
        """Add payments while the flow is paused, and let the planner know."""
        async with self.sessions.begin() as session:
            await self.flow.pause(session)
        await self.append(payments)
        async with self.engine.begin() as connection:
            await connection.execute(text("ANALYZE"))

    async def work_off(self, meter: Meter) -> None:
        """End the pause, and measure until all that was added is written."""
        goal = self.seen + await self._lag()
        meter.start()
        async with self.sessions.begin() as session:
            await self.flow.resume(session)
        while self.seen < goal:  # noqa: ASYNC110 - to be told of each step would be measured, too
            await asyncio.sleep(LOOKS_EVERY_S)
        await self.wait_until_done()
        meter.stop()

    async def wait_until_done(self) -> None:
        """Wait until all that was added is cut, and all that is cut is written."""
        while not await self._is_done():  # noqa: ASYNC110 - the database tells nobody
            await asyncio.sleep(LOOKS_EVERY_S)

    async def _is_done(self) -> bool:
        tables = self.streams.tables
        newest = select(func.max(self.source.c.position)).scalar_subquery()
        frontier = select(func.min(tables.shards.c.step)).scalar_subquery()
        async with self.sessions() as session:
            row = (
                await session.execute(
                    select(tables.flows.c.upto, tables.flows.c.next_step, frontier, newest)
                )
            ).first()
        return row is not None and row[0][self.log.name] >= (row[3] or 0) and row[2] == row[1]

    async def _lag(self) -> int:
        log, flows = self.source, self.streams.tables.flows
        async with self.sessions() as session:
            upto = (await session.scalar(select(flows.c.upto)))[self.log.name]
            behind = select(func.count()).where(log.c.position > upto)
            return await session.scalar(behind) or 0


def _payment_row(base: Any) -> Any:
    class PaymentRow(EventColumns, base):
        __tablename__ = "payments"
        __stream_key__ = "account"
        account: Mapped[str] = mapped_column(String(255))
        cents: Mapped[int]
        shop: Mapped[str] = mapped_column(String(20))

    return PaymentRow


def payments_of(
    count: int, *, keys: int = KEYS, zipf: float | None = ZIPF, seed: int = SEED
) -> list[Payment]:
    """Return payments of so many accounts, the same ones for one seed.

    Args:
        count: how many.
        keys: of how many accounts.
        zipf: the exponent by which some accounts have more than others; None: all have as many.
        seed: of the random numbers.
    """
    rng = Random(seed)
    if zipf is None:
        chosen = [rng.randrange(keys) for _ in range(count)]
    else:
        sums = list(accumulate((n + 1) ** -zipf for n in range(keys)))
        chosen = [bisect(sums, rng.random() * sums[-1]) for _ in range(count)]
    return [Payment(account_of(n), rng.randrange(1, 1000), f"s{n % 50}") for n in chosen]


def account_of(number: int) -> str:
    return f"account-{number}"


def _account(payment: Payment) -> str:
    return payment.account
