"""Related rows for as long as the attempt lasts: held with the main row."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, text, true, update

from rowlock import Apply, LeaseLost, PipelineManager, Reset
from rowlock.clock import monotonic
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Attachment, AttachmentPipeline, Run, RunPipeline, Volume, VolumePipeline
from ..leases.holding import passing
from .related_scenes import (
    ATTACHMENTS,
    GatheringPipeline,
    add_volume,
    at_work,
    attachments_of,
    locks_of,
    write_all,
)
from .scenes import add, change, counted, hang, read, turns, until


async def test_they_are_renewed_with_the_main_row(database_with_clock: TemporaryDatabase) -> None:
    """A child would be taken from a parent that is still at work."""
    async with at_work(database_with_clock, GatheringPipeline()) as (steps, _):
        [item] = steps.queued
        await item.lock_related(Attachment, Attachment.volume_id == item.id)
        database_with_clock.clock.advance(20)
        item.trusted_until -= 20
        assert await steps.beat_once() == 1
        main = (
            await read(database_with_clock, item.row if item.has_row else Volume(id=item.id))
        ).lock_expires_at
        assert main == database_with_clock.clock.now + timedelta(seconds=30)
        assert {row.lock_expires_at for row in await attachments_of(database_with_clock)} == {main}
        database_with_clock.clock.advance(29)
        async with stepping(
            database_with_clock.session_factory, AttachmentPipeline(), beside=[GatheringPipeline()]
        ) as busy:
            assert await busy.fetch_once() == []


async def test_a_related_row_that_was_not_renewed_is_tried_again(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A service's transaction that met one beat would end the lock of a child while its parent
    works on.
    """
    async with at_work(postgresql_database, GatheringPipeline()) as (steps, volume):
        [item] = steps.queued
        [row, *_] = await item.lock_related(Attachment, Attachment.volume_id == item.id)
        before = {row.id: row.lock_expires_at for row in await attachments_of(postgresql_database)}
        item.trusted_until -= 20
        until = item.trusted_until
        async with postgresql_database.session_factory() as session:
            await session.execute(
                update(Attachment).where(Attachment.id == row.id).values(status="by a service")
            )
            await steps.beat_once()
            assert item.trusted_until == until
        assert steps.run.heartbeater.due_for_renewal() == [item]
        await steps.beat_once()
        assert item.trusted_until > until
        after = {row.id: row.lock_expires_at for row in await attachments_of(postgresql_database)}
        assert all(after[key] > expiry for key, expiry in before.items())
        assert set(after.values()) == {(await read(postgresql_database, volume)).lock_expires_at}


async def test_they_end_no_later_than_the_main_row(database_with_clock: TemporaryDatabase) -> None:
    """Whoever claims the main row of a dead holder would find its children still locked."""
    async with at_work(database_with_clock, GatheringPipeline()) as (steps, volume):
        database_with_clock.clock.advance(25)
        [item] = steps.queued
        await item.lock_related(Attachment, Attachment.volume_id == item.id)
        expiries = {row.lock_expires_at for row in await attachments_of(database_with_clock)}
        assert expiries == {(await read(database_with_clock, volume)).lock_expires_at}


@virtual_time
async def test_interrupted_work_gives_them_back(virtual_database: TemporaryDatabase) -> None:
    """After a clean shutdown the children would wait for their leases to expire."""
    await add_volume(virtual_database)
    pipeline = GatheringPipeline(then=lambda *_: hang())
    manager = PipelineManager(virtual_database.session_factory, [pipeline])
    manager.start()
    await until(lambda: pipeline.locked)
    await manager.drain(timeout=1)
    assert await locks_of(virtual_database) == {}


