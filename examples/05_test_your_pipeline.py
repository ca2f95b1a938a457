"""How a host tests its own pipeline, in five ways.

Inherited tests; one step at a time; time that is moved; any order of steps; killed at every await.

The one idea: a test takes a row's day step by step with the real actors on a real database, and
moves the time instead of waiting.

It is a pytest file: ``pytest -p rowlock.testing.plugin examples/05_test_your_pipeline.py``, with
pytest-asyncio in auto mode. It also runs itself: ``python examples/05_test_your_pipeline.py``. In a
host, ``pytest_plugins`` of its conftest.py loads the plugin.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Unpack

import pytest
from hypothesis import given, settings
from sqlalchemy import ColumnElement, MetaData
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    Apply,
    LockColumns,
    Outcome,
    Pipeline,
    PipelineItem,
    PipelineManager,
    Retry,
    ScheduleColumns,
    SettingsKeywords,
)
from rowlock.testing import (
    DatabaseClock,
    PipelineContract,
    Step,
    TemporaryDatabase,
    crash_everywhere,
    inline_sqlite_database,
    run_virtual,
    stepping,
    take_step,
    virtual_time,
    virtual_time_now,
)
from rowlock.testing.plugin import OpenSteps
from rowlock.testing.strategies import step_sequences

Sessions = async_sessionmaker[AsyncSession]

# What is tested. In a host this is imported. ------------------------------------------------------


class Base(DeclarativeBase):
    """The host's mapped classes."""


class Volume(LockColumns, ScheduleColumns, Base):
    """A volume as the host knows it."""

    __tablename__ = "volumes"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    status: Mapped[str] = mapped_column(default="submitted")
    disk_id: Mapped[str | None]


class Cloud:
    """Stands in for the cloud; a test says how often it fails, and how long it takes."""

    def __init__(self, failures: int = 0, *, takes_s: float = 0.01) -> None:
        self.failures_left = failures
        self.takes_s = takes_s
        self.disks: set[str] = set()

    async def create_disk(self, *, idempotency_key: str) -> str:
        """Return the disk of that key."""
        await asyncio.sleep(self.takes_s)
        if self.failures_left:
            self.failures_left -= 1
            raise TimeoutError("the cloud does not answer")
        self.disks.add(idempotency_key)
        # there already, and nobody knows: the moment at which a crash hurts most
        await asyncio.sleep(self.takes_s)
        return f"disk-{idempotency_key}"


class VolumePipeline(Pipeline[Volume]):
    """Gives each submitted volume a disk."""

    model = Volume
    retry_delay = 60

    def __init__(self, cloud: Cloud | None = None, **settings: Unpack[SettingsKeywords]) -> None:
        super().__init__(**settings)
        self.cloud = cloud or Cloud()

    def ready(self) -> ColumnElement[bool]:
        """Submitted volumes want work."""
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Volume]) -> Outcome:
        """Create the disk."""
        try:
            disk_id = await self.cloud.create_disk(idempotency_key=str(item.id))
        except TimeoutError as error:
            return Retry(error=error)
        return Apply({"status": "active", "disk_id": disk_id})


# Real databases, real time ------------------------------------------------------------------------


@pytest.fixture(scope="session")
def rowlock_metadata() -> MetaData:
    """Tell the plugin with which tables a database begins."""
    return Base.metadata


@pytest.fixture
def session_factory(rowlock_session_factory: Sessions) -> Sessions:
    """Give PipelineContract what it asks for; also the place for a session class of your own."""
    return rowlock_session_factory


class TestVolumePipeline(PipelineContract[Volume]):
    """The tests that come with the library: eligibility and order, unlock on success, stale
    token.
    """

    pipeline_class = VolumePipeline

    def ready_row(self) -> Volume:
        """Return a row that wants work."""
        return Volume(status="submitted")

    def unready_row(self) -> Volume:
        """Return a row that wants none."""
        return Volume(status="active")


async def add_volume(sessions: Sessions) -> uuid.UUID:
    """Submit a volume and return its id."""
    volume = Volume(id=uuid.uuid4())
    async with sessions.begin() as session:
        session.add(volume)
    return volume.id


