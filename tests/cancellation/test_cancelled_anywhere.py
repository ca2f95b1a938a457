"""Cancelled at any suspension, once or in a storm, nothing of ours leaves a lease, a lock, a
connection or a task behind.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock.testing import TemporaryDatabase

from ..host import Attachment, Base, Volume
from ..lengths import at_length
from .acts import ACTS
from .cancelling import Canceller, background_ends, cancelled_at, complaints, nothing_is_left

SUSPENSIONS_MAX = 500
ROWS = 2
STORM = 10
ONCE_STEP, TWICE_STEP, STORM_STEP = at_length((4, 9, 30), (1, 1, 3))
ACTS_THAT_TIDY_UP = at_length(("write-with-others", "drain", "hold", "lock-related"), tuple(ACTS))
"""What differs in how it tidies up; that a first cancellation leaves nothing is tried of all."""


@pytest.fixture
def without_garbage_collector() -> Iterator[None]:
    """Nothing may rely on the collector to close a cursor or to free a lock."""
    gc.disable()
    yield
    gc.enable()


async def put_rows(database: TemporaryDatabase) -> None:
    """Put rows in, and take those of the last round out."""
    async with database.session_factory.begin() as session:
        for table in (Attachment.__tablename__, Volume.__tablename__):
            await session.execute(text(f"DELETE FROM {table}"))
        volumes = [Volume() for _ in range(ROWS)]
        session.add_all(volumes)
        await session.flush()
        session.add_all([Attachment(volume_id=volume.id) for volume in volumes])


async def sweep(database: TemporaryDatabase, name: str, *, times: int, step: int) -> None:
    """Cancel the act at one suspension after the other, until it ends without being reached."""
    await database.create_tables(Base.metadata)
    engine = database.create_engine()
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    with complaints() as complained:
        gc.freeze()  # what others have left is not looked through below
        for at in range(0, SUSPENSIONS_MAX, step):
            await put_rows(database)
            before = asyncio.all_tasks()
            canceller = Canceller(at, times)
            try:
                async with ACTS[name](sessions) as work:
                    struck = await cancelled_at(work, canceller)
                await background_ends(before)
                await nothing_is_left(database, engine)
            except BaseException as error:
                error.add_note(f"cancelled at suspension {at}, {canceller.struck} times")
                raise
            if not struck:
                break
        else:
            pytest.fail(f"no end after {SUSPENSIONS_MAX} suspensions")
        gc.collect()
        await asyncio.sleep(0)
    assert complained.heard == []
    assert at > 3


@pytest.mark.databases_in_turn
@pytest.mark.parametrize("name", ACTS)
async def test_cancelled_once(database: TemporaryDatabase, name: str) -> None:
    """A cancellation in the wrong moment would leave something behind."""
    await sweep(database, name, times=1, step=ONCE_STEP)


@pytest.mark.usefixtures("without_garbage_collector")
@pytest.mark.databases_in_turn(first=1)
@pytest.mark.parametrize("name", ACTS_THAT_TIDY_UP)
async def test_cancelled_twice_in_a_row(database: TemporaryDatabase, name: str) -> None:
    """The second cancellation would interrupt what tidies up after the first."""
    await sweep(database, name, times=2, step=TWICE_STEP)


@pytest.mark.usefixtures("without_garbage_collector")
@pytest.mark.databases_in_turn
@pytest.mark.parametrize("name", ACTS_THAT_TIDY_UP)
async def test_cancelled_in_a_storm(database: TemporaryDatabase, name: str) -> None:
    """Who is cancelled again and again would lose patience."""
    await sweep(database, name, times=STORM, step=STORM_STEP)
