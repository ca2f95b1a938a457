"""Tests of `crash_everywhere`: processes that survive every crash, and typical ones that do not,
with the place named.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import update

from rowlock import NOW_PLACEHOLDER, Apply, PipelineItem, Retry
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


class TestContract(CrashContract[Volume, Cloud]):
    @pytest.fixture
    async def rowlock_database_with_clock(
        self, database_with_clock: TemporaryDatabase
    ) -> TemporaryDatabase:
        await database_with_clock.create_tables(Base.metadata)
        return database_with_clock

    def crashing_row(self) -> Volume:
        return Volume()

    def world(self) -> Cloud:
        return Cloud()

    def build_in(self, world: Cloud) -> VolumePipeline:
        return volumes(find_or_create)(world)

    def effects(self, world: Cloud) -> dict[str, str]:
        return world.disks


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
    ("answer", "place", "difference"),
    [
        (create_again, "disk = await cloud.create_disk()", "row.disk_id: 'disk-1', not 'disk-0'"),
        (
            create_again,
            "after process had returned",
            "effects: {'disks': {'key-0': 'disk-0', 'key-1': 'disk-1'}",
        ),
        (mail_first, "return await find_or_create(cloud, item)", "effects: {'disks': {"),
        (mark_first, 'await cloud.send_mail("it is ready")', "'mails': []"),
        (tasks_beside, "in a task that it started", "'it is ready', 'it is ready'"),
        (
            give_up_if_it_is_there,
            "return await find_or_create(cloud, item)",
            "there is a disk already",
        ),
    ],
)
async def test_what_is_not_idempotent_is_found(
    database_with_clock: TemporaryDatabase, answer: Answer, place: str, difference: str
) -> None:
    """A pipeline that does things twice would pass, or nobody be told where it fails."""
    with pytest.raises(CrashError) as raised:
        await crash_volume(database_with_clock, answer)
    told = [finding for finding in raised.value.findings if place in finding]
    assert told, str(raised.value)
    assert any(difference in finding for finding in told), str(raised.value)
    assert f"{__file__.rsplit('/', 1)[-1]}:" in str(raised.value) or place.startswith("after")
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


async def test_a_process_that_is_never_the_same(database_with_clock: TemporaryDatabase) -> None:
    """Chance would be taken for the crash's doing."""

    async def answer(cloud: Cloud, item: PipelineItem[Any]) -> Apply:
        return Apply({"status": "active", "disk_id": str(uuid.uuid4())})

    with pytest.raises(
        PipelineError, match=r"two undisturbed runs of VolumePipeline differ.*disk_id"
    ):
        await crash_volume(database_with_clock, answer)


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
