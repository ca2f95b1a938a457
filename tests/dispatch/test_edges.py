"""Tests of what an attempt starts from and is bounded by: losses, progress, places, time,
stages, names.
"""

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
    RUNNING,
    AttemptEvent,
    Completed,
    Progress,
    StageDone,
    Task,
)
from rowlock.dispatch.columns import WORKER_CHARS_MAX
from rowlock.testing import TemporaryDatabase, virtual_time

from ..pipelines.scenes import until
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

pytestmark = pytest.mark.either_database


@virtual_time
async def test_a_row_with_too_many_losses_is_offered_to_nobody(
    virtual_database: TemporaryDatabase,
) -> None:
    """A row that kills its replica would kill one after the other, up to its deadline: they have
    no time to count it out.
    """
    long_ago = await now_of(virtual_database) - timedelta(minutes=1)
    lease = {
        "lock_token": uuid.uuid4(),
        "lock_owner": "DispatchRender",
        "lock_expires_at": long_ago,
    }
    await add(
        virtual_database,
        Render(dedup_key="a", scene="a", status=RUNNING, started_at=long_ago, losses=2, **lease),
    )
    fleet = Fleet(1)
    async with PipelineManager(virtual_database.session_factory, [pipeline_of(fleet)]):
        [row] = await settled(virtual_database)
    assert (row.status, row.losses, fleet.begun["a"]) == (FAILED, 3, 0)
    assert row.error == "heartbeat lost: 3 attempts died with their worker or replica"


@virtual_time
async def test_an_attempt_begins_without_progress(virtual_database: TemporaryDatabase) -> None:
    """A client would see nine tenths of an attempt that died, while the next one has just begun."""
    await add(virtual_database, Render(dedup_key="a", scene="a", progress="90 %"))
    fleet = Fleet(1)
    async with PipelineManager(virtual_database.session_factory, [pipeline_of(fleet, Scenes(20))]):
        await until(lambda: fleet.running)
        await asyncio.sleep(1)
        row = await one_render(virtual_database)
        assert (row.status, row.progress) == (RUNNING, None)
        await settled(virtual_database)


@virtual_time
async def test_a_worker_that_is_free_is_used_at_once(virtual_database: TemporaryDatabase) -> None:
    """Each worker would idle for a fetch delay between two rows."""
    renders = pipeline_of(Fleet(1), Scenes(1), fetch_delays=(60,))
    await submit(virtual_database, renders, *(f"{number}" for number in range(10)))
    began = asyncio.get_running_loop().time()
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await settled(virtual_database)
    assert asyncio.get_running_loop().time() - began < 30


@virtual_time
async def test_stages_are_bounded(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that records each frame would write a row of megabytes with each of them."""
    monkeypatch.setattr("rowlock.dispatch.delivery.STAGES_MAX", 3)
    scenes = Scenes()

    async def frames(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        for number in range(4):
            yield StageDone(f"frame {number}")
        yield Completed()

    scenes.answers["a"] = frames
    renders = pipeline_of(Fleet(1), scenes)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        [row] = await settled(virtual_database)
    assert (row.status, len(row.stages)) == (FAILED, 3)
    assert "at most 3 stages" in (row.error or "")


async def test_a_worker_may_have_a_long_name(database: TemporaryDatabase) -> None:
    """A cluster that names its workers by path, host and process would have every row refused by
    the database.
    """
    fleet = Fleet()
    name = "w" * (WORKER_CHARS_MAX + 50)
    fleet._active[name] = 0
    scenes = Scenes()

    async def works(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("x")
        yield Completed()

    scenes.answers["a"] = works
    renders = pipeline_of(fleet, scenes)
    async with PipelineManager(database.session_factory, [renders]):
        await submit(database, renders, "a")
        [row] = await settled(database, every_s=0.02)
    assert (row.status, row.worker) == (COMPLETED, f"{name[: WORKER_CHARS_MAX - 1]}…")
    assert len(await all_renders(database)) == 1
