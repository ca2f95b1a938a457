"""The intent of a parent that waits for its children: who respects it, for whom, and until when."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import ColumnElement, exists

from rowlock import Apply, Park, Related, Reset, Retry
from rowlock.testing import Steps, TemporaryDatabase, stepping

from ..host import Attachment, AttachmentPipeline, RecordingPipeline, Run, RunPipeline, Volume
from .scenes import add, change, is_free, read, read_all


class WaitingPipeline(RecordingPipeline):
    """A parent of attachments that resets unless told otherwise."""

    model = Volume
    locks = (Attachment,)
    orphaned_after = timedelta(days=30)

    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "submitted"

    def usual_answer(self, item: Any) -> Any:
        return Reset()


class CoarsePipeline(RunPipeline):
    """A parent of attachments of which no foreign key says whose they are."""

    locks = (Attachment,)
    orphaned_after = timedelta(days=30)

    def usual_answer(self, item: Any) -> Any:
        return Reset()


async def waiting_parent(
    database: TemporaryDatabase, pipeline: RecordingPipeline, row: Any = None, *, outcomes: int = 1
) -> Any:
    [volume] = await add(database, Volume() if row is None else row)
    [home] = [volume] if isinstance(volume, Volume) else await add(database, Volume(status="idle"))
    await add(database, Attachment(volume_id=home.id))
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        assert await steps.work_all() == outcomes
    return volume


async def claimable(database: TemporaryDatabase, *parents: RecordingPipeline) -> int:
    """Return how many attachments their own pipeline would claim; what it claims is released."""
    async with stepping(database.session_factory, AttachmentPipeline(), beside=parents) as steps:
        return len(await steps.fetch_once())


async def test_children_of_a_parent_that_waits_are_left_alone(database: TemporaryDatabase) -> None:
    """Busy children would be claimed again, one by one, and their parent never have them all."""
    parent = WaitingPipeline()
    await waiting_parent(database, parent)
    [other] = await add(database, Volume(status="idle"))
    await add(database, Attachment(volume_id=other.id))
    assert await claimable(database, parent) == 1
    assert await claimable(database) == 2


async def test_no_lock_column_of_a_child_is_written_for_it(database: TemporaryDatabase) -> None:
    """A mark in the children would outlive a parent that fails, and starve them."""
    await waiting_parent(database, WaitingPipeline())
    assert [is_free(row) for row in await read_all(database, Attachment)] == [True]


async def test_the_intent_lasts_until_the_locks_are_had(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Between the parent's next claim and its lock_related the children would be claimed again,
    every time.
    """
    parent = WaitingPipeline()
    volume = await waiting_parent(database_with_clock, parent)
    database_with_clock.clock.advance(2)
    async with stepping(database_with_clock.session_factory, parent) as steps:
        [item] = await steps.fetch_once()
        assert item.lock_token.version == 8
        assert not item.prev_lock_expired
        assert await claimable(database_with_clock, parent) == 0
        rows = await item.lock_related(Attachment, Attachment.volume_id == volume.id)
        assert len(rows) == 1


