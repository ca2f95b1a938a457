"""Related rows when the attempt does not end as planned: freed by somebody on every path."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import delete, event, text, update
from sqlalchemy.util import await_only

from rowlock import Apply, LeaseLost, Reset, Retry
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Attachment, AttachmentPipeline, Volume
from .related_scenes import (
    ATTACHMENTS,
    GatheringPipeline,
    SharingPipeline,
    add_volume,
    at_work,
    attachments_of,
    locks_of,
    write_all,
)
from .scenes import (
    add,
    change,
    counted,
    faults_of,
    is_free,
    is_outcome,
    read,
    replica,
    turns,
    until,
)


async def crashed_with_related_rows(
    database: TemporaryDatabase, pipeline: GatheringPipeline
) -> Volume:
    """Leave a volume and its attachments leased by a replica that died, and let the leases
    expire.
    """
    volume = await add_volume(database)
    run = pipeline.build_run(replica(database), None)  # type: ignore[arg-type]
    assert await run.fetcher.fetch_once(1) == 1
    [item] = run.context.queue.waiting()
    await item.lock_related(Attachment, Attachment.volume_id == item.id, shared=pipeline.shared)
    assert len(await locks_of(database)) == ATTACHMENTS + 1
    database.clock.advance(30)
    return volume


# ---------------------------------------------------------------- crashes


@pytest.mark.parametrize(
    "outcome", [Apply({"status": "active"}), Retry(error="no"), ValueError("no")], ids=repr
)
async def test_whoever_claims_the_main_row_next_frees_them(
    database_with_clock: TemporaryDatabase, outcome: Any
) -> None:
    """The next attempt may take another path and never ask for the rows: they would stay locked."""
    await crashed_with_related_rows(database_with_clock, GatheringPipeline())

    class TakesAnotherPath(GatheringPipeline):
        async def process(self, item: Any) -> Any:
            assert item.prev_lock_expired
            assert {row.lock_token for row in await attachments_of(database_with_clock)} == {None}
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

    TakesAnotherPath.__name__ = "GatheringPipeline"
    async with stepping(database_with_clock.session_factory, TakesAnotherPath()) as steps:
        await steps.fetch_once()
        await steps.work_once()
    assert await locks_of(database_with_clock) == {}


async def test_the_next_attempt_takes_them_again(database_with_clock: TemporaryDatabase) -> None:
    """After a crash the parent would wait for locks that it has itself."""
    database = database_with_clock
    await crashed_with_related_rows(database, GatheringPipeline())
    async with stepping(database.session_factory, GatheringPipeline(then=write_all)) as steps:
        await steps.fetch_once()
        await steps.work_once()
        assert counted(steps)["applied"] == 1
    assert await locks_of(database) == {}


async def test_a_claim_frees_only_what_its_own_dead_holder_had(
    database_with_clock: TemporaryDatabase,
) -> None:
    """The related rows of a living parent would be taken from it."""
    database = database_with_clock
    await crashed_with_related_rows(database, GatheringPipeline())
    async with stepping(database.session_factory, GatheringPipeline()) as alive:
        other = await add_volume(database, attachments=1)
        await change(database, await read(database, other), last_processed_at=None)
        items = await alive.fetch_once()
        living = next(item for item in items if item.id == other.id)
        await living.lock_related(Attachment, Attachment.volume_id == living.id)
        held = [row for row in await attachments_of(database) if not is_free(row)]
        assert [row.lock_token for row in held] == [living.lock_token]


@pytest.mark.parametrize("pipeline_class", [GatheringPipeline, SharingPipeline])
async def test_they_are_free_by_expiry_if_the_main_row_is_gone(
    database_with_clock: TemporaryDatabase, pipeline_class: type[GatheringPipeline]
) -> None:
    """Children of a deleted parent would never be worked on again."""
    database = database_with_clock
    volume = await crashed_with_related_rows(database, pipeline_class())
    async with database.session_factory.begin() as session:
        await session.execute(
            update(Attachment).values(volume_id=(await add_volume(database, attachments=0)).id)
        )
        await session.execute(delete(Volume).where(Volume.id == volume.id))
    async with stepping(
        database.session_factory, AttachmentPipeline(), beside=[pipeline_class()]
    ) as steps:
        assert len(await steps.fetch_once()) == ATTACHMENTS
        assert {item.prev_lock_expired for item in steps.queued} == {False}
        await steps.work_all()
    assert await locks_of(database) == {}


@pytest.mark.parametrize("pipeline_class", [GatheringPipeline, SharingPipeline])
async def test_children_of_a_dead_parent_that_does_not_run_here_are_free(
    database_with_clock: TemporaryDatabase, pipeline_class: type[GatheringPipeline]
) -> None:
    """Workers are split by resource: children would wait for the sweep of a parent of which
    their replica knows nothing.
    """
    await crashed_with_related_rows(database_with_clock, pipeline_class())
    async with stepping(database_with_clock.session_factory, AttachmentPipeline()) as steps:
        assert len(await steps.fetch_once()) == ATTACHMENTS


async def test_what_nobody_wants_any_more_is_swept(database_with_clock: TemporaryDatabase) -> None:
    """Rows that a dead pipeline left would carry its name for ever."""
    await crashed_with_related_rows(database_with_clock, GatheringPipeline())
    for row in await attachments_of(database_with_clock):
        await change(database_with_clock, row, status="done")
    async with stepping(database_with_clock.session_factory, AttachmentPipeline()) as steps:
        database_with_clock.clock.advance(301)
        assert await steps.sweep_once() == ATTACHMENTS


async def test_rows_of_its_own_table_count_as_nobodys_attempts(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Rows that a dead item had locked beside its own would be taken for rows that it had worked
    on.
    """
    pipeline = GatheringPipeline()
    await add(database_with_clock, Volume(), Volume(status="other"))
    run = pipeline.build_run(replica(database_with_clock), None)  # type: ignore[arg-type]
    assert await run.fetcher.fetch_once(1) == 1
    [item] = run.context.queue.waiting()
    [other] = await item.lock_related(Volume, Volume.status == "other")
    assert other.lock_owner == f"GatheringPipeline:{item.id}"
    await change(database_with_clock, other, status="submitted")
    database_with_clock.clock.advance(30)
    async with stepping(database_with_clock.session_factory, GatheringPipeline()) as steps:
        died = {found.id: found.prev_lock_expired for found in await steps.fetch_once()}
    assert died == {item.id: True, other.id: False}


