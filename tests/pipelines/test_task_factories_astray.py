"""Task factories of hosts that put something else into a task, and that refuse one which they
have made.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rowlock import Apply, Outcome, PipelineItem, PipelineManager, Worker
from rowlock.clock import monotonic
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Volume, VolumePipeline
from .scenes import add, until


class OwnWorker(Worker[Any]):
    """A host's own, which does nothing of its own."""

    async def work(self, item: PipelineItem[Any]) -> None:
        """Work as usual."""
        await super().work(item)


class OwnPipeline(VolumePipeline):
    """Has such workers."""

    worker_class = OwnWorker


@pytest.mark.parametrize("kind", [VolumePipeline, OwnPipeline])
@pytest.mark.parametrize("way", ["raises", "returns", "is cancelled"])
def test_work_that_never_begins_is_given_back(
    virtual_database: TemporaryDatabase, kind: Any, way: str
) -> None:
    """A row would stay in hand for ever, its lease be renewed, and its worker be busy, though
    nobody works.
    """
    replaced: list[Any] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        if not replaced and work.__qualname__ in {"Worker._work", "Attempt.run.<locals>.here"}:

            async def instead() -> None:
                work.close()
                if way == "raises":
                    raise RuntimeError("no slot")

            replaced.append(work)
            task = asyncio.Task(work if way == "is cancelled" else instead(), loop=loop, **more)
            if way == "is cancelled":
                task.cancel()
            return task
        return asyncio.Task(work, loop=loop, **more)

    @virtual_time
    async def play() -> None:
        await add(virtual_database, Volume())
        pipeline = kind(workers_num=1)
        asyncio.get_running_loop().set_task_factory(factory)
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await until(
                lambda: (
                    sum(pipeline.statistics().counters[name] for name in ("applied", "retried"))
                    == 1
                )
            )
            assert replaced
            assert pipeline.run.context.in_progress == set()
            await until(lambda: manager.health().healthy)

    play()


@virtual_time
async def test_what_was_begun_though_it_was_refused_is_no_attempt(
    virtual_database: TemporaryDatabase,
) -> None:
    """A worker would be free twice, a drain wait for it in vain, and two work on a row at a
    time.
    """
    await add(virtual_database, Volume())
    refused: list[asyncio.Task[Any]] = []
    running: list[int] = [0, 0]

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **more)
        if not refused and work.__qualname__ == "Worker._work":
            refused.append(task)
            raise MemoryError
        return task

    async def answer(_item: PipelineItem[Any]) -> Outcome:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(1)
        running[0] -= 1
        return Apply({"status": "active"})

    pipeline = VolumePipeline(workers_num=2, answer=answer)
    asyncio.get_running_loop().set_task_factory(factory)
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        await until(lambda: pipeline.statistics().counters["applied"] == 1)
        began_at = monotonic()
    assert refused
    assert running == [0, 1]
    assert monotonic() - began_at < 1
