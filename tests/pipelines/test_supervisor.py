"""Loops that die are replaced; loops that are to end do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rowlock import Apply, PipelineHinter, PipelineItem, events
from rowlock.clock import JITTER
from rowlock.tasks import RESTART_DELAY_S, Supervisor
from rowlock.testing import TemporaryDatabase, run_virtual, virtual_time

from ..host import Volume, VolumePipeline, heard_events
from .scenes import add, read_all, turns, until
from .told import Line, told


class Mortal:
    """A loop that dies of each of its deaths in turn, then lives until told to end."""

    def __init__(self, *deaths: BaseException) -> None:
        self.deaths = list(deaths)
        self.lives = 0
        self.end = asyncio.Event()

    async def run(self) -> None:
        self.lives += 1
        await asyncio.sleep(0)
        if self.deaths:
            raise self.deaths.pop(0)
        await self.end.wait()


@virtual_time
async def test_a_dead_loop_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """A pipeline would go on without its fetcher or heartbeater, and nobody would know."""
    mortal = Mortal(RuntimeError("boom"), asyncio.CancelledError(), MemoryError())
    supervisor = Supervisor("Test")
    with heard_events() as heard:
        supervisor.keep("loop", mortal.run)
        await until(lambda: mortal.lives == 4)
    assert supervisor.alive() == {"loop": True}
    assert supervisor.restarts == 3
    why = ["RuntimeError: boom", "cancelled from outside", "MemoryError"]
    assert [event.error for event in heard.of(events.LoopReplaced)] == why
    assert told(caplog, "died") == [
        Line(
            f"Test: the loop died and is replaced: {text}",
            {"pipeline": "Test", "loop": "loop", "error": text},
            error,
        )
        for text, error in zip(why, ["RuntimeError('boom')", None, "MemoryError()"], strict=True)
    ]
    mortal.end.set()
    assert await supervisor.wait("loop", timeout_s=1)


@virtual_time
async def test_replacing_backs_off() -> None:
    """A loop that dies at once would spin."""
    mortal = Mortal(*(RuntimeError() for _ in range(1000)))
    supervisor = Supervisor("Test")
    supervisor.keep("loop", mortal.run)
    await asyncio.sleep(RESTART_DELAY_S * (1 + JITTER))
    assert mortal.lives == 2, "the first rest is short"
    await asyncio.sleep(60)
    await supervisor.stop()
    assert 10 <= mortal.lives <= 30


@virtual_time
async def test_a_loop_that_returns_is_not_replaced() -> None:
    """A worker whose queue was closed would be started again."""
    mortal = Mortal()
    supervisor = Supervisor("Test")
    supervisor.keep("loop", mortal.run)
    await turns()
    mortal.end.set()
    assert await supervisor.wait("loop", timeout_s=1)
    assert mortal.lives == 1


@virtual_time
async def test_stopping_ends_what_still_runs() -> None:
    """A loop would outlive its pipeline."""
    mortal = Mortal()
    supervisor = Supervisor("Test")
    supervisor.keep("loop", mortal.run)
    await turns()
    assert not await supervisor.wait("loop", timeout_s=1)
    await supervisor.stop()
    assert supervisor.alive() == {"loop": False}


@pytest.mark.parametrize("victim", ["fetcher", "heartbeater", "lease watch"])
@virtual_time
async def test_a_pipeline_survives_a_cancellation_that_was_not_meant_for_it(
    virtual_database: TemporaryDatabase, victim: str
) -> None:
    """A host that cancels a task too many would silence a pipeline."""
    await add(virtual_database, Volume())
    pipeline = VolumePipeline(workers_num=1)
    pipeline.start(virtual_database.session_factory, PipelineHinter())
    await until(lambda: len(pipeline.items) == 1)
    (task,) = [
        task
        for task in asyncio.all_tasks()
        if task.get_name() == f"rowlock: VolumePipeline {victim}"
    ]
    task.cancel()
    await until(
        lambda: pipeline.health().healthy and pipeline.statistics().counters["loops_replaced"] == 1
    )
    await add(virtual_database, Volume())
    pipeline.hint()
    await until(lambda: len(pipeline.items) == 2)
    await pipeline.run.drain(5)
    assert all(row.status == "active" for row in await read_all(virtual_database, Volume))


def test_a_loop_that_shuts_down_ends_everything(tmp_path) -> None:  # noqa: ANN001
    """``asyncio.run`` would hang for ever in its clean-up: replaced as fast as cancelled."""

    async def main() -> None:
        supervisor = Supervisor("Test")
        supervisor.keep("loop", Mortal().run)
        await turns()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await turns(50)
        assert supervisor.alive() == {"loop": False}

    run_virtual(main)


def loop_of(name: str) -> asyncio.Task[Any]:
    [task] = [task for task in asyncio.all_tasks() if task.get_name() == f"rowlock: {name}"]
    return task


@virtual_time
async def test_a_loop_that_is_cancelled_alone_is_replaced() -> None:
    """A host that cancels a task too many would silence a loop for good; and if it waits for
    that task, it would hang.
    """
    mortals, supervisor = {"one": Mortal(), "other": Mortal()}, Supervisor("Test")
    with heard_events() as heard:
        for name, mortal in mortals.items():
            supervisor.keep(name, mortal.run)
        await turns()
        cancelled = loop_of("Test one")
        cancelled.cancel()
        await asyncio.wait({cancelled}, timeout=1)
        assert cancelled.cancelled()
        await until(lambda: mortals["one"].lives == 2)
    assert not supervisor.is_ending
    assert supervisor.alive() == {"one": True, "other": True}
    assert heard.of(events.LoopReplaced) == [
        events.LoopReplaced("Test", "one", "cancelled from outside")
    ]
    assert (supervisor.restarts, mortals["other"].lives) == (1, 1)
    await supervisor.stop()
    assert supervisor.alive() == {"one": False, "other": False}
    assert supervisor.restarts == 1, "what is stopped is not replaced"


@virtual_time
async def test_a_loop_that_is_cancelled_alone_is_not_the_end(
    virtual_database: TemporaryDatabase,
) -> None:
    """Rows would be claimed and their leases renewed, and none begun any more, as long as the
    process lives.
    """
    rows = await add(virtual_database, *(Volume() for _ in range(4)))

    async def answer(_item: PipelineItem[Any]) -> Apply:
        if len(pipeline.items) == 1:
            loop_of("VolumePipeline lease watch").cancel()
            await turns(1)
            raise asyncio.CancelledError
        return Apply({"status": "active"})

    pipeline = VolumePipeline(answer=answer, workers_num=1)
    pipeline.start(virtual_database.session_factory, PipelineHinter())
    await until(lambda: pipeline.statistics().counters["applied"] == len(rows))
    assert pipeline.health().healthy
    await pipeline.run.drain(5)
