"""The story that the wing was built for: three workers of one task each, a ceiling of fifteen."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import pytest

from rowlock import AdmissionRejected, PipelineManager
from rowlock.clock import JITTER
from rowlock.dispatch import COMPLETED, PENDING, RUNNING, DispatchPipeline
from rowlock.testing import TemporaryDatabase, virtual_time

from ..lengths import at_length
from .renders import Fleet, Render, Scenes, add, all_renders, now_of, settled, submit

CEILING = 15
KEYS = [f"scene-{number:02}" for number in range(CEILING)]


@virtual_time
async def test_a_flood_is_shed_and_what_was_admitted_is_done(
    virtual_database: TemporaryDatabase,
) -> None:
    """A flood would be taken whole, or what was taken would be lost, fail, or run all at once."""
    fleet = Fleet()
    renders = DispatchPipeline(Render, handler=Scenes(takes_s=20), engine=fleet, max_active=CEILING)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, *KEYS)
        with pytest.raises(AdmissionRejected) as refusal:
            await submit(virtual_database, renders, "one-too-many")
        assert (refusal.value.active, refusal.value.ceiling) == (CEILING, CEILING)
        assert 120 <= refusal.value.retry_after <= 150
        again = await submit(virtual_database, renders, *KEYS[:3])
        assert [fresh for _, fresh in again] == [False] * 3
        # Nobody is there: they wait, through more than one interval.
        await asyncio.sleep(300)
        rows = await all_renders(virtual_database)
        assert {row.status for row in rows} == {PENDING}
        assert all(row.attempts >= 2 and row.started_at is None for row in rows)
        fleet.hire(3)
        await asyncio.sleep(10)
        assert [row.status for row in await all_renders(virtual_database)].count(RUNNING) == 3
        rows = await settled(virtual_database)
    assert [(row.dedup_key, row.status, row.error) for row in rows] == [
        (key, COMPLETED, None) for key in KEYS
    ]
    assert fleet.running_max == 3
    assert set(fleet.begun.values()) == {1}


@virtual_time
async def test_a_row_that_comes_to_rest_beside_an_idle_worker_is_brought_forward(
    virtual_database: TemporaryDatabase,
) -> None:
    """A worker would stay idle beside a row that rests, since the rows before it had used two
    places each.
    """
    fleet = Fleet()
    renders = DispatchPipeline(Render, handler=Scenes(takes_s=60), engine=fleet)
    looks_within_s = renders.settings.fetch_delays_s[-1] * (1 + JITTER) + 1
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, *KEYS[:2])
        await asyncio.sleep(looks_within_s)
        assert [row.status for row in await all_renders(virtual_database)] == [PENDING] * 2
        fleet.hire(3)
        await asyncio.sleep(looks_within_s)
        assert fleet.running == 2
        # Refused by another replica, whose own workers are busy.
        rests_until = await now_of(virtual_database) + renders.dispatch.retry_interval
        refused = {"due_at": rests_until, "last_error": "capacity: none of 3 workers accepted"}
        await add(virtual_database, Render(dedup_key="late", scene="late", **refused))
        await asyncio.sleep(looks_within_s)
        assert fleet.running == 3
        await settled(virtual_database)


@pytest.mark.at_length
@pytest.mark.parametrize("are_late", at_length([True], [False, True]))
@virtual_time
async def test_a_hundred_workers_that_come_together_all_find_work(
    virtual_database: TemporaryDatabase, are_late: bool
) -> None:
    """Those beyond what one fetch brings would stay idle beside rows that rest, until an attempt
    of another one has ended.
    """
    fleet = Fleet(0 if are_late else 100)
    renders = DispatchPipeline(
        Render,
        handler=Scenes(takes_s=600),
        engine=fleet,
        workers_num=200,
        retry_interval=timedelta(hours=1),
    )
    rests_until = await now_of(virtual_database) + renders.dispatch.retry_interval
    refused = {"due_at": rests_until, "last_error": "capacity: none of 3 workers accepted"}
    await add(
        virtual_database, *(Render(dedup_key=f"{number:03}", **refused) for number in range(130))
    )
    looks_within_s = renders.settings.fetch_delays_s[-1] * (1 + JITTER) + 1
    async with PipelineManager(virtual_database.session_factory, [renders]):
        if are_late:
            await asyncio.sleep(looks_within_s)
            assert fleet.running == 0
            fleet.hire(100)
        await asyncio.sleep(3 * looks_within_s)
        assert fleet.running == 100
        rows = await all_renders(virtual_database)
        assert [row.due_at for row in rows if row.status == PENDING] == [rests_until] * 30, (
            "no more than there are places"
        )


@virtual_time
async def test_orphans_from_before_the_start_are_done(virtual_database: TemporaryDatabase) -> None:
    """What a replica left when it died would wait for somebody to ask for it again."""
    now = await now_of(virtual_database)
    dead = {"lock_token": uuid.uuid4(), "lock_owner": "DispatchRender"}
    expired, live = now - timedelta(seconds=1), now + timedelta(seconds=25)
    await add(
        virtual_database,
        Render(
            dedup_key="held",
            scene="held",
            status=RUNNING,
            lock_expires_at=live,
            stages={"raw": 1},
            **dead,
        ),
        Render(
            dedup_key="orphan",
            scene="orphan",
            status=RUNNING,
            lock_expires_at=expired,
            stages={"raw": 1},
            **dead,
        ),
        Render(dedup_key="fresh", scene="fresh"),
    )
    fleet = Fleet(2)
    renders = DispatchPipeline(Render, handler=Scenes(), engine=fleet)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await asyncio.sleep(10)
        assert fleet.begun == {"orphan": 1, "fresh": 1}
        rows = await settled(virtual_database)
    assert {row.status for row in rows} == {COMPLETED}
    assert all(task.is_done("raw") for task in fleet.tasks if task.row.scene != "fresh")
