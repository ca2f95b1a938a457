"""Tests of `crash_everywhere`: processes that survive every crash, and typical ones that do not,
with the place named.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import ColumnElement, String, delete, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import NOW_PLACEHOLDER, Apply, LockColumns, Pipeline, PipelineItem, Retry, UtcDateTime
from rowlock.errors import PipelineError
from rowlock.testing import (
    CrashContract,
    CrashError,
    TemporaryDatabase,
    crash_everywhere,
    virtual_time,
)

from ..host import Attachment, Base, Run, RunPipeline, Volume, VolumePipeline
from ..leases.transactions import checked_out
from ..pipelines.related_scenes import GatheringPipeline

pytestmark = pytest.mark.either_database(
    but=["test_an_idempotent_process_passes", "test_locks_of_the_dead_do_not_last"]
)


class Cloud:
    """What is outside: disks by key, mails and bills in the order in which they went out."""

    def __init__(self) -> None:
        self.disks: dict[str, str] = {}
        self.mails: list[str] = []
        self.numbers = itertools.count()

    async def create_disk(self, key: str | None = None) -> str:
        """Create a disk, or return the one of that key."""
        await asyncio.sleep(0)
        disk = self.disks.setdefault(key or f"key-{next(self.numbers)}", f"disk-{len(self.disks)}")
        await asyncio.sleep(0)
        return disk

    async def send_mail(self, text: str) -> None:
        await asyncio.sleep(0)
        self.mails.append(text)
        await asyncio.sleep(0)

    def seen(self) -> dict[str, Any]:
        return {"disks": dict(self.disks), "mails": list(self.mails)}


Answer = Callable[[Cloud, PipelineItem[Any]], Any]


def volumes(answer: Answer) -> Callable[[Cloud], VolumePipeline]:
    """Return how a pipeline of volumes is built that answers so."""
    return lambda cloud: VolumePipeline(answer=lambda item: answer(cloud, item))


async def crash_volume(database: TemporaryDatabase, answer: Answer, **options: Any) -> int:
    await database.create_tables(Base.metadata)
    all_options = {
        "row": Volume,
        "world": Cloud,
        "build": volumes(answer),
        "effects": Cloud.seen,
        **options,
    }
    return await crash_everywhere(database, **all_options)


# ---------------------------------------------------------------- processes that survive


async def find_or_create(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
    """Create a disk under a key that is derived from the row."""
    disk = await cloud.create_disk(str(item.id))
    return Apply({"status": "active", "disk_id": disk, "active_at": NOW_PLACEHOLDER})


async def test_an_idempotent_process_passes(database_with_clock: TemporaryDatabase) -> None:
    """Tests of good pipelines would fail."""
    # claimed, two awaits, returned, committed
    assert await crash_volume(database_with_clock, find_or_create) == 5
    assert checked_out(database_with_clock.engine) == 0


async def test_steps_of_a_state_machine(database_with_clock: TemporaryDatabase) -> None:
    """Only the first of several attempts would be tried, or one that comes later never be
    reached.
    """

    class Named(VolumePipeline):
        def ready(self) -> Any:
            return Volume.status.in_(["submitted", "named"])

    async def answer(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
        if item.row.status == "submitted":
            return Apply({"status": "named", "disk_id": f"disk-{uuid.uuid4()}"})
        await cloud.create_disk("of " + item.row.disk_id[:5])
        return Apply({"status": "active"})

    def build(cloud: Cloud) -> Named:
        return Named(answer=lambda item: answer(cloud, item))

    moments = await crash_volume(database_with_clock, answer, build=build, ignore=["disk_id"])
    assert moments == 3 + 5


async def test_a_row_that_comes_back_later(database_with_clock: TemporaryDatabase) -> None:
    """A retry would be taken for the end of a row's day."""
    await database_with_clock.create_tables(Base.metadata)

    async def answer(cloud: Cloud, item: PipelineItem[Any]) -> Any:
        if not cloud.disks:
            await cloud.create_disk("one")
            return Retry(after=3600, error="not yet")
        return Apply({"status": "done"})

    moments = await crash_everywhere(
        database_with_clock,
        row=Run,
        world=Cloud,
        build=lambda cloud: RunPipeline(answer=lambda item: answer(cloud, item)),
        effects=Cloud.seen,
    )
    assert moments == 5 + 3