@pytest.mark.parametrize("ends", ["lost", "interrupted"])
@virtual_time
async def test_pipelines_of_what_was_released_are_hinted(
    virtual_database: TemporaryDatabase, ends: str
) -> None:
    """Children of a parent that lost its row, or was interrupted, would stay locked, or wait for
    the next poll of their pipeline.
    """
    hinted: list[str] = []
    pipeline = GatheringPipeline(then=lambda *_: hang())
    async with at_work(virtual_database, pipeline) as (steps, volume):
        steps.run.context.hinter.attach("Attachment", lambda: hinted.append("Attachment"))
        working = asyncio.create_task(steps.work_once())
        await until(lambda: pipeline.locked)
        if ends == "lost":
            await change(
                virtual_database, volume, lock_token=None, lock_owner=None, lock_expires_at=None
            )
            await asyncio.sleep(16)
            await steps.beat_once()
        else:
            working.cancel()
        await asyncio.wait({working})
        await until(lambda: not steps.run.settler)
    assert hinted == ["Attachment"]
    assert [name for name in await locks_of(virtual_database) if "Attachment" in name] == []


@virtual_time
async def test_pipelines_of_related_rows_wait_for_no_clean_up(
    virtual_database: TemporaryDatabase,
) -> None:
    """Children that are free would be passed over while the host cleans up after their parent,
    for minutes perhaps.
    """

    async def lose_token(item: Any, _rows: Any) -> Apply:
        await change(
            virtual_database, item.row, lock_token=None, lock_owner=None, lock_expires_at=None
        )
        return Apply({"status": "active"})

    hinted, hinted_before = list[str](), list[int]()

    class Cleaning(GatheringPipeline):
        async def on_stale(self, item: Any, outcome: Any) -> None:  # type: ignore[override]
            hinted_before.append(len(hinted))

    async with at_work(virtual_database, Cleaning(then=lose_token)) as (steps, _):
        steps.run.context.hinter.attach("Attachment", lambda: hinted.append("Attachment"))
        await steps.work_once()
    assert hinted_before == [1]


@virtual_time
async def test_an_attempt_that_is_left_behind_keeps_them_until_they_expire(
    virtual_database: TemporaryDatabase,
) -> None:
    """Somebody else would work on a child while the parent's code still does."""
    over = asyncio.Event()

    async def ignore(item: Any, rows: Any) -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    pipeline = GatheringPipeline(then=ignore, process_timeout=5)
    async with at_work(virtual_database, pipeline) as (steps, _):
        await steps.work_once()
        assert counted(steps)["abandoned"] == 1
        assert len(await locks_of(virtual_database)) == ATTACHMENTS + 1
        [item] = pipeline.items
        with pytest.raises(LeaseLost):
            await item.lock_related(Attachment, Attachment.volume_id == item.id)
        over.set()
        await turns(100)


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_a_stale_outcome_frees_them(database: TemporaryDatabase, is_trusted: bool) -> None:
    """Related rows of an item whose main row has another holder are released with its outcome; and
    by themselves where trust has ended, and the outcome has no transaction.
    """

    async def rob(item: Any, rows: list[Attachment]) -> Apply:
        await change(database, await read(database, item.row), lock_token=uuid.uuid4())
        if not is_trusted:
            item.trusted_until = monotonic()
        return write_all(item, rows)

    async with at_work(database, GatheringPipeline(then=rob)) as (steps, _):
        await steps.work_once()
        assert counted(steps)["stale"] == 1
        assert [name for name in await locks_of(database) if name.startswith("Attachment")] == []
    assert {row.status for row in await attachments_of(database)} == {"submitted"}


