"""Releasing: rows that were not worked on are free at once, and only those that are still ours."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from sqlalchemy import delete

from rowlock import events
from rowlock.leases.acquire import LEASES_PER_STATEMENT_MAX
from rowlock.pipelines.settler import release_items, release_related_of
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Attachment, Run, RunPipeline, Volume, VolumePipeline, heard_events
from .related_scenes import ATTACHMENTS, GatheringPipeline, at_work, attachments_of, locks_of
from .scenes import add, change, counted, faults_of, is_free, now, read, read_all
from .told import Line, told

DOWN = ConnectionRefusedError("down")


async def test_rows_are_as_if_they_had_never_been_claimed(database: TemporaryDatabase) -> None:
    """A row that nobody worked on would rest, go to the back, or count a failed attempt."""
    [row] = await add(database, Run())
    before = await read(database, row)
    async with stepping(database.session_factory, RunPipeline()) as steps:
        items = await steps.fetch_once()
        with heard_events() as heard:
            await release_items(steps.run.context, items)
        assert counted(steps)["released"] == 1
        assert items[0].is_lost
        assert [(event.row_id, event.lock_token) for event in heard.of(events.ItemReleased)] == [
            (row.id, items[0].lock_token)
        ]
    after = await read(database, row)
    assert is_free(after)
    assert (after.due_at, after.attempts, after.last_processed_at, after.updated_at) == (
        before.due_at,
        before.attempts,
        before.last_processed_at,
        before.updated_at,
    )


async def test_only_what_is_still_ours_is_given_back(database: TemporaryDatabase) -> None:
    """The lock of the next holder would be taken away."""
    rows = await add(database, Volume(), Volume())
    other = uuid.uuid4()
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        items = await steps.fetch_once()
        await change(database, rows[0], lock_token=other)
        with heard_events() as heard:
            await release_items(steps.run.context, items)
        assert [event.row_id for event in heard.of(events.ItemReleased)] == [rows[1].id]
        assert all(item.is_lost for item in items)
        assert counted(steps)["released"] == 1
    assert (await read(database, rows[0])).lock_token == other
    assert is_free(await read(database, rows[1]))


async def test_a_row_that_was_deleted_is_not_told_as_given_back(
    database: TemporaryDatabase,
) -> None:
    """Whoever listens would wait for the next claim of a row that is gone."""
    await add(database, Volume(), Volume())
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        items = await steps.fetch_once()
        async with database.session_factory.begin() as session:
            await session.execute(delete(Volume).where(Volume.id == items[0].id))
        with heard_events() as heard:
            await release_items(steps.run.context, items)
        assert [event.row_id for event in heard.of(events.ItemReleased)] == [items[1].id]


async def test_what_was_given_back_is_told_though_the_answer_was_lost(
    database: TemporaryDatabase,
) -> None:
    """The second try finds nothing to unlock, and the rows would be neither told nor counted."""
    [row] = await add(database, Volume())
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        items = await steps.fetch_once()
        with faults_of(database.engine) as faults, heard_events() as heard:
            faults.lose_answers_of_commits()
            await release_items(steps.run.context, items)
        assert [event.row_id for event in heard.of(events.ItemReleased)] == [row.id]
        assert counted(steps)["released"] == 1


async def test_many_rows_are_given_back_in_pieces(sqlite_database: TemporaryDatabase) -> None:
    """One statement would grow with the queue, past what the database takes."""
    count = LEASES_PER_STATEMENT_MAX + 1
    await add(sqlite_database, *(Volume() for _ in range(count)))
    async with stepping(
        sqlite_database.session_factory, VolumePipeline(workers_num=count)
    ) as steps:
        items = await steps.fetch_once()
        with faults_of(sqlite_database.engine) as faults:
            await release_items(steps.run.context, items)
        assert faults.count(lambda statement: statement.startswith("UPDATE")) == 2
    assert all(is_free(row) for row in await read_all(sqlite_database, Volume))


@virtual_time
async def test_a_database_that_is_away_leaves_the_rows_to_their_leases(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A shutdown would fail because of what expires by itself."""
    [row] = await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        items = await steps.fetch_once()
        with faults_of(virtual_database.engine) as faults, heard_events() as heard:
            faults.fail(DOWN)
            await release_items(steps.run.context, items)
        assert counted(steps)["released"] == 0
        assert heard.of(events.ItemReleased) == []
        assert (items[0].is_lost, told(caplog, "released")) == (
            False,
            [
                Line(
                    "VolumePipeline: 1 rows were not released and stay leased until they expire",
                    {"pipeline": "VolumePipeline", "rows": 1},
                    repr(DOWN),
                )
            ],
        )
        steps.run.context.queue.close()
        assert not is_free(await read(virtual_database, row))
    await asyncio.sleep(31)
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        assert len(await steps.fetch_once()) == 1