async def test_a_process_in_a_thread(database_with_clock: TemporaryDatabase) -> None:
    """Pipelines with a plain function could not be tested."""

    class Plain(VolumePipeline):
        cloud: Cloud

        def process(self, item: PipelineItem[Any]) -> Apply:  # type: ignore[override]
            self.cloud.disks[str(item.id)] = "disk"
            return Apply({"status": "active"})

    def build(cloud: Cloud) -> Plain:
        pipeline = Plain()
        pipeline.cloud = cloud
        return pipeline

    assert await crash_volume(database_with_clock, find_or_create, build=build) == 3


async def test_locks_of_the_dead_do_not_last(database_with_clock: TemporaryDatabase) -> None:
    """A replica that was killed while it locked rows would lock out the next one."""
    await database_with_clock.create_tables(Base.metadata)

    async def write(item: PipelineItem[Any], rows: list[Any]) -> Apply:
        async with item.session() as session, session.begin():
            await session.execute(update(Volume).values(size_gb=7))
        return Apply({"status": "active"}, related={row: {"status": "gathered"} for row in rows})

    def row() -> list[Any]:
        volume = Volume(id=uuid.UUID(int=1))
        return [volume, Run(id=1)]

    def build(_: Cloud) -> GatheringPipeline:
        return GatheringPipeline(then=write)

    moments = await crash_everywhere(
        database_with_clock, row=row, world=Cloud, build=build, effects=Cloud.seen
    )
    assert moments > 15
    assert checked_out(database_with_clock.engine) == 0


