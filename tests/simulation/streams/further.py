"""What stands beside the flow: one over its results, one that folds payments into a table of the
host; what services do that read snapshots, write folded rows, and delete what is not needed; and
how each is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Connection, String, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Mapped, mapped_column

from rowlock.database.transaction import in_transaction
from rowlock.rows.leased_table import LeasedTable
from rowlock.streams import Output, StepContext, StreamFlow
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.coordinator import Expiry
from rowlock.testing.streams.recorded import read_shards
from rowlock.testing.streams.running import read_reference

from ...simulator.at_once import at_once
from .host import Base, Host, Moved, Payment, Region

PATIENCE: Final = timedelta(seconds=3)


class Balance(Base):
    __tablename__ = "balances"
    account: Mapped[str] = mapped_column(String(20), primary_key=True)
    cents: Mapped[int] = mapped_column(default=0)


class Gift(Base):
    """What the host has added to a folded row by itself, in the same transaction."""

    __tablename__ = "gifts"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str] = mapped_column(String(20))
    cents: Mapped[int]


def declare_over_results(host: Host, **settings: Any) -> StreamFlow[Moved]:
    flow: StreamFlow[Moved] = host.streams.flow("totals", host.moved, **settings)

    @flow.by_key(state=Region)
    def total(
        step: StepContext, key: str, region: Region | None, events: Sequence[Moved]
    ) -> Region:
        cents, trail = (0, "") if region is None else (region.cents, region.trail)
        for event in events:
            cents += event.cents
            trail = sha256(f"{trail} {event}".encode()).hexdigest()[:8]
        return Region(cents, trail)

    return flow


def declare_fold(host: Host, **settings: Any) -> StreamFlow[Payment]:
    flow: StreamFlow[Payment] = host.streams.flow("balances", Payment, **settings)

    @flow.fold(Balance)
    def balance(step: StepContext, balance: Balance, events: Sequence[Payment]) -> None:
        balance.cents += sum(event.cents for event in events)

    return flow


async def give(sessions: async_sessionmaker[AsyncSession], account: str, cents: int) -> None:
    """Write a folded row, if it is there, and write down that it was."""
    more = update(Balance).where(Balance.account == account)
    async with sessions() as session, session.begin():
        given: Any = await session.execute(more.values(cents=Balance.cents + cents))
        if given.rowcount:
            session.add(Gift(account=account, cents=cents))


def check_balances(connection: Connection, flow: StreamFlow[Payment]) -> bool:
    """Check that each balance is what was paid in the steps that its shard has done, and what was
    given; return whether something was given.
    """
    program = flow.program
    shards = at_once(connection, lambda one: read_shards(one, program))
    steps = program.tables.steps
    cuts = select(steps.c.step, steps.c.upto).where(steps.c.flow_id == program.id)
    upto = {step: upto["payments"] for step, upto in connection.execute(cuts)}
    wanted = Counter[str]()
    for position, account, cents in connection.execute(
        select(Payment.position, Payment.account, Payment.cents)
    ):
        bucket = bucket_of(account)
        done = next(one.step for one in shards if bucket in one.range) - 1
        wanted[account] += cents if position <= upto[done] else 0
    gifts = connection.execute(select(Gift.account, Gift.cents)).all()
    for account, cents in gifts:
        wanted[account] += cents
    rows: Any = connection.execute(select(Balance.account, Balance.cents)).all()
    found = Counter(dict(rows))
    assert +found == +wanted, f"balances are {found}, and should be {wanted}"
    return bool(gifts)


async def discard(sessions: async_sessionmaker[AsyncSession], output: Output[Any]) -> None:
    """Delete results that all shards have written, if no flow and no consumer needs them."""
    shards, flow_id = output.tables.shards, output.flow_id
    frontier = select(func.min(shards.c.step)).where(shards.c.flow_id == flow_id)
    async with sessions() as session, session.begin():
        before = await session.scalar(frontier)
        if before is not None:
            await output.discard(session, before)


async def expire(sessions: async_sessionmaker[AsyncSession], flow: StreamFlow[Any]) -> None:
    """Do what a coordinator does once a minute, beside the others."""
    program = flow.program
    leased = LeasedTable.of(program.tables.flow_model)

    async def transact(work: Any, *, purpose: str, **_: Any) -> Any:
        return await in_transaction(sessions, leased, work, purpose=purpose, timeout=PATIENCE)

    await Expiry(program, transact, present_for=PATIENCE).run(goes_on=lambda: True)


@dataclass
class SnapshotReader:
    """Reads snapshots of a flow."""

    flow: StreamFlow[Any]
    found: list[tuple[int, Mapping[str, Mapping[str, Any]]]] = field(default_factory=list)

    async def read(self, sessions: async_sessionmaker[AsyncSession]) -> None:
        async with self.flow.snapshot(sessions) as snapshot:
            states = {}
            for stage in self.flow.program.stages:
                states[stage.name] = {key: value async for key, value in snapshot.items(stage.name)}
        self.found.append((snapshot.step, states))

    def check(self, connection: Connection) -> None:
        """Check that each has the states of all keys at the start of its step, and of no other."""
        program = self.flow.program
        for step, states in self.found:
            wanted = at_once(
                connection, lambda one, step=step: read_reference(one, program, before=step)
            ).states
            assert states == wanted, f"the snapshot at {step} has {states}, and not {wanted}"
