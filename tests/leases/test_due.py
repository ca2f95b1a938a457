"""What services say about a row's time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from rowlock import ModelError, make_due, unpark
from rowlock.testing import TemporaryDatabase

from ..host import Base, Run, Volume
from .ground import RUNS, add, claimed


async def test_a_row_is_due_as_soon_as_a_service_says_so(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A request would wait for the minimum interval after the last processing."""
    database = database_with_clock
    await add(database, Run(id=1, due_at=database.clock.now + timedelta(hours=1)))
    assert await claimed(database, RUNS) == []
    async with database.session_factory() as session:
        run = await session.get_one(Run, 1)
        await make_due(session, run)
        assert run.due_at == database.clock.now
        await session.commit()
    assert [item.id for item in await claimed(database, RUNS)] == [1]


async def test_a_new_row_can_be_made_due(database_with_clock: TemporaryDatabase) -> None:
    """A service that has not flushed its row yet would meet an error."""
    await database_with_clock.create_tables(Base.metadata)
    async with database_with_clock.session_factory.begin() as session:
        run = Run(id=1, due_at=database_with_clock.clock.now + timedelta(hours=1))
        session.add(run)
        await make_due(session, run)
    assert len(await claimed(database_with_clock, RUNS)) == 1


async def test_a_rollback_takes_it_back(database_with_clock: TemporaryDatabase) -> None:
    """A row would be worked on for a request that was never made."""
    database = database_with_clock
    await add(database, Run(id=1, due_at=database.clock.now + timedelta(hours=1)))
    async with database.session_factory() as session:
        await make_due(session, await session.get_one(Run, 1))
        await session.rollback()
    assert await claimed(database, RUNS) == []


async def test_a_parked_row_stays_parked_until_released(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A poison row would be put back into play by whoever touches it, or could never be put
    back.
    """
    database = database_with_clock
    now = database.clock.now
    await add(database, Run(id=1, due_at=now, parked_at=now, attempts=20, last_error="no"))
    async with database.session_factory.begin() as session:
        await make_due(session, await session.get_one(Run, 1))
    assert await claimed(database, RUNS) == []
    async with database.session_factory.begin() as session:
        run = await session.get_one(Run, 1)
        await unpark(session, run)
        assert (run.parked_at, run.attempts) == (None, 0)
    (item,) = await claimed(database, RUNS)
    assert item.attempt == 1


@pytest.mark.parametrize("say", [make_due, unpark])
async def test_a_model_without_a_schedule_is_refused(
    sqlite_database: TemporaryDatabase, say: Callable[..., Awaitable[None]]
) -> None:
    """A service would believe that its request was noted."""
    await add(sqlite_database, Volume())
    async with sqlite_database.session_factory() as session:
        with pytest.raises(ModelError, match="ScheduleColumns"):
            await say(session, Volume())
