"""Tests of settlements whose task somebody cancels: what became of a row is written, and told,
all the same.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rowlock import Apply, Outcome, PipelineItem, PipelineManager, events
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Volume, VolumePipeline, heard_events
from .scenes import add, read, until
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
