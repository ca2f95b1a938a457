"""`crash_flow_everywhere`: flows that survive every crash, and some that do not, with the statement
named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import randrange
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.errors import PipelineError
from rowlock.streams import Checkpoint, StepContext, StreamFlow, Streams
from rowlock.testing import CrashError, TemporaryDatabase, virtual_time
from rowlock.testing.killable_replica import KillableReplica
from rowlock.testing.streams import crash_flow_everywhere

from ...lengths import at_length
from . import house
from .house import Base, Payment

IS_LARGE = at_length(usual=False, long=True)
"""Each statement of each flow, at length; otherwise COMMITs, and of one flow."""
EVENTS = 9 if IS_LARGE else 2
EVERY_SEVEN = Checkpoint(steps=7)


def some_payments() -> list[Payment]:
    return house.some_payments()[:EVENTS]


async def crash(database: TemporaryDatabase, flow: StreamFlow[Any], **options: Any) -> int:
    await database.create_tables(Base.metadata)
    every = {"events": some_payments, "commits_only": not IS_LARGE, **options}
    return await crash_flow_everywhere(database, flow, **every)


@virtual_time
async def test_steps_are_done_again(virtual_database: TemporaryDatabase) -> None:
    """A replica that dies between two checkpoints would leave states behind its results, or a
    message of two stages in none of them.
    """

    def some_visits() -> list[house.Visit]:
        return house.some_visits()[:EVENTS]

    moments = await crash(
        virtual_database, house.sessions, events=some_visits, checkpoint=EVERY_SEVEN
    )
    assert moments > 6


@pytest.mark.at_length
@pytest.mark.parametrize("name", ["balances", "sums", "tops"])
async def test_each_statement(database_with_clock: TemporaryDatabase, name: str) -> None:
    """A replica that dies within a transaction would leave something, or lock the next one out."""
    before = [house.sums] if name == "tops" else []
    moments = await crash(database_with_clock, getattr(house, name), before=before)
    assert moments > 30


@pytest.mark.at_length
async def test_on_each_database(database_with_clock: TemporaryDatabase) -> None:
    """A connection that is cut would be one that SQLite alone gives up."""
    moments = await crash(database_with_clock, house.balances, events=lambda: some_payments()[:1])
    assert moments > 6


@pytest.mark.at_length
@virtual_time
async def test_a_replay_that_differs_is_found(virtual_database: TemporaryDatabase) -> None:
    """A flow would pass that is parked after the first crash, and nobody be told where."""
    flow = Streams(Base).flow("drawn", Payment, shards=1)

    @flow.by_key(state=int)
    def draw(step: StepContext, key: str, sum_: int | None, events: list[Payment]) -> int:
        return randrange(1_000_000)

    with pytest.raises(CrashError) as raised:
        await crash(
            virtual_database, flow, checkpoint=EVERY_SEVEN, events=lambda: some_payments()[:1]
        )
    text = str(raised.value)
    assert "killed after COMMIT" in text
    assert "drawn does not survive every crash" in text
    assert "streams-test.md" in text


async def test_the_dead_send_nothing(rowlock_sqlite_database: TemporaryDatabase) -> None:
    """What a replica does after its death would be in the database."""
    database = rowlock_sqlite_database
    await database.create_tables(Base.metadata)
    engine, before = database.create_engine(), asyncio.all_tasks()
    replica = KillableReplica(0, counts=lambda boundary: boundary.statement == "COMMIT")

    async def add(sessions: async_sessionmaker[AsyncSession]) -> None:
        async with sessions.begin() as session:
            session.add(Payment(account="a", cents=1))

    async with replica.sessions_of(engine) as sessions:
        dying = asyncio.create_task(add(sessions))
        await asyncio.wait([dying, replica.died], return_when=asyncio.FIRST_COMPLETED)
    assert replica.moment == "killed before COMMIT"
    await replica.cut_connections(database.engine)
    await replica.reap(asyncio.all_tasks() - before)
    await engine.dispose()
    async with database.session_factory() as session:
        assert await session.scalar(select(func.count()).select_from(Payment)) == 0


@virtual_time
async def test_what_cannot_be_told(virtual_database: TemporaryDatabase) -> None:
    """A database that is in use would be emptied, or a flow without an end never end."""
    database = virtual_database
    await database.create_tables(Base.metadata)

    async def add(session: AsyncSession, events: Sequence[Payment]) -> None:
        raise LookupError("nothing can be added")

    with pytest.raises(LookupError):
        await crash_flow_everywhere(database, house.sums, events=some_payments, add=add)
    async with database.session_factory.begin() as session:
        session.add(Payment(account="a", cents=1))
    with pytest.raises(PipelineError, match="there are rows in payments"):
        await crash_flow_everywhere(database, house.sums, events=some_payments)


async def test_without_a_clock(rowlock_sqlite_database: TemporaryDatabase) -> None:
    """A test would wait for leases to run out."""
    with pytest.raises(PipelineError, match="a clock"):
        await crash_flow_everywhere(rowlock_sqlite_database, house.sums, events=some_payments)