@virtual_time
async def test_on_virtual_time(virtual_database: TemporaryDatabase) -> None:
    """A process that waits for minutes would take minutes for each crash."""

    async def answer(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
        await asyncio.sleep(10)
        return await find_or_create(cloud, item)

    assert await crash_volume(virtual_database, answer) == 6


# ---------------------------------------------------------------- processes that do not


async def create_again(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
    disk = await cloud.create_disk()
    return Apply({"status": "active", "disk_id": disk})


async def mail_first(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
    await cloud.send_mail("it is ready")
    return await find_or_create(cloud, item)


async def mark_first(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
    async with item.session() as session, session.begin():
        await session.execute(update(Volume).values(size_gb=0))
    if item.row.size_gb:
        await cloud.send_mail("it is ready")
    return Apply({"status": "active"})


async def tasks_beside(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
    async with asyncio.TaskGroup() as group:
        group.create_task(cloud.create_disk(str(item.id)))
        group.create_task(cloud.send_mail("it is ready"))
    return Apply({"status": "active"})


async def give_up_if_it_is_there(cloud: Cloud, item: PipelineItem[Any]) -> Any:
    """Take what a dead replica has left for an error."""
    if cloud.disks:
        raise LookupError("there is a disk already")
    return await find_or_create(cloud, item)


@pytest.mark.parametrize(
    ("answer", "differences"),
    [
        (
            create_again,
            {
                "disk = await cloud.create_disk()": "row.disk_id: 'disk-1', not 'disk-0'",
                "after process had returned": "'disks': {'key-0': 'disk-0', 'key-1': 'disk-1'}",
            },
        ),
        (mail_first, {"return await find_or_create(cloud, item)": "effects: {'disks': {"}),
        (mark_first, {'await cloud.send_mail("it is ready")': "'mails': []"}),
        (tasks_beside, {"in a task that it started": "'it is ready', 'it is ready'"}),
        (
            give_up_if_it_is_there,
            {"return await find_or_create(cloud, item)": "there is a disk already"},
        ),
    ],
)
async def test_what_is_not_idempotent_is_found(
    database_with_clock: TemporaryDatabase, answer: Answer, differences: dict[str, str]
) -> None:
    """A pipeline that does things twice would pass, or nobody be told where it fails."""
    with pytest.raises(CrashError) as raised:
        await crash_volume(database_with_clock, answer)
    for place, difference in differences.items():
        told = [finding for finding in raised.value.findings if place in finding]
        assert any(difference in finding for finding in told), str(raised.value)
    assert f"{__file__.rsplit('/', 1)[-1]}:" in str(raised.value)
    assert checked_out(database_with_clock.engine) == 0


async def test_memory_dies_with_the_process(database_with_clock: TemporaryDatabase) -> None:
    """What a pipeline remembers would seem to survive a crash."""

    def build(cloud: Cloud) -> VolumePipeline:
        seen: set[Any] = set()

        async def answer(item: PipelineItem[Any]) -> Apply:
            if item.id not in seen:
                seen.add(item.id)
                await cloud.send_mail("it is ready")
            return Apply({"status": "active"})

        return VolumePipeline(answer=answer)

    with pytest.raises(CrashError, match="'it is ready', 'it is ready'"):
        await crash_volume(database_with_clock, find_or_create, build=build)


# ---------------------------------------------------------------- what cannot be told


async def test_a_row_that_always_wants_work(database_with_clock: TemporaryDatabase) -> None:
    """A pipeline that reconciles for ever could not be tested, or never end."""

    async def answer(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
        await cloud.create_disk("one")
        return Apply({"size_gb": 2})

    with pytest.raises(PipelineError, match="say by `until`"):
        await crash_volume(database_with_clock, answer)
    async with database_with_clock.session_factory.begin() as session:
        await session.execute(Volume.__table__.delete())  # type: ignore[attr-defined]
    assert await crash_volume(database_with_clock, answer, until=lambda row: row.size_gb == 2) == 5


async def test_a_row_that_nobody_claims(database_with_clock: TemporaryDatabase) -> None:
    """A test that tests nothing would pass."""
    await database_with_clock.create_tables(Base.metadata)
    with pytest.raises(PipelineError, match="did not claim the row"):
        await crash_everywhere(
            database_with_clock,
            row=lambda: Volume(status="active"),
            world=Cloud,
            build=volumes(find_or_create),
            effects=Cloud.seen,
        )


async def test_rows_of_somebody_else_are_not_deleted(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A database that is in use would be emptied."""
    await database_with_clock.create_tables(Base.metadata)
    async with database_with_clock.session_factory.begin() as session:
        volume = Volume()
        session.add(volume)
        await session.flush()
        session.add(Attachment(volume_id=volume.id))
    with pytest.raises(PipelineError, match="there are rows in"):
        await crash_volume(database_with_clock, find_or_create)


async def test_without_a_clock(database: TemporaryDatabase) -> None:
    """A test would wait for leases to run out."""
    with pytest.raises(PipelineError, match="a clock"):
        await crash_volume(database, find_or_create)


BIG = 100


class ParcelBase(DeclarativeBase):
    """Another host's mapped classes."""


class Parcel(LockColumns, ParcelBase):
    """A row to be worked on, whose lock has a name of its own in the database."""

    __tablename__ = "parcels"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    last_processed_at: Mapped[datetime | None] = mapped_column("seen", UtcDateTime)
    lock_owner: Mapped[str | None] = mapped_column("held_by", String(200))


class Meter(ParcelBase):
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
    """A pipeline that counts twice in another row would pass, or a name to be left out stand for
    more than it says.
    """
    ignore = ["runs.size_gb", "status", "attachments"]
    with pytest.raises(CrashError) as raised:
        await crash_volume(database_with_clock, count_beside, row=two_volumes, ignore=ignore)
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


async def test_a_column_of_one_table_may_differ(database_with_clock: TemporaryDatabase) -> None:
    """A pipeline could not be tested for what it counts at each attempt."""
    ignore = ["volumes.size_gb"]
    assert await crash_volume(database_with_clock, count_beside, row=two_volumes, ignore=ignore) > 5


class TestContract(CrashContract[Volume, Cloud]):
    """A pipeline that is tested by inheriting could not say what may differ: a whole table, or a
    column of any.
    """

    ignore = ("runs", "size_gb")

    @pytest.fixture
    async def rowlock_database_with_clock(
        self, database_with_clock: TemporaryDatabase
    ) -> TemporaryDatabase:
        await database_with_clock.create_tables(Base.metadata)
        return database_with_clock

    def crashing_row(self) -> list[Volume]:
        return two_volumes()

    def world(self) -> Cloud:
        return Cloud()

    def build_in(self, world: Cloud) -> VolumePipeline:
        async def answer(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
            await count_beside(cloud, item)
            return await log_beside(cloud, item)

        return volumes(answer)(world)

    def effects(self, world: Cloud) -> dict[str, str]:
        return world.disks


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
    await database_with_clock.create_tables(ParcelBase.metadata)
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
