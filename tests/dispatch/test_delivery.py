"""Tests of one attempt: each way it can go leaves the row as the transitions say, once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from rowlock import PipelineManager
from rowlock.dispatch import (
    COMPLETED,
    FAILED,
    PENDING,
    RUNNING,
    AttemptEvent,
    Completed,
    Progress,
    StageDone,
    Task,
    WorkerGone,
)
from rowlock.testing import TemporaryDatabase, virtual_time

from .renders import (
    Fleet,
    Render,
    Scenes,
    add,
    all_renders,
    now_of,
    one_render,
    pipeline_of,
    settled,
    submit,
)

# ---------------------------------------------------------------- accepted


@virtual_time
async def test_it_runs_from_the_moment_a_worker_accepts(
    virtual_database: TemporaryDatabase,
) -> None:
    """A long download would leave the row pending, and it would be offered a second time
    meanwhile.
    """
    fleet = Fleet(1)
    async with PipelineManager(
        virtual_database.session_factory, [pipeline_of(fleet, Scenes(600))]
    ) as manager:
        del manager
        await add(virtual_database, Render(dedup_key="a"))
        await asyncio.sleep(10)
        row = await one_render(virtual_database)
        assert (row.status, row.worker) == (RUNNING, "worker-1")
        assert row.started_at is not None
        assert row.started_at - row.submitted_at < timedelta(seconds=6)
        [done] = await settled(virtual_database)
    assert (done.status, done.url, done.error) == (COMPLETED, "https://pictures/", None)
    assert done.finished_at is not None
    assert done.finished_at - row.started_at == pytest.approx(
        timedelta(seconds=600), abs=timedelta(seconds=1)
    )
    assert fleet.begun == {"a": 1}


@virtual_time
async def test_stages_are_recorded_at_once_and_skipped_later(
    virtual_database: TemporaryDatabase,
) -> None:
    """What took hours would be done again after every crash."""
    scenes, fleet = Scenes(), Fleet(1)

    async def dies_once(task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        if not task.is_done("raw"):
            yield StageDone("raw", {"file": "raw-1"})
            recorded.append((await one_render(virtual_database)).stages)
            raise WorkerGone("worker-1", "killed")
        yield StageDone("tiles", 2)
        yield Completed({"report": dict(task.stages)})

    recorded: list[object] = []
    scenes.answers["a"] = dies_once
    renders = pipeline_of(fleet, scenes)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        [row] = await settled(virtual_database)
    assert recorded == [{"raw": {"file": "raw-1"}}]
    assert (row.status, row.report, row.losses) == (COMPLETED, {"raw": {"file": "raw-1"}}, 1)
    assert row.stages == {"raw": {"file": "raw-1"}, "tiles": 2}


@virtual_time
async def test_progress_is_shown_and_not_written_for_every_word(
    virtual_database: TemporaryDatabase,
) -> None:
    """A handler that tells of every frame would write to the database all the time."""
    scenes, fleet = Scenes(), Fleet(1)

    async def talks(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        for percent in range(100):
            yield Progress(f"{percent} % of /srv/renders/secret/out.png" + "." * 300)
            await asyncio.sleep(0.1)
        yield Completed()

    scenes.answers["a"] = talks
    renders = pipeline_of(fleet, scenes)
    seen: set[str | None] = set()
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        for _ in range(110):
            await asyncio.sleep(0.1)
            seen.add((await one_render(virtual_database)).progress)
    texts = {text for text in seen if text}
    assert 8 <= len(texts) <= 11
    assert all(len(text) == 256 and "/" not in text for text in texts)


# ---------------------------------------------------------------- not accepted


@virtual_time
async def test_an_overflow_rests_for_the_interval_and_some(
    virtual_database: TemporaryDatabase,
) -> None:
    """Rows would be offered all the time to workers that are not there, all at the same moment."""
    renders = pipeline_of(Fleet(0), retry_interval=120)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, *"abcdefgh")
        await asyncio.sleep(2)
        rows = await all_renders(virtual_database)
    rests = [(row.due_at - row.submitted_at).total_seconds() for row in rows]
    assert all(120 <= rest <= 152 for rest in rests)
    assert max(rests) - min(rests) > 5
    assert {(row.status, row.attempts, row.last_error) for row in rows} == {
        (PENDING, 1, "capacity: there is no worker")
    }


@virtual_time
async def test_the_deadline_counts_from_the_submission(virtual_database: TemporaryDatabase) -> None:
    """A row that nobody takes would wait for ever, or be begun long after anybody wants it."""
    fleet = Fleet(0)
    renders = pipeline_of(fleet, dispatch_deadline=600)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        [row] = await settled(virtual_database)
    assert row.status == FAILED
    assert row.error == "capacity: no worker has done it within 600 s after its submission"
    assert row.finished_at is not None
    assert (
        timedelta(seconds=600) <= row.finished_at - row.submitted_at <= timedelta(seconds=600 + 160)
    )


@virtual_time
async def test_recovery_does_not_reset_the_deadline(virtual_database: TemporaryDatabase) -> None:
    """A row that kills its workers would be tried for ever."""
    now, fleet = await now_of(virtual_database), Fleet(1)
    lease = {
        "lock_token": uuid.uuid4(),
        "lock_owner": "DispatchRender",
        "lock_expires_at": now - timedelta(seconds=1),
    }
    late = Render(dedup_key="a", status=RUNNING, submitted_at=now - timedelta(seconds=601), **lease)
    await add(virtual_database, late)
    async with PipelineManager(
        virtual_database.session_factory, [pipeline_of(fleet, dispatch_deadline=600)]
    ):
        [row] = await settled(virtual_database)
    assert (row.status, fleet.tasks) == (FAILED, [])
    assert (row.error or "").startswith("capacity: ")


# ---------------------------------------------------------------- lost


@virtual_time
async def test_workers_that_die_cost_attempts_up_to_a_limit(
    virtual_database: TemporaryDatabase,
) -> None:
    """One row that kills its worker would kill them all, one after the other."""
    scenes, fleet = Scenes(), Fleet(1)

    async def kills(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("so far so good")
        raise WorkerGone("worker-1", "killed by signal 9")

    scenes.answers["a"] = kills
    renders = pipeline_of(fleet, scenes, max_losses=3)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        [row] = await settled(virtual_database)
    assert (row.status, fleet.begun["a"]) == (FAILED, 3)
    assert row.error == "heartbeat lost: 3 attempts were lost; the last one: killed by signal 9"


# ---------------------------------------------------------------- done, or not to be done
