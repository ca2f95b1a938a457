"""Hosts that make tasks themselves: factories of an older kind, and such as refuse or cancel what they are asked for."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, ClassVar

from rowlock import Apply, Outcome, PipelineItem, PipelineManager, Worker
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Volume, VolumePipeline
from .scenes import add, change, turns, until

SEEN: ContextVar[str] = ContextVar("SEEN", default="nothing")


@virtual_time
async def test_a_task_factory_may_know_no_context(virtual_database: TemporaryDatabase) -> None:
    """Under a task factory of before Python 3.11 no row would ever be begun, or each see no variables of the host's."""
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
    async with PipelineManager(virtual_database.session_factory, [VolumePipeline(answer=answer, workers_num=1)]):
        await until(lambda: len(seen) == len(rows))
    assert seen == ["the host's"] * 3


@virtual_time
async def test_what_cannot_be_settled_is_left_to_its_lease(virtual_database: TemporaryDatabase) -> None:
    """A row whose outcome was not written, and that nobody goes on with, would be renewed for ever, and keep its place."""
    [row] = await add(virtual_database, Volume())
    refused: list[Any] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        if pipeline.items and not refused and work.__qualname__ == "PipelineContext._contained":
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
    """An attempt that ignores its cancellation would count as running for ever, or not as abandoned at all."""
    await add(virtual_database, Volume())
    let_go, settlements = asyncio.Event(), list[asyncio.Task[Any]]()

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **more)
        if pipeline.items and work.__qualname__ == "PipelineContext._contained" and not settlements:
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
async def test_work_that_nobody_else_has_is_not_collected(virtual_database: TemporaryDatabase) -> None:
    """The row would stay leased, and its worker busy with it, for ever: the loop keeps no task that waits."""
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
