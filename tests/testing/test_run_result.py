"""What `crash_everywhere` compares in the database: all of it, but for what is made anew in each
run.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import ColumnElement, String, delete, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Pipeline, PipelineItem, UtcDateTime
from rowlock.errors import PipelineError
from rowlock.testing import CrashContract, CrashError, TemporaryDatabase, crash_everywhere

from ..host import Attachment, Run, Volume, VolumePipeline
from ..host import Base as HostBase
from .test_crash_everywhere import Cloud, crash_volume, find_or_create, volumes

pytestmark = pytest.mark.either_database

BIG = 100


class Base(DeclarativeBase):
    """Another host's mapped classes."""


class Parcel(LockColumns, Base):
    """A row to be worked on, whose lock has a name of its own in the database."""

    __tablename__ = "parcels"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    last_processed_at: Mapped[datetime | None] = mapped_column("seen", UtcDateTime)
    lock_owner: Mapped[str | None] = mapped_column("held_by", String(200))


class Meter(Base):
    """A row that nobody leases, with columns that are called as some of ours."""

    __tablename__ = "meters"
    id: Mapped[int] = mapped_column(primary_key=True)
    attempts: Mapped[int] = mapped_column(default=0)


class ParcelPipeline(Pipeline[Parcel]):
    model = Parcel

    def ready(self) -> ColumnElement[bool]:
        return Parcel.status == "submitted"

    async def process(self, item: PipelineItem[Parcel]) -> Apply:
        async with item.session() as session, session.begin():
            await session.execute(update(Meter).values(attempts=Meter.attempts + 1))
        return Apply({"status": "sent"})


