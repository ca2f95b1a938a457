"""The files of a host's project that uses the pytest plugin; ``MARK`` stands for how its async
tests are run.
"""

from __future__ import annotations

CONFTEST = """
import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Pipeline

pytest_plugins = ["rowlock.testing.plugin"]


class Base(DeclarativeBase):
    pass


class Volume(LockColumns, Base):
    __tablename__ = "volumes"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")


class VolumePipeline(Pipeline[Volume]):
    model = Volume

    def ready(self):
        return Volume.status == "submitted"

    async def process(self, item):
        return Apply({"status": "active"})


@pytest.fixture(scope="session")
def rowlock_metadata():
    return Base.metadata


@pytest.fixture
def volume():
    return Volume


@pytest.fixture
def pipeline():
    return VolumePipeline()
"""

TEST_ANYIO = """
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"
"""

TEST_STEPS = """
import pytest
from sqlalchemy import func, select

MARK


async def test_steps(rowlock_session_factory, rowlock_steps, volume, pipeline):
    async with rowlock_session_factory.begin() as session:
        session.add(volume())
    steps = await rowlock_steps(pipeline)
    assert len(await steps.fetch_once()) == 1
    assert await steps.beat_once() == 0
    await steps.work_once()
    async with rowlock_session_factory() as session:
        row = (await session.scalars(select(volume))).one()
    assert (row.status, row.lock_token) == ("active", None)


async def test_queued_items_are_given_back(
    rowlock_session_factory, rowlock_steps, volume, pipeline
):
    async with rowlock_session_factory.begin() as session:
        session.add(volume())
    steps = await rowlock_steps(pipeline)
    assert len(await steps.fetch_once()) == 1


async def test_until_settled(rowlock_session_factory, rowlock_run_until_settled, volume, pipeline):
    async with rowlock_session_factory.begin() as session:
        session.add_all([volume(), volume()])
    assert await rowlock_run_until_settled(pipeline) == 2
    assert await rowlock_run_until_settled(pipeline) == 0


async def test_the_clock(rowlock_database_with_clock):
    database = rowlock_database_with_clock
    before = database.clock.now
    database.clock.advance(31)
    assert (database.clock.now - before).total_seconds() == 31
    async with database.engine.connect() as connection:
        time = await connection.scalar(select(func.now()))
        assert str(time)[:16] == str(database.clock.now)[:16]
"""

TEST_PLAIN = """
import asyncio


def test_a_loop_of_its_own(rowlock_database, volume):
    async def work():
        async with rowlock_database.session_factory.begin() as session:
            session.add(volume())
        await rowlock_database.engine.dispose()

    asyncio.run(work())
"""

TEST_VIRTUAL = """
import asyncio

from rowlock import PipelineManager
from rowlock.testing import virtual_time


@virtual_time
async def test_a_minute(rowlock_virtual_database, volume, pipeline):
    database = rowlock_virtual_database
    before = database.clock.now
    async with PipelineManager(database.session_factory, [pipeline]):
        async with database.session_factory.begin() as session:
            session.add(volume(id=1))
        await asyncio.sleep(60)
    assert (database.clock.now - before).total_seconds() >= 60
    async with database.session_factory() as session:
        assert (await session.get_one(volume, 1)).status == "active"
"""

TEST_DIRECTORY = """
import os

import pytest
from sqlalchemy import text


@pytest.mark.parametrize("number", range(4))
async def test_where_the_server_lives(rowlock_postgresql_database, number):
    async with rowlock_postgresql_database.engine.connect() as connection:
        directory = await connection.scalar(text("SHOW data_directory"))
    with open("directories.txt", "a") as file:
        print(os.environ.get("PYTEST_XDIST_WORKER", "alone"), directory, file=file)
"""

TEST_LEAKS = """
import asyncio

import pytest

MARK
left = []


async def test_leaves_a_task(rowlock_database):
    left.append(asyncio.create_task(asyncio.sleep(3600)))


async def test_leaves_a_connection(rowlock_database):
    left.append(await rowlock_database.engine.connect())


async def test_is_tidy(rowlock_database):
    async with rowlock_database.engine.connect():
        await asyncio.create_task(asyncio.sleep(0))
"""

TEST_CONTRACT = """
from rowlock.testing import PipelineContract


class TestVolumes(PipelineContract):
    pass
"""