async def test_a_parent_at_work_that_did_not_wait_holds_up_nobody(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Parents that lock only now and then would stop their children all the time."""
    database = database_with_clock
    parent = WaitingPipeline()
    [volume] = await add(
        database, Volume(last_processed_at=database.clock.now - timedelta(seconds=20))
    )
    await add(database, Attachment(volume_id=volume.id))
    async with stepping(database.session_factory, parent) as steps:
        [item] = await steps.fetch_once()
        assert item.lock_token.version == 4
        assert await claimable(database, parent) == 1


@pytest.mark.parametrize(
    "outcome", [Apply({"status": "active"}), Retry(error="no"), ValueError("no")], ids=repr
)
async def test_any_other_outcome_ends_it(database: TemporaryDatabase, outcome: Any) -> None:
    """A parent that fails would keep its children waiting."""
    parent = WaitingPipeline(answer=outcome)
    await waiting_parent(database, parent)
    assert await claimable(database, parent) == 1


async def test_a_parent_that_is_no_longer_ready_holds_up_nobody(
    database: TemporaryDatabase,
) -> None:
    """Children would wait for a parent that never comes back."""
    parent = WaitingPipeline()
    volume = await waiting_parent(database, parent)
    await change(database, volume, status="cancelled")
    assert await claimable(database, parent) == 1


async def test_a_parent_that_is_gone_holds_up_nobody(database: TemporaryDatabase) -> None:
    """Children would wait for a parent that is not there any more."""
    parent = CoarsePipeline()
    run = await waiting_parent(database, parent, Run())
    assert await claimable(database, parent) == 0
    async with database.session_factory.begin() as session:
        await session.delete(await session.get(Run, run.id))
    assert await claimable(database, parent) == 1


async def test_a_parked_parent_holds_up_nobody(database: TemporaryDatabase) -> None:
    """Children would wait until somebody releases their parent."""
    parent = CoarsePipeline()
    run = await waiting_parent(database, parent, Run())
    assert await claimable(database, parent) == 0
    row = await read(database, run)
    await change(database, run, parked_at=row.last_processed_at)
    assert await claimable(database, parent) == 1
    parent = CoarsePipeline(answer=Park("enough"))
    await waiting_parent(database, parent, Run())
    assert await claimable(database, parent) == 2


async def test_a_parent_that_does_not_come_back_is_respected_for_a_time(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A pipeline that was taken out of the replicas would stop its children for ever."""
    parent = WaitingPipeline(orphaned_after=100)
    await waiting_parent(database_with_clock, parent)
    database_with_clock.clock.advance(99)
    assert await claimable(database_with_clock, parent) == 0
    database_with_clock.clock.advance(2)
    assert await claimable(database_with_clock, parent) == 1


async def test_a_child_that_has_waited_long_itself_goes_on(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Parents that take turns in waiting for one child would keep its own pipeline away for
    ever.
    """
    database = database_with_clock
    parent = WaitingPipeline(orphaned_after=100)
    volume = await waiting_parent(database, parent)
    [child] = await read_all(database, Attachment)
    started_at = database.clock.now
    await change(database, child, last_processed_at=started_at)
    for waited_s, expected in ((114, 0), (116, 1)):
        database.clock.advance(started_at + timedelta(seconds=waited_s) - database.clock.now)
        await change(database, volume, last_processed_at=database.clock.now)
        assert await claimable(database, parent) == expected


async def test_a_child_that_was_never_processed_has_its_turn(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Nobody knows how long a new row has waited; a parent that waits for long would keep it
    waiting for ever.
    """
    database = database_with_clock
    parent = WaitingPipeline(orphaned_after=100)
    volume = await waiting_parent(database, parent)
    database.clock.advance(timedelta(seconds=400 - database.clock.now.timestamp() % 400))
    for at_s, expected in ((393, 0), (394, 1), (399, 1), (400, 0)):
        database.clock.advance(
            timedelta(seconds=at_s - (database.clock.now.timestamp() % 400 or 0))
        )
        await change(database, volume, last_processed_at=database.clock.now)
        assert await claimable(database, parent) == expected, at_s


async def test_a_parent_at_work_again_is_respected_for_a_shorter_time(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A parent that no longer needs its locks and works for long would stop its children for as
    long.
    """
    parent = WaitingPipeline()
    await waiting_parent(database_with_clock, parent)
    async with stepping(database_with_clock.session_factory, parent) as steps:
        database_with_clock.clock.advance(15)
        assert len(await steps.fetch_once()) == 1
        assert await claimable(database_with_clock, parent) == 0
        database_with_clock.clock.advance(15.9)
        assert await claimable(database_with_clock, parent) == 0
        database_with_clock.clock.advance(0.2)
        assert await claimable(database_with_clock, parent) == 1


@pytest.mark.parametrize("beside", [True, False])
async def test_a_reset_row_is_kept_for_seconds(
    database_with_clock: TemporaryDatabase, *, beside: bool
) -> None:
    """A fleet that waits for its instances and is to be deleted would wait minutes for the
    pipeline that deletes it.
    """

    class DeletingPipeline(RecordingPipeline):
        model = Volume

        def ready(self) -> ColumnElement[bool]:
            return Volume.status == "to be deleted"

    parent = WaitingPipeline()
    volume = await waiting_parent(database_with_clock, parent)
    await change(database_with_clock, volume, status="to be deleted")

    async def to_be_deleted() -> int:
        deleting = DeletingPipeline(min_processing_interval=0)
        async with stepping(
            database_with_clock.session_factory, deleting, beside=[parent] if beside else []
        ) as steps:
            return len(await steps.fetch_once())

    # A retry_delay of a second, a fifth of it at most besides, and the longest rest of a fetcher.
    database_with_clock.clock.advance(7.1)
    assert await to_be_deleted() == 0
    database_with_clock.clock.advance(0.2)
    assert await to_be_deleted() == 1


async def test_a_readiness_that_looks_at_the_children_is_asked_rightly(
    database: TemporaryDatabase,
) -> None:
    """The parent's own condition, read inside the children's claim, would mean other rows than
    in its own.
    """

    class Looking(WaitingPipeline):
        def ready(self) -> ColumnElement[bool]:
            some = exists().where(Attachment.volume_id == Volume.id, Attachment.name == "trigger")
            return (Volume.status == "submitted") & some

    parent = Looking()
    [volume] = await add(database, Volume())
    await add(
        database, *(Attachment(volume_id=volume.id, name=name) for name in ("trigger", "other"))
    )
    async with stepping(database.session_factory, parent) as steps:
        await steps.fetch_once()
        assert await steps.work_all() == 1
    assert await claimable(database, parent) == 0
    [trigger] = [row for row in await read_all(database, Attachment) if row.name == "trigger"]
    await change(database, trigger, name="no trigger")
    assert await claimable(database, parent) == 2


async def test_on_says_whose_children_they_are(database: TemporaryDatabase) -> None:
    """Children of other parents would wait with them."""

    class Particular(WaitingPipeline):
        locks = (
            Related(
                Attachment, on=(Attachment.volume_id == Volume.id) & (Attachment.name == "wanted")
            ),
        )

    parent = Particular()
    volume = await waiting_parent(database, parent)
    await add(database, Attachment(volume_id=volume.id, name="wanted"))
    assert await claimable(database, parent) == 1


async def test_a_reset_row_comes_back_after_the_retry_delay(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Its children would stand still for the whole minimum interval."""
    parent = WaitingPipeline(min_processing_interval=60, retry_delay=2)
    await waiting_parent(database_with_clock, parent)

    async def fetched(steps: Steps[Any]) -> int:
        return len(await steps.fetch_once())

    async with stepping(database_with_clock.session_factory, parent) as steps:
        assert await fetched(steps) == 0
        database_with_clock.clock.advance(2)
        assert await fetched(steps) == 1
