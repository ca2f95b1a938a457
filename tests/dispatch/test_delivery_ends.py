"""Tests of attempts that end otherwise than by a result: silence, failure, limits, other hands."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from rowlock import PipelineManager
from rowlock.dispatch import (
    COMPLETED,
    FAILED,
    PENDING,
    RUNNING,
    AttemptEvent,
    Completed,
    DispatchPipeline,
    Failed,
    Progress,
    Task,
    WorkerGone,
)
from rowlock.testing import TemporaryDatabase, virtual_time

from .renders import Fleet, Render, Scenes, all_renders, one_render, pipeline_of, settled, submit


@virtual_time
async def test_a_silent_worker_is_given_up(virtual_database: TemporaryDatabase) -> None:
    """A worker behind a cut line would keep its row until the time limit."""
    scenes, fleet = Scenes(), _Silent(1)
    renders = pipeline_of(fleet, scenes, heartbeat=10)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(45)
        row = await one_render(virtual_database)
        assert (row.losses, fleet.running) == (1, 1)
        assert row.last_error == "heartbeat lost: nothing was heard of it for 30 s"
    assert fleet.running == 0


class _Silent(Fleet):
    beats_itself = True

    async def run(self, worker: str, task: Task[Render]) -> AsyncIterator[AttemptEvent]:  # type: ignore[override]
        self.running += 1
        try:
            await asyncio.sleep(10_000)
            yield Completed()
        finally:
            self.running -= 1


@virtual_time
async def test_a_failure_is_final_and_tells_no_paths(virtual_database: TemporaryDatabase) -> None:
    """Bad input would be worked on again and again, and clients would read about our disks."""
    scenes, fleet = Scenes(), Fleet(1)

    async def refuses(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Failed(
            "input", "no picture in /srv/uploads/7/scene.blend, nor in C:\\data\\scene.blend"
        )

    async def raises(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("x")
        raise FileNotFoundError("/var/lib/renders/cache/tile.bin")

    async def ends(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("x")

    async def gives_junk(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield 7  # type: ignore[misc]

    async def names_a_column_of_ours(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Completed({"status": "pending"})

    async def names_no_column(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Completed({"colour": "red"})

    answers = [refuses, raises, ends, gives_junk, names_a_column_of_ours, names_no_column]
    scenes.answers = {answer.__name__: answer for answer in answers}
    renders = pipeline_of(fleet, scenes)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, *scenes.answers)
        rows = {row.dedup_key: row for row in await settled(virtual_database)}
    assert {row.status for row in rows.values()} == {FAILED}
    assert set(fleet.begun.values()) == {1}
    assert rows["refuses"].error == "input: no picture in scene.blend, nor in scene.blend"
    assert rows["raises"].error == "internal: FileNotFoundError: tile.bin"
    assert rows["ends"].error == "internal: the handler ended without Completed or Failed"
    assert rows["gives_junk"].error == "internal: the handler gave a int, which is no event"
    assert (
        rows["names_a_column_of_ours"].error
        == "internal: status is written by the pipeline; leave it out"
    )
    assert "colour" in (rows["names_no_column"].error or "")


@virtual_time
async def test_the_time_limit_ends_an_attempt(virtual_database: TemporaryDatabase) -> None:
    """A handler that hangs would keep its worker for ever."""
    fleet = Fleet(1)
    renders = pipeline_of(fleet, Scenes(10_000), time_limit=900)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        [row] = await settled(virtual_database)
        assert fleet.running == 0
    assert (row.status, row.error) == (FAILED, "internal: the time limit of 900 s is over")
    assert row.finished_at is not None
    assert row.started_at is not None
    assert row.finished_at - row.started_at == pytest.approx(
        timedelta(seconds=900), abs=timedelta(seconds=1)
    )


@virtual_time
async def test_a_row_that_somebody_else_settled_is_left_alone(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A late result would overwrite what was decided, or come to nothing without a word."""
    caplog.set_level("INFO", "rowlock")
    fleet = Fleet(1)
    # It ends before it would look at its row.
    renders = pipeline_of(fleet, Scenes(8))
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(5)
        async with virtual_database.session_factory.begin() as session:
            await session.execute(
                update(Render).values(status=FAILED, error="input: cancelled by its owner")
            )
        await asyncio.sleep(60)
        row = await one_render(virtual_database)
    assert (row.status, row.error, row.url) == (FAILED, "input: cancelled by its owner", None)
    assert row.lock_token is None
    assert fleet.running == 0
    assert f"of row {row.id} was not written (changed)" in caplog.text


