"""Long work that is asked to stop: a shutdown asks first, and cancels when the grace is over."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rowlock import Apply, Outcome, PipelineItem, PipelineManager, events
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import HANG_S_MAX, Run, RunPipeline, heard_events
from .scenes import add, counted, is_free, now, read

pytestmark = pytest.mark.either_database


async def until_stopped(item: PipelineItem[Any]) -> Outcome:
    assert not item.stop_requested
    await item.wait_for_stop()
    assert item.stop_requested
    return Apply({"status": "stopped"})


@virtual_time
async def test_work_without_an_end_is_asked_to_stop(virtual_database: TemporaryDatabase) -> None:
    """It would hear of the shutdown by being cancelled when the grace is over, and what it had in
    hand would be done again.
    """
    [row] = await add(virtual_database, Run())
    pipeline = RunPipeline(answer=until_stopped, process_timeout=None)
    with heard_events() as heard:
        manager = PipelineManager(virtual_database.session_factory, [pipeline])
        manager.start()
        await heard.wait_for(events.ItemStarted)
        await asyncio.sleep(1.1 * 3600)
        began = now()
        await manager.drain(30)
        assert now() - began < 30
    after = await read(virtual_database, row)
    assert (after.status, after.attempts, is_free(after)) == ("stopped", 0, True)


@virtual_time
async def test_a_shutdown_asks_before_anybody_waits(virtual_database: TemporaryDatabase) -> None:
    """Between the signal and the drain all the time would pass in which work could end."""
    await add(virtual_database, Run())
    pipeline = RunPipeline(answer=until_stopped)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await heard.wait_for(events.ItemStarted)
            manager.shutdown()
            await heard.wait_for(events.ItemApplied)


async def test_a_thread_sees_that_it_is_to_stop(database: TemporaryDatabase) -> None:
    """Plain functions cannot wait for it, and cannot be cancelled either."""
    [row] = await add(database, Run())
    looked = threading.Event()

    class Threaded(RunPipeline):
        def process(self, item: PipelineItem[Any]) -> Outcome:  # type: ignore[override]
            pause = threading.Event()
            for _ in range(round(HANG_S_MAX / 0.01)):
                if item.stop_requested:
                    return Apply({"status": "stopped"})
                looked.set()
                pause.wait(0.01)
            raise AssertionError("never asked to stop")

    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [Threaded()]) as manager:
            await heard.wait_for(events.ItemStarted)
            await asyncio.to_thread(looked.wait, HANG_S_MAX)
            manager.shutdown()
            await heard.wait_for(events.ItemApplied)
    assert (await read(database, row)).status == "stopped"


@virtual_time
async def test_who_ignores_it_is_cancelled_when_the_grace_is_over(
    virtual_database: TemporaryDatabase,
) -> None:
    """A shutdown would wait for ever for work without a limit."""
    [row] = await add(virtual_database, Run())

    async def answer(_item: PipelineItem[Any]) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError

    pipeline = RunPipeline(answer=answer, process_timeout=None)
    with heard_events() as heard:
        manager = PipelineManager(virtual_database.session_factory, [pipeline])
        manager.start()
        await heard.wait_for(events.ItemStarted)
        began = now()
        await manager.drain(30)
        assert now() - began == pytest.approx(30, abs=1)
    after = await read(virtual_database, row)
    assert (after.attempts, is_free(after)) == (0, True)


@virtual_time
async def test_cleaning_up_has_a_limit_though_work_has_none(
    virtual_database: TemporaryDatabase,
) -> None:
    """`on_stale` that hangs would keep its place until the process ends."""
    [row] = await add(virtual_database, Run())
    ended: list[float] = []

    class Stale(RunPipeline):
        async def on_stale(self, item: Any, outcome: Outcome) -> None:  # type: ignore[override]
            began = now()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(now() - began)

    async def answer(item: PipelineItem[Any]) -> Outcome:
        from .scenes import change  # noqa: PLC0415

        await change(virtual_database, row, lock_token=None)
        return Apply({"status": "done"})

    pipeline = Stale(answer=answer, process_timeout=None)
    async with stepping(virtual_database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
        await asyncio.sleep(7200)
        assert counted(steps)["stale"] == 1
    assert ended == [3600]