async def test_a_related_row_that_was_deleted_needs_no_lease(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A service that deletes a child would end its parent's work, as if the database were away."""
    async with at_work(database_with_clock, GatheringPipeline()) as (steps, _):
        [item] = steps.queued
        await item.lock_related(Attachment, Attachment.volume_id == item.id)
        async with database_with_clock.session_factory.begin() as session:
            await session.execute(delete(Attachment).where(Attachment.name == "0"))
        item.trusted_until -= 20
        until = item.trusted_until
        await steps.beat_once()
        assert item.trusted_until > until


async def test_outcomes_wait_for_no_related_row(postgresql_database: TemporaryDatabase) -> None:
    """An outcome that holds one row and waits for another would deadlock with a service that
    does the reverse.
    """
    database = postgresql_database
    let_go = asyncio.Event()

    async def child_then_parent(item: Any, rows: list[Attachment]) -> Apply:
        entered = asyncio.Event()

        async def service() -> None:
            async with database.session_factory.begin() as session:
                await session.execute(
                    update(Attachment).where(Attachment.id == rows[0].id).values(status="service")
                )
                entered.set()
                await let_go.wait()
                await session.execute(update(Volume).where(Volume.id == item.id).values(size_gb=7))

        services.append(asyncio.create_task(service()))
        await entered.wait()
        services.append(asyncio.create_task(let_go_once_refused()))
        return Apply({"status": "active"})

    async def let_go_once_refused() -> None:
        # The outcome has found the child locked; it would wait for it now, with the parent in hand.
        with passing(
            database.engine, lambda statement: statement.startswith("SELECT attachments.id")
        ) as looks:
            await looks.wait_for(2)
            let_go.set()

    async def deadlocks() -> Any:
        seen = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        async with database.session_factory() as session:
            return await session.scalar(text(seen))

    before, services = await deadlocks(), list[asyncio.Task[None]]()
    async with at_work(database, GatheringPipeline(then=child_then_parent)) as (steps, volume):
        await steps.work_once()
        await asyncio.gather(*services)
        assert counted(steps)["applied"] == 1
    after = await read(database, volume)
    assert (after.status, after.size_gb) == ("active", 7)
    assert await locks_of(database) == {}
    assert await deadlocks() == before


async def test_two_refusals_in_a_task_group_are_one(database: TemporaryDatabase) -> None:
    """A parent that locks in a task group would count an attempt as failed, and lose its intent."""

    async def both(item: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for name in ("0", "1"):
                group.create_task(item.lock_related(Attachment, Attachment.name == name))

    pipeline = GatheringPipeline()
    pipeline.answer = both
    async with (
        at_work(database, pipeline) as (steps, volume),
        stepping(database.session_factory, AttachmentPipeline()) as busy,
    ):
        await busy.fetch_once()
        await steps.work_once()
        assert counted(steps)["reset"] == 1
        assert (await read(database, volume)).lock_owner == "GatheringPipeline"


async def test_a_reset_child_is_given_back_to_whom_it_waits_for(
    database: TemporaryDatabase,
) -> None:
    """A child that waits for locks of its own would start over whenever its parent has had it."""
    async with at_work(database, GatheringPipeline()) as (steps, _):
        async with stepping(database.session_factory, AttachmentPipeline(answer=Reset())) as busy:
            await busy.fetch_once(limit=1)
            await busy.work_all()
        await steps.work_once()
    owners = sorted(str(row.lock_owner) for row in await attachments_of(database))
    assert owners == ["AttachmentPipeline", "None", "None"]
    assert {row.lock_token for row in await attachments_of(database)} == {None}


class PlacingPipeline(RunPipeline):
    locks = (Volume,)

    def __init__(self) -> None:
        super().__init__(answer=lambda item: item.lock_related(Volume, true()))


@pytest.mark.parametrize("parked", [False, True])
async def test_a_parked_parent_keeps_nobody_from_its_children(
    database: TemporaryDatabase, parked: bool
) -> None:
    """A main row that came back for locks has its turn first, unless it is parked: it will not
    come.
    """
    [run, volume, other] = await add(database, Run(id=1), Volume(), Volume())
    async with stepping(database.session_factory, VolumePipeline()) as busy:
        await busy.fetch_once(limit=1)
        async with stepping(database.session_factory, PlacingPipeline()) as steps:
            await steps.fetch_once()
            await steps.work_once()
            assert counted(steps)["reset"] == 1
    if parked:
        await change(database, run, parked_at=datetime.now(UTC))
    async with stepping(
        database.session_factory, VolumePipeline(), beside=[PlacingPipeline()]
    ) as steps:
        assert {item.id for item in await steps.fetch_once()} == (
            {volume.id, other.id} if parked else set()
        )