@virtual_time
async def test_a_lost_attempt_does_not_bring_back_what_somebody_settled(
    virtual_database: TemporaryDatabase,
) -> None:
    """A row that was cancelled would be pending again when its worker dies."""
    scenes, fleet = Scenes(), Fleet(1)

    async def dies(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        await asyncio.sleep(8)  # not so long that it would look at its row
        raise WorkerGone("worker-1", "killed")
        yield Completed()

    scenes.answers["a"] = dies
    renders = pipeline_of(fleet, scenes)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(5)
        async with virtual_database.session_factory.begin() as session:
            await session.execute(
                update(Render).values(status=FAILED, error="input: cancelled by its owner")
            )
        await asyncio.sleep(60)
        row = await one_render(virtual_database)
    assert (row.status, row.losses, row.lock_token) == (FAILED, 0, None)


@virtual_time
async def test_each_attempt_has_a_folder_of_its_own_which_is_gone_afterwards(
    virtual_database: TemporaryDatabase, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two attempts would write into each other's files, or the disk would fill."""
    scenes, fleet = Scenes(), Fleet(2)
    root = tmp_path_factory.mktemp("scratch")
    folders: list[Path] = []

    async def writes(task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        folders.append(task.workdir)
        assert list(task.workdir.iterdir()) == []
        (task.workdir / "raw").write_bytes(b"x" * 100)
        yield Progress("x")
        if task.row.scene == "dies" and fleet.begun["dies"] == 1:
            raise WorkerGone("worker-1", "killed")
        if task.row.scene == "fails":
            raise ValueError("no")
        yield Completed()

    scenes.answers = dict.fromkeys(("ok", "dies", "fails"), writes)
    renders = pipeline_of(fleet, scenes, scratch_root=root)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "dies", "ok", "fails")
        await settled(virtual_database)
    assert len(set(folders)) == len(folders) >= 4
    assert os.listdir(root) == []  # noqa: PTH208 - a test may look


@virtual_time
async def test_attempts_have_their_grace(virtual_database: TemporaryDatabase) -> None:
    """Every deployment would throw away what is nearly done."""
    fleet = Fleet(1)
    renders = DispatchPipeline(Render, handler=Scenes(20), engine=fleet)
    manager = PipelineManager(virtual_database.session_factory, [renders])
    manager.start()
    await submit(virtual_database, renders, "a", "b")
    await asyncio.sleep(5)
    await manager.drain(60)
    rows = {row.dedup_key: row for row in await all_renders(virtual_database)}
    assert sorted(row.status for row in rows.values()) == [COMPLETED, PENDING]
    assert fleet.running == 0


@virtual_time
async def test_what_is_not_done_by_then_is_done_elsewhere_at_once(
    virtual_database: TemporaryDatabase,
) -> None:
    """A row would show as running while nobody runs it, and wait for a lease to expire."""
    first, second = Fleet(1), Fleet(1)
    renders = DispatchPipeline(Render, handler=Scenes(600), engine=first)
    manager = PipelineManager(virtual_database.session_factory, [renders])
    manager.start()
    await submit(virtual_database, renders, "a")
    await asyncio.sleep(5)
    assert (await one_render(virtual_database)).status == RUNNING
    await manager.drain(10)
    row = await one_render(virtual_database)
    assert (row.status, row.lock_token, row.losses) == (PENDING, None, 0)
    assert first.running == 0
    heir = DispatchPipeline(Render, handler=Scenes(), engine=second)
    async with PipelineManager(virtual_database.session_factory, [heir]):
        async with asyncio.timeout(15):
            [row] = await settled(virtual_database)
    assert row.status == COMPLETED