async def read_volume(sessions: Sessions, volume_id: uuid.UUID) -> Volume:
    """Return the volume as it is now."""
    async with sessions() as session:
        return await session.get_one(Volume, volume_id)


async def test_a_failure_is_counted_and_rests(
    session_factory: Sessions, rowlock_steps: OpenSteps
) -> None:
    """A volume whose cloud fails would be hammered, or forgotten."""
    volume_id = await add_volume(session_factory)
    steps = await rowlock_steps(VolumePipeline(Cloud(failures=1)))
    await steps.fetch_once()
    item = await steps.work_once()
    assert item.attempt == 1
    assert await steps.fetch_once() == []
    volume = await read_volume(session_factory, volume_id)
    assert (volume.status, volume.attempts, volume.lock_token) == ("submitted", 1, None)
    assert volume.last_error == "TimeoutError: the cloud does not answer"


async def test_all_volumes_become_active(
    session_factory: Sessions, rowlock_run_until_settled: Callable[..., Awaitable[int]]
) -> None:
    """A volume would be left out."""
    ids = [await add_volume(session_factory) for _ in range(5)]
    assert await rowlock_run_until_settled(VolumePipeline()) == 5
    assert {(await read_volume(session_factory, one)).status for one in ids} == {"active"}


# Virtual time: hours pass in milliseconds ---------------------------------------------------------


@virtual_time
async def test_each_failure_doubles_the_rest(rowlock_virtual_database: TemporaryDatabase) -> None:
    """The backoff would not be what the settings say."""
    sessions = rowlock_virtual_database.session_factory
    pipeline = VolumePipeline(Cloud(failures=3))  # rests for 60, 120 and 240 s, each ±20 %
    async with PipelineManager(sessions, [pipeline]):
        volume_id = await add_volume(sessions)
        await asyncio.sleep(300)
        assert (await read_volume(sessions, volume_id)).attempts in {2, 3}
        await asyncio.sleep(300)
        assert (await read_volume(sessions, volume_id)).status == "active"


# Any order of steps -------------------------------------------------------------------------------


@given(step_sequences(replicas=2))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_an_active_volume_has_its_disk(steps: list[Step]) -> None:
    """Some order of fetches, work, beats and time would lead to a volume without a disk, or to a
    second disk.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_virtual(lambda: take_steps(Path(folder) / "any_order.db", steps))


async def take_steps(file: Path, steps: list[Step]) -> None:
    """Let the steps happen to two replicas, and look after each."""
    database = inline_sqlite_database(file, clock=DatabaseClock(source=virtual_time_now))
    await database.create_tables(Base.metadata)
    sessions, cloud = database.session_factory, Cloud(failures=2)
    volume_id = await add_volume(sessions)
    async with (
        stepping(sessions, VolumePipeline(cloud)) as one,
        stepping(sessions, VolumePipeline(cloud)) as two,
    ):
        for step in steps:
            await take_step(step, [one, two])
            volume = await read_volume(sessions, volume_id)
            assert cloud.disks <= {str(volume_id)}
            assert cloud.disks or volume.status == "submitted"
    await database.aclose()


# Killed at every await ----------------------------------------------------------------------------


async def test_a_crash_makes_no_difference(rowlock_database_with_clock: TemporaryDatabase) -> None:
    """A replica that dies after it has created the disk would leave it behind, and the next one
    create another.
    """
    await crash_everywhere(
        rowlock_database_with_clock,
        row=Volume,
        world=Cloud,
        build=VolumePipeline,
        effects=lambda cloud: cloud.disks,
    )


if __name__ == "__main__":
    # without the choice: on PostgreSQL, too
    plugin = ["-p", "rowlock.testing.plugin", "--rowlock-database=sqlite"]
    options = [*plugin, "--override-ini=asyncio_mode=auto", "--verbose", "--no-header"]
    sys.exit(
        subprocess.run([sys.executable, "-m", "pytest", *options, __file__], check=False).returncode
    )