async def count_beside(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
    """Add to another volume, in a transaction that nobody repeats or takes back."""
    async with item.session() as session, session.begin():
        await session.execute(
            update(Volume).where(Volume.size_gb >= BIG).values(size_gb=Volume.size_gb + 1)
        )
    return await find_or_create(cloud, item)


async def log_beside(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
    """Write a line of a log in the same way."""
    async with item.session() as session, session.begin():
        session.add(Run(status="logged"))
    return await find_or_create(cloud, item)


def two_volumes() -> list[Volume]:
    """Return the row in question, and one that counts."""
    return [Volume(), Volume(size_gb=BIG, status="busy")]


async def test_a_row_that_was_given_is_compared(database_with_clock: TemporaryDatabase) -> None:
    """A pipeline that counts twice in another row would pass."""
    with pytest.raises(CrashError) as raised:
        await crash_volume(database_with_clock, count_beside, row=two_volumes)
    assert "rows of volumes: [{" in raised.value.findings[-1]
    assert "'size_gb': 102" in raised.value.findings[-1]
    assert "'size_gb': 101" in raised.value.findings[-1]
    assert "row." not in raised.value.findings[-1]
    assert "effects" not in raised.value.findings[-1]


async def test_a_row_that_came_is_compared(database_with_clock: TemporaryDatabase) -> None:
    """A pipeline that inserts twice would pass, or each row it inserts be a difference of its
    key.
    """
    with pytest.raises(
        CrashError,
        match=r"rows of runs: \[\{.*'status': 'logged', 'updated_at': 'a time'\}\], not \[\]",
    ):
        await crash_volume(database_with_clock, log_beside)


@pytest.mark.parametrize(
    ("answer", "ignore"),
    [(log_beside, "runs"), (count_beside, "volumes.size_gb"), (count_beside, "size_gb")],
)
async def test_what_may_differ_is_not_compared(
    database_with_clock: TemporaryDatabase, answer: Any, ignore: str
) -> None:
    """A pipeline could not be tested for what it writes into a log at each attempt."""
    assert await crash_volume(database_with_clock, answer, row=two_volumes, ignore=[ignore]) > 5


class TestLogging(CrashContract[Volume, Cloud]):
    """A pipeline that is tested by inheriting could not say what may differ."""

    ignore = ("runs",)

    @pytest.fixture
    async def rowlock_database_with_clock(
        self, database_with_clock: TemporaryDatabase
    ) -> TemporaryDatabase:
        await database_with_clock.create_tables(HostBase.metadata)
        return database_with_clock

    def crashing_row(self) -> Volume:
        return Volume()

    def world(self) -> Cloud:
        return Cloud()

    def build_in(self, world: Cloud) -> VolumePipeline:
        return volumes(log_beside)(world)

    def effects(self, world: Cloud) -> dict[str, Any]:
        return world.seen()


@pytest.mark.parametrize("ignore", ["runs.size_gb", "status", "attachments"])
async def test_nothing_else_is_left_out(
    database_with_clock: TemporaryDatabase, ignore: str
) -> None:
    """A name would stand for more than it says."""
    with pytest.raises(CrashError, match="'size_gb': 102"):
        await crash_volume(database_with_clock, count_beside, row=two_volumes, ignore=[ignore])


async def test_keys_that_are_made_anew_are_no_difference(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Rows that an outcome inserts once could not be compared, since their keys are others each
    time.
    """

    async def answer(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
        async def also(session: AsyncSession, now: datetime) -> None:
            parent = Volume(status="made")
            session.add_all([parent, Attachment(volume=parent), Run(status="logged")])

        return Apply({"status": "active"}, also=also)

    assert await crash_volume(database_with_clock, answer) == 3


async def test_columns_that_only_look_like_ours_are_compared(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A host's own `attempts` would be taken for what rowlock counts, or a lock under another
    name for a value.
    """
    await database_with_clock.create_tables(Base.metadata)
    with pytest.raises(CrashError) as raised:
        await crash_everywhere(
            database_with_clock,
            row=lambda: [Parcel(), Meter(id=1)],
            world=Cloud,
            build=lambda _: ParcelPipeline(),
            effects=Cloud.seen,
        )
    assert raised.value.findings[-1].endswith(
        "rows of meters: [{'attempts': 2, 'id': 1}], not [{'attempts': 1, 'id': 1}]"
    )


# ---------------------------------------------------------------- what is told


async def test_what_changes_by_itself_is_told_where_it_is(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A host would be told to name columns for what is outside of the database, or the other way
    round.
    """

    async def outside(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
        await cloud.create_disk(str(uuid.uuid4()))
        return Apply({"status": "active"})

    async def inside(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
        return Apply({"status": "active", "disk_id": str(uuid.uuid4())})

    with pytest.raises(PipelineError, match=r"differ.*return from `effects` what does not") as told:
        await crash_volume(database_with_clock, outside)
    assert "`ignore`" not in str(told.value)
    async with database_with_clock.session_factory.begin() as session:
        await session.execute(delete(Volume))
    with pytest.raises(PipelineError, match=r"differ.*row\.disk_id.*name in `ignore`") as told:
        await crash_volume(database_with_clock, inside)
    assert "`effects`" not in str(told.value)


async def test_the_last_failure_is_told(database_with_clock: TemporaryDatabase) -> None:
    """A process that always fails would be taken for one that always finds work, with its cause
    in the log alone.
    """

    async def answer(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
        raise IndexError("no shelf is left")

    with pytest.raises(
        PipelineError,
        match=r"after 20 attempts \(process failed with IndexError: no shelf is left\)",
    ):
        await crash_volume(database_with_clock, answer)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: [Run(), Volume()], "not a Run"),
        (list, "not nothing"),
        (lambda: None, "not a NoneType"),
    ],
)
async def test_a_row_that_is_not_the_pipelines(
    database_with_clock: TemporaryDatabase, made: Callable[[], Any], told: str
) -> None:
    """Whatever comes of it would be told, and not that the list is in the wrong order."""
    with pytest.raises(
        PipelineError, match=f"must return a Volume for VolumePipeline, itself first: {told}"
    ):
        await crash_volume(database_with_clock, find_or_create, row=made)


async def test_one_name_is_no_sequence_of_names(database_with_clock: TemporaryDatabase) -> None:
    """Each letter would be taken for a name, and nothing be left out."""
    with pytest.raises(PipelineError, match=r"such as \['runs'\]"):
        await crash_volume(database_with_clock, find_or_create, ignore="runs")
