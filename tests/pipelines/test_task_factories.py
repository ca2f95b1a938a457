"""Hosts that make tasks themselves: factories of an older kind, and such as refuse or cancel
what they are asked for.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, ClassVar

import pytest

from rowlock import Apply, Outcome, PipelineItem, PipelineManager, Worker
from rowlock.pipelines.fetcher import WAITS_S_MAX
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline
from .scenes import add, change, hang, is_free, read_all, turns, until

HELD_BACK = "release what was not started"
SEEN: ContextVar[str] = ContextVar("SEEN", default="nothing")


def refuse_once(purpose: str) -> list[str]:
    """Have the loop refuse the first task in the background that has this purpose; gives what
    was refused.
    """
    refused: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        is_background = work.__qualname__ == "BackgroundTasks._contained"
        if is_background and not refused and work.cr_frame.f_locals["purpose"] == purpose:
            refused.append(purpose)
            raise MemoryError
        return asyncio.Task(work, loop=loop, **more)

    asyncio.get_running_loop().set_task_factory(factory)
    return refused


@virtual_time
async def test_a_task_factory_may_know_no_context(virtual_database: TemporaryDatabase) -> None:
    """Under a task factory of before Python 3.11 no row would ever be begun, or each see no
    variables of the host's.
    """
    seen: list[str] = []
    rows = await add(virtual_database, *(Volume() for _ in range(3)))

    def answer(_item: PipelineItem[Any]) -> Outcome:
        seen.append(SEEN.get())
        SEEN.set("a row's")
        return Apply({"status": "active"})

    def factory(loop: asyncio.AbstractEventLoop, work: Any) -> asyncio.Task[Any]:
        return asyncio.Task(work, loop=loop)

    SEEN.set("the host's")
    asyncio.get_running_loop().set_task_factory(factory)  # type: ignore[arg-type]
    async with PipelineManager(
        virtual_database.session_factory, [VolumePipeline(answer=answer, workers_num=1)]
    ):
        await until(lambda: len(seen) == len(rows))
    assert seen == ["the host's"] * 3


@virtual_time
async def test_what_cannot_be_settled_is_left_to_its_lease(
    virtual_database: TemporaryDatabase,
) -> None:
    """A row whose outcome was not written, and that nobody goes on with, would be renewed for
    ever, and keep its place.
    """
    [row] = await add(virtual_database, Volume())
    refused: list[Any] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        if pipeline.items and not refused and work.__qualname__ == "BackgroundTasks._contained":
            refused.append(work)
            raise MemoryError
        return asyncio.Task(work, loop=loop, **more)

    async def answer(item: PipelineItem[Any]) -> Outcome:
        await change(virtual_database, row, lock_token=None, status="changed")
        return Apply({"status": "active"})

    pipeline = VolumePipeline(answer=answer, workers_num=1)
    asyncio.get_running_loop().set_task_factory(factory)
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        await until(lambda: refused)
        await until(lambda: len(pipeline.run.settler) == 0)
        assert pipeline.statistics().tracked == 0


@virtual_time
async def test_what_is_left_behind_is_noted_though_its_settlement_is_cancelled(
    virtual_database: TemporaryDatabase,
) -> None:
    """An attempt that ignores its cancellation would count as running for ever, or not as
    abandoned at all.
    """
    await add(virtual_database, Volume())
    let_go, settlements = asyncio.Event(), list[asyncio.Task[Any]]()

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **more)
        if pipeline.items and work.__qualname__ == "BackgroundTasks._contained" and not settlements:
            settlements.append(task)
            task.cancel()
        return task

    async def answer(_item: PipelineItem[Any]) -> Outcome:
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()
        return Apply({"status": "active"})

    pipeline = VolumePipeline(answer=answer, workers_num=1, process_timeout=20)
    asyncio.get_running_loop().set_task_factory(factory)
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        await until(lambda: settlements)
        await turns()
        assert (pipeline.statistics().running, pipeline.health().abandoned) == (0, 1)
        let_go.set()
        await until(lambda: pipeline.health().abandoned == 0)


@pytest.mark.parametrize("begins", ["shutdown", "drain"])
def test_rows_that_were_not_started_are_released_though_a_task_is_refused(
    virtual_database: TemporaryDatabase, begins: str
) -> None:
    """They would stay leased behind a clean shutdown until their leases expire; or the drain
    would fail half-way.
    """

    @virtual_time
    async def play() -> None:
        await add(virtual_database, *(Volume() for _ in range(3)))
        pipeline = VolumePipeline(answer=hang, workers_num=1)
        manager = PipelineManager(virtual_database.session_factory, [pipeline])
        manager.start()
        await until(lambda: pipeline.items and pipeline.statistics().queued)
        refused = refuse_once(HELD_BACK)
        if begins == "shutdown":
            manager.shutdown()
            await turns()
        await manager.drain(0)
        assert refused == [HELD_BACK]
        assert all(is_free(row) for row in await read_all(virtual_database, Volume))
        assert pipeline.statistics().tracked == 0

    play()


@virtual_time
async def test_rows_that_wait_too_long_stay_queued_if_a_task_is_refused(
    virtual_database: TemporaryDatabase,
) -> None:
    """They would be leased to nobody: neither queued, nor renewed, nor released."""
    await add(virtual_database, *(Run(id=number) for number in range(40)))
    pipeline = RunPipeline(answer=hang, workers_num=1)
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        queue = pipeline.run.context.queue
        assert queue.ahead is not None
        queue.ahead.size, queue.capacity, queue.ahead.capacity = 1, 30, 30
        await until(lambda: len(queue) > 1)
        queued = len(queue)
        refused = refuse_once("release what was claimed ahead")
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        await asyncio.sleep(2 * WAITS_S_MAX)
        assert refused
        assert (len(queue), pipeline.statistics().tracked) == (queued, queued + 1)


class Musing(Worker[Any]):
    """Waits for something first that nobody else knows of."""

    async def work(self, item: PipelineItem[Any]) -> None:
        """Wait until the collector has been here."""
        waiting = asyncio.get_running_loop().create_future()
        Musing.known.append(weakref.ref(waiting))
        await waiting
        await super().work(item)

    known: ClassVar[list[Any]] = []


class MusingPipeline(VolumePipeline):
    """Has such workers."""

    worker_class = Musing


@virtual_time
async def test_work_that_nobody_else_has_is_not_collected(
    virtual_database: TemporaryDatabase,
) -> None:
    """The row would stay leased, and its worker busy with it, for ever: the loop keeps no task
    that waits.
    """
    Musing.known.clear()
    await add(virtual_database, Volume())
    pipeline = MusingPipeline(workers_num=1)
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        await until(lambda: Musing.known)
        gc.collect()
        waiting = Musing.known[0]()
        assert waiting is not None
        waiting.set_result(None)
        del waiting
        await until(lambda: pipeline.statistics().counters["applied"] == 1)
