"""What becomes of related rows, function by function."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete

from rowlock import PipelineItem
from rowlock.errors import LeaseLost
from rowlock.leases import renew as renew_module
from rowlock.leases.apply import RelatedWrite
from rowlock.leases.related import lock_held_related, release_related, renew_related, write_related
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import Steps, TemporaryDatabase, stepping

from ..host import Attachment, AttachmentPipeline
from ..pipelines.related_scenes import GatheringPipeline, add_volume, at_work, attachments_of
from ..pipelines.scenes import change, faults_of
from .ground import LOCK_TIMEOUT, transact

ATTACHMENTS = LeasedTable.of(Attachment)
STATUS = ATTACHMENTS.column("status")


async def gathered(steps: Steps[Any]) -> tuple[PipelineItem[Any], list[Attachment]]:
    """Lock the attachments of the one item, and return both; the rows in the order of their
    keys.
    """
    [item] = steps.queued
    return item, await item.lock_related(Attachment, Attachment.volume_id == item.id)


async def test_a_related_row_that_another_has_costs_its_own_item_alone(
    database: TemporaryDatabase,
) -> None:
    """A parent would work on as if it still had its child; or all other parents lose their
    leases with it.
    """
    robbed, well = [await add_volume(database, attachments=2) for _ in range(2)]
    async with stepping(
        database.session_factory, GatheringPipeline(), beside=[AttachmentPipeline()]
    ) as steps:
        items = {item.id: item for item in await steps.fetch_once()}
        for item in items.values():
            rows = await item.lock_related(Attachment, Attachment.volume_id == item.id)
            item.trusted_until -= 20
            if item.id == robbed.id:
                await change(database, rows[1], lock_token=uuid.uuid4())
        before = {key: item.trusted_until for key, item in items.items()}
        assert await steps.beat_once() == 2
        assert items[robbed.id].trusted_until == before[robbed.id]
        assert items[well.id].trusted_until > before[well.id]
        assert steps.run.heartbeater.due_for_renewal() == [items[robbed.id]]


async def test_related_rows_are_renewed_in_pieces(
    database_with_clock: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One statement would grow with what items hold, past what the database takes; or the last
    piece be left out.
    """
    monkeypatch.setattr(renew_module, "LEASES_PER_STATEMENT_MAX", 2)
    async with at_work(database_with_clock, GatheringPipeline(), attachments=5) as (steps, _):
        item, _ = await gathered(steps)
        database_with_clock.clock.advance(10)
        with faults_of(database_with_clock.engine) as faults:
            missing = await transact(
                database_with_clock, lambda c: renew_related(c, [item], lock_timeout=LOCK_TIMEOUT)
            )
        assert missing == frozenset()
        assert faults.count(lambda statement: " SET lock_expires_at=" in statement) == 3
        expiries = {row.lock_expires_at for row in await attachments_of(database_with_clock)}
        assert expiries == {database_with_clock.clock.now + LOCK_TIMEOUT}


async def test_an_item_that_may_hold_a_row_is_not_missing_it(database: TemporaryDatabase) -> None:
    """After a lost answer an item would wait for the renewal of a row that it never had, and
    lose its lease over it.
    """
    async with at_work(database, GatheringPipeline()) as (steps, _):
        [item] = steps.queued
        [row, *_] = await attachments_of(database)
        item.held_rows().may_hold(ATTACHMENTS, dict.fromkeys((row.id,)))
        assert (
            await transact(database, lambda c: renew_related(c, [item], lock_timeout=LOCK_TIMEOUT))
            == frozenset()
        )


async def test_what_is_locked_is_what_still_carries_the_token(database: TemporaryDatabase) -> None:
    """A result would rest on a row that another has, or nothing be written for the sake of one
    that was deleted.
    """
    async with at_work(database, GatheringPipeline()) as (steps, _):
        item, [lost, deleted, kept] = await gathered(steps)
        await change(database, lost, lock_token=uuid.uuid4())
        async with database.session_factory.begin() as session:
            await session.execute(delete(Attachment).where(Attachment.id == deleted.id))
        assert await transact(database, lambda c: lock_held_related(c, item)) == {
            (Attachment, kept.id)
        }


async def test_what_services_own_must_be_as_it_was_where_it_is_written(
    database: TemporaryDatabase,
) -> None:
    """A stop that a service asked of a child would be overwritten; or one that the parent does
    not write keep it from ending.
    """

    class Owned(AttachmentPipeline):
        intent = (Attachment.status,)

    await add_volume(database)
    async with stepping(database.session_factory, GatheringPipeline(), beside=[Owned()]) as steps:
        await steps.fetch_once()
        item, [stopped, well, _] = await gathered(steps)
        await change(database, stopped, status="to be stopped")
        writes = [RelatedWrite(ATTACHMENTS, row.id, {STATUS: "written"}) for row in (well, stopped)]
        with pytest.raises(LeaseLost):
            await transact(database, lambda c: write_related(c, item, writes))
        await transact(database, lambda c: write_related(c, item, writes[:1]))
    assert sorted(row.status for row in await attachments_of(database)) == [
        "submitted",
        "to be stopped",
        "written",
    ]


async def test_only_what_carries_the_token_is_freed(database: TemporaryDatabase) -> None:
    """The lock of somebody who took a row over would be taken away."""
    token = uuid.uuid4()
    async with at_work(database, GatheringPipeline()) as (steps, _):
        item, [_, lost, _] = await gathered(steps)
        await change(database, lost, lock_token=token)
        await transact(database, lambda c: release_related(c, item))
    assert {
        row.lock_token for row in await attachments_of(database) if row.lock_token is not None
    } == {token}


async def test_an_item_that_holds_nothing_has_nothing_to_look_after(
    database: TemporaryDatabase,
) -> None:
    """Each outcome and each renewal would cost statements for rows that nobody locked."""
    async with at_work(database, GatheringPipeline()) as (steps, _):
        [item] = steps.queued

        async def all_of_it(connection: Any) -> Any:
            with faults_of(database.engine) as faults:
                locked = await lock_held_related(connection, item)
                await release_related(connection, item)
                missing = await renew_related(connection, [item], lock_timeout=timedelta(seconds=1))
            return locked, missing, faults.sent

        assert await transact(database, all_of_it) == (frozenset(), frozenset(), [])
        assert item.held is None