async def test_a_pipeline_sweeps_the_tables_whose_rows_it_locks(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Rows of a model that has no pipeline of its own would keep their lock columns for ever."""
    volume = await crashed_with_related_rows(database_with_clock, GatheringPipeline())
    await change(database_with_clock, volume, status="gone")
    async with stepping(database_with_clock.session_factory, GatheringPipeline()) as steps:
        database_with_clock.clock.advance(301)
        assert await steps.sweep_once() == ATTACHMENTS + 1
    assert await locks_of(database_with_clock) == {}


async def test_a_pipeline_sweeps_only_what_it_left(database_with_clock: TemporaryDatabase) -> None:
    """The intent of a child, or the trace of its crash, would be cleared by a parent that is in
    more of a hurry.
    """
    database = database_with_clock
    await add_volume(database)
    async with stepping(database.session_factory, AttachmentPipeline(answer=Reset())) as busy:
        await busy.fetch_once()
        await busy.work_all()
    async with stepping(database.session_factory, GatheringPipeline(orphaned_after=40)) as steps:
        database.clock.advance(60)
        assert await steps.sweep_once() == 0
    assert {row.lock_owner for row in await attachments_of(database)} == {"AttachmentPipeline"}


# ---------------------------------------------------------------- while rows are being locked


async def test_once_the_outcome_is_on_its_way_nothing_more_is_locked(
    database: TemporaryDatabase,
) -> None:
    """Rows that a forgotten task locks after the outcome was written belong to nobody and are
    freed by nobody.
    """
    pipeline = GatheringPipeline(then=Apply({"status": "active"}))
    async with at_work(database, pipeline) as (steps, _):
        item = await steps.work_once()
        with pytest.raises(LeaseLost):
            await item.lock_related(Attachment, Attachment.volume_id == item.id)
    assert await locks_of(database) == {}


@virtual_time
async def test_while_the_outcome_is_written_nothing_more_is_locked(
    virtual_database: TemporaryDatabase,
) -> None:
    """Rows would be locked that the transaction under way does not free."""
    pipeline = GatheringPipeline(then=Apply({"status": "active"}))
    async with at_work(virtual_database, pipeline) as (steps, _):
        with faults_of(virtual_database.engine) as faults:
            faults.hang(when=is_outcome)
            working = asyncio.create_task(steps.work_once())
            await until(lambda: faults.count(is_outcome))
            with pytest.raises(LeaseLost):
                await pipeline.items[0].lock_related(Attachment, Attachment.name == "0")
            faults.heal()
            await working
    assert await locks_of(virtual_database) == {}


async def test_without_the_main_row_nothing_is_locked(database: TemporaryDatabase) -> None:
    """A holder that was robbed of its row without knowing it would lock rows under a dead token."""
    async with at_work(database, GatheringPipeline()) as (steps, volume):
        [item] = steps.queued
        await change(database, volume, lock_token=None)
        with pytest.raises(LeaseLost):
            await item.lock_related(Attachment, Attachment.volume_id == item.id)
    assert set(await locks_of(database)) == {"Volume "}


async def test_the_main_row_is_locked_while_related_rows_are(
    postgresql_database: TemporaryDatabase,
) -> None:
    """No claim takes the main row over while related rows are being locked: it would look for what
    the dead holder left before that is there.
    """
    others, claimable = postgresql_database.create_engine(), []

    async def look() -> None:
        async with others.connect() as connection:
            found = text("SELECT id FROM volumes FOR NO KEY UPDATE SKIP LOCKED")
            claimable.append((await connection.execute(found)).all())

    def on_execute(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE attachments") and not claimable:
            await_only(look())

    async with at_work(postgresql_database, GatheringPipeline()) as (steps, _):
        event.listen(postgresql_database.engine.sync_engine, "before_cursor_execute", on_execute)
        await steps.work_once()
        event.remove(postgresql_database.engine.sync_engine, "before_cursor_execute", on_execute)
    assert claimable == [[]]


async def test_under_an_expired_lease_nothing_is_locked(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Rows would be locked that end at once, or under a token that a claim just found dead."""
    async with at_work(database_with_clock, GatheringPipeline()) as (steps, _):
        [item] = steps.queued
        database_with_clock.clock.advance(30)
        with pytest.raises(LeaseLost):
            await item.lock_related(Attachment, Attachment.volume_id == item.id)
        assert len(await locks_of(database_with_clock)) == 1


@pytest.mark.parametrize(
    "when", ["SELECT attachments.id", "UPDATE attachments SET", "SELECT volumes.lock_expires_at"]
)
@virtual_time
async def test_the_outcome_waits_for_what_is_being_locked(
    virtual_database: TemporaryDatabase, when: str
) -> None:
    """Rows whose locking is under way when `process` returns would be missed when the others are
    freed.
    """
    strays: list[asyncio.Task[Any]] = []

    async def leave_one(item: Any) -> Apply:
        strays.append(
            asyncio.create_task(item.lock_related(Attachment, Attachment.volume_id == item.id))
        )
        await asyncio.sleep(1)
        return Apply({"status": "active"})

    pipeline = GatheringPipeline()
    pipeline.answer = leave_one
    async with at_work(virtual_database, pipeline) as (steps, volume):
        with faults_of(virtual_database.engine) as faults:
            faults.hang(when=lambda statement: statement.startswith(when))
            working = asyncio.create_task(steps.work_once())
            await asyncio.sleep(2)
            assert not working.done()
            faults.heal()
            await working
        await asyncio.wait(strays)
    assert await locks_of(virtual_database) == {}
    assert (await read(virtual_database, volume)).status == "active"


@virtual_time
async def test_cancelled_at_any_await_nothing_stays_locked(
    virtual_database: TemporaryDatabase,
) -> None:
    """A cancellation between the commit and its answer would leave rows locked of which nobody
    knows.
    """

    async def _nothing(*_: Any) -> None: ...

    await virtual_database.create_tables(Volume.metadata)
    finished = False
    for suspensions in range(1, 400):
        pipeline = GatheringPipeline()
        volume = await add_volume(virtual_database)
        async with stepping(virtual_database.session_factory, pipeline) as steps:
            [item] = await steps.fetch_once()
            locking = asyncio.create_task(
                item.lock_related(Attachment, Attachment.volume_id == item.id)
            )
            await turns(suspensions)
            finished = locking.done()
            locking.cancel()
            await asyncio.wait({locking})
            await steps.run.context.transact(_nothing, purpose="show that the pool is usable")
            pipeline.answer = Apply({"status": "active"})
            await steps.work_once()
        assert await locks_of(virtual_database) == {}, f"cancelled after {suspensions} turns"
        assert (await read(virtual_database, volume)).status == "active"
        if finished:
            break
    assert finished
    assert suspensions > 10


@virtual_time
async def test_a_commit_whose_answer_was_lost_leaves_nothing_locked(
    virtual_database: TemporaryDatabase,
) -> None:
    """Rows that were locked by a transaction of unknown end would not be freed with the others."""
    async with at_work(virtual_database, GatheringPipeline()) as (steps, _):
        with faults_of(virtual_database.engine) as faults:
            faults.lose_answers_of_commits(
                when=lambda statement: statement.startswith("UPDATE attachments")
            )
            await steps.work_once()
        assert counted(steps)["retried"] == 1
    assert await locks_of(virtual_database) == {}
