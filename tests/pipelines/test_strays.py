"""Strays: a tracked item has a place in the queue, a worker or a settlement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rowlock import Apply, PipelineItem, PipelineManager, events
from rowlock.testing import Steps, TemporaryDatabase, stepping, virtual_time

from ..host import Volume, VolumePipeline, heard_events
from .scenes import (
    TidyPipeline,
    add,
    counted,
    faults_of,
    hang,
    is_free,
    is_outcome,
    read,
    replica,
    turns,
    until,
)
from .told import told

pytestmark = pytest.mark.either_database


async def settled(steps: Steps[Any]) -> None:
    while steps.run.context.background:
        await steps.run.context.background.wait_for_one()


# ---------------------------------------------------------------- what is a stray, and what is none


async def test_an_item_that_nobody_has_is_given_back(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease would be renewed for ever, and nobody ever work on its row."""
    [row] = await add(database, Volume())
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        await steps.fetch_once()
        item = steps.run.context.queue.get()
        assert item is not None
        with heard_events() as heard:
            await steps.beat_once()
            await settled(steps)
        assert is_free(await read(database, row))
        assert steps.run.statistics().tracked == 0
        assert item.is_lost
        assert (counted(steps)["strays"], counted(steps)["released"]) == (1, 1)
        assert heard.of(events.StrayFound) == [
            events.StrayFound("VolumePipeline", item.id, item.lock_token)
        ]
        async with stepping(replica(database), VolumePipeline()) as others:
            assert [again.id for again in await others.fetch_once()] == [row.id]
    text = f"VolumePipeline: row {row.id} was leased but neither queued, running nor settling"
    [line] = told(caplog, "neither queued")
    assert line.text.startswith(text)
    assert line.extra == {"pipeline": "VolumePipeline", "row_id": row.id}


@virtual_time
async def test_what_is_queued_worked_on_or_settled_is_no_stray(
    virtual_database: TemporaryDatabase,
) -> None:
    """Rows would be released under the hands of those who work on them."""
    await add(virtual_database, *(Volume() for _ in range(3)))
    working, ended = asyncio.Event(), asyncio.Event()

    async def answer(item: PipelineItem[Any]) -> Apply:
        if len(pipeline.items) == 2:
            working.set()
            await ended.wait()
        return Apply({"status": "active"})

    pipeline = VolumePipeline(answer=answer)
    async with stepping(virtual_database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        with faults_of(virtual_database.engine) as faults:
            faults.hang(when=is_outcome)
            first = asyncio.create_task(steps.work_once())
            await until(lambda: faults.count(is_outcome))
            second = asyncio.create_task(steps.work_once())
            await turns(50)
            places = (len(steps.queued), len(steps.run.context.in_progress), len(steps.run.settler))
            assert places == (1, 1, 1)
            for _ in range(3):
                steps.run.release_strays()
                await turns()
            assert counted(steps)["strays"] == 0
            assert steps.run.statistics().tracked == 3
            faults.heal()
            ended.set()
            await asyncio.gather(first, second)
        await steps.work_all()
        assert counted(steps)["applied"] == 3
        assert steps.run.context.in_progress == set()


@virtual_time
async def test_a_drain_gives_strays_back(virtual_database: TemporaryDatabase) -> None:
    """A row would stay leased behind a clean shutdown until its lease expires."""
    [row] = await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        await steps.fetch_once()
        steps.run.context.queue.get()
    assert is_free(await read(virtual_database, row))


@virtual_time
async def test_strays_are_looked_for_on_the_hosts_loop(virtual_database: TemporaryDatabase) -> None:
    """From another thread an item between two places would look like a stray; and renewals would
    wait for a blocked loop.
    """
    [row] = await add(virtual_database, Volume())
    acts: list[Callable[[], None]] = []
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        heartbeater = steps.run.heartbeater
        await steps.fetch_once()
        steps.run.context.queue.get()
        heartbeater._on_host = acts.append  # type: ignore[method-assign,assignment]
        assert [await heartbeater.beat_once(), await heartbeater.beat_once()] == [0, 0]
        assert len(acts) == 1, "one check is enough for a loop that stands still"
        assert counted(steps)["strays"] == 0
        acts.pop()()
        await settled(steps)
        assert is_free(await read(virtual_database, row))
        await heartbeater.beat_once()
        assert acts == [], "nothing is tracked, so nothing wakes the loop"
        await steps.fetch_once()
        await heartbeater.beat_once()
        assert len(acts) == 1, "the next round checks again"


@virtual_time
async def test_what_is_given_back_at_a_drain_is_no_stray(
    virtual_database: TemporaryDatabase,
) -> None:
    """Each shutdown would report bugs that are none."""
    await add(virtual_database, *(Volume() for _ in range(4)))
    pipeline = TidyPipeline(answer=hang, workers_num=2, queue_upper_limit_factor=2)
    with heard_events() as heard:
        manager = PipelineManager(virtual_database.session_factory, [pipeline])
        manager.start()
        await until(lambda: len(pipeline.items) == 2)
        await manager.drain(0)
    assert heard.of(events.StrayFound) == []
    assert len(heard.of(events.ItemReleased)) == 4