async def test_a_connection_that_died_keeps_no_row_leased(database: TemporaryDatabase) -> None:
    """After an outage that is long over, rows of a replica that stops cleanly would wait for the
    end of their leases.
    """
    [row] = await add(database, Volume())
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        items = await steps.fetch_once()
        first = iter((True,))
        with faults_of(database.engine) as faults:
            faults.fail(ConnectionResetError("gone"), when=lambda _statement: next(first, False))
            await release_items(steps.run.context, items)
        assert counted(steps)["released"] == 1
    assert is_free(await read(database, row))


@virtual_time
async def test_a_release_that_took_all_its_time_is_not_tried_again(
    virtual_database: TemporaryDatabase,
) -> None:
    """A shutdown would wait twice for a database that is away."""
    await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        items = await steps.fetch_once()
        began_at = now()
        with faults_of(virtual_database.engine) as faults:
            faults.hang()
            await release_items(steps.run.context, items)
        assert now() - began_at == pytest.approx(10, abs=1)
        steps.run.context.queue.close()


# ---------------------------------------------------------------- related rows


async def test_related_rows_go_back_with_the_main_row(database: TemporaryDatabase) -> None:
    """Children of an item that was interrupted would stay locked for a lease, though their
    parent is free.
    """
    async with at_work(database, GatheringPipeline()) as (steps, _):
        [item] = steps.queued
        await item.lock_related(Attachment, Attachment.volume_id == item.id)
        await release_items(steps.run.context, [item])
        assert counted(steps)["released"] == 1
        assert await locks_of(database) == {}


async def test_related_rows_of_a_lost_item_are_freed_alone(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A database that is away would kill whoever frees them; or the main row, which is
    another's, be freed with them.
    """
    async with at_work(database, GatheringPipeline()) as (steps, _):
        [item] = steps.queued
        await item.lock_related(Attachment, Attachment.volume_id == item.id)
        with faults_of(database.engine) as faults:
            faults.fail(DOWN)
            await release_related_of(steps.run.context, item)
        assert [row.lock_token for row in await attachments_of(database)] == [
            item.lock_token
        ] * ATTACHMENTS
        await release_related_of(steps.run.context, item)
        assert set(await locks_of(database)) == {"Volume "}
    pipeline = "GatheringPipeline"
    text = (
        f"{pipeline}: related rows of row {item.id} were not freed and stay leased until they"
        " expire"
    )
    extra = {"pipeline": pipeline, "row_id": item.id, "rows": ATTACHMENTS}
    assert told(caplog, "related rows") == [Line(text, extra, repr(DOWN))]


@virtual_time
async def test_a_database_that_hangs_is_given_up_and_the_log_says_at_what(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A shutdown would wait for ever for a connection into a black hole, and nobody know what it
    was about.
    """
    async with at_work(virtual_database, GatheringPipeline(database_timeout=4)) as (steps, _):
        [item] = steps.queued
        await item.lock_related(Attachment, Attachment.volume_id == item.id)
        began_at = now()
        with faults_of(virtual_database.engine) as faults:
            faults.hang()
            await release_related_of(steps.run.context, item)
            await release_items(steps.run.context, [item])
        assert now() == pytest.approx(began_at + 8, abs=0.1)
    related, main = told(caplog, "were not")
    assert "the transaction to free related rows did not end within 4 s" in str(related.error)
    assert "the transaction to release rows did not end within 4 s" in str(main.error)
