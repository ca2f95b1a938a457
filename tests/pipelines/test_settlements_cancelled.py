"""Tests of settlements whose task somebody cancels: what became of a row is written, and told,
all the same.
"""

from __future__ import annotations

import asyncio
from asyncio import TaskGroup
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.util import await_only

from rowlock import Apply, Outcome, PipelineItem, PipelineManager, events
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Volume, VolumePipeline, heard_events
from .related_scenes import GatheringPipeline
from .scenes import add, counted, is_outcome, read, turns, until
from .told import told


async def nothing(*_: Any) -> None:
    """Write nothing besides."""


async def answer(_item: PipelineItem[Any]) -> Outcome:
    """Be written in a task of its own."""
    return Apply({"status": "active"}, also=nothing)


def settlements() -> list[asyncio.Task[Any]]:
    """Return the tasks that settle outcomes."""
    return [task for task in asyncio.all_tasks() if task.get_name() == "rowlock: settle an outcome"]


@virtual_time
async def test_a_cancelled_settlement_is_carried_out_and_told(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A finished result would be dropped without a word, or be written and neither be counted
    nor told.
    """
    struck = 0
    for turn in range(30):
        [row] = await add(virtual_database, Volume())
        pipeline = VolumePipeline(answer=answer, workers_num=1)
        with heard_events() as heard:
            async with PipelineManager(virtual_database.session_factory, [pipeline]):
                while not settlements():  # noqa: ASYNC110 - each turn of the loop counts
                    await asyncio.sleep(0)
                for _ in range(turn):
                    await asyncio.sleep(0)
                for task in settlements():
                    struck += task.cancel("meant for somebody else")
                await until(lambda heard=heard: heard.of(events.ItemApplied))
                counters = pipeline.statistics().counters
        assert (await read(virtual_database, row)).status == "active"
        assert (counters["claimed"], counters["applied"], counters["stale"]) == (1, 1, 0)
        assert (len(heard.of(events.ItemApplied)), pipeline.stale) == (1, [])
    assert struck > 10
    assert {line.extra["purpose"] for line in told(caplog, "cancelled from outside")} == {
        "settle an outcome"
    }


async def test_a_cancelled_settlement_is_in_its_batch_once(database: TemporaryDatabase) -> None:
    """An outcome whose settlement is cancelled while it waits for its batch is not in that batch
    twice: it would be counted as two.
    """
    is_held, may_go, may_end = asyncio.Event(), asyncio.Event(), [asyncio.Event(), asyncio.Event()]

    def on_execute(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if is_outcome(statement):
            is_held.set()
            await_only(may_go.wait())

    async def then(item: PipelineItem[Any], _rows: list[Any]) -> Outcome:
        await may_end[items.index(item)].wait()
        return Apply({"status": "active"})

    await add(database, Volume(), Volume())
    # An item that has asked for related rows, of which there are none, is settled in a task.
    pipeline = GatheringPipeline(then=then)
    with heard_events() as heard:
        async with stepping(database.session_factory, pipeline) as steps, TaskGroup() as group:
            items = await steps.fetch_once()
            event.listen(database.engine.sync_engine, "before_cursor_execute", on_execute)
            for worker in steps.run.workers[:2]:
                item = steps.run.context.queue.get()
                assert item is not None
                group.create_task(worker.work(item))
            waiting = steps.run.settler._writer._batcher._waiting
            await until(lambda: len(pipeline.locked) == 2)
            may_end[0].set()
            await is_held.wait()
            may_end[1].set()
            await until(lambda: len(waiting) == 1)
            for task in settlements():
                task.cancel("meant for somebody else")
            await turns()
            may_go.set()
            await steps.run.settler.wait_until_idle()
            assert (counted(steps)["applied"], counted(steps)["stale"]) == (2, 0)
    batches = [told.lock_tokens for told in heard.of(events.OutcomesWritten)]
    assert [tokens for tokens in batches if len(set(tokens)) < len(tokens)] == []
