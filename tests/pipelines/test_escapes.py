"""Tests of what escapes where an item is in hand: the row is free in the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rowlock import PipelineItem, PipelineManager, Worker, events
from rowlock.pipelines.attempt import Ended
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Volume, VolumePipeline, heard_events
from .scenes import add, until


class CarelessWorker(Worker[Any]):
    has_lost = False

    async def work(self, item: PipelineItem[Any]) -> None:
        if not type(self).has_lost:
            type(self).has_lost = True
            raise RuntimeError("a bug of the host's")
        await asyncio.sleep(5)
        await super().work(item)


class CarelessPipeline(VolumePipeline):
    worker_class = CarelessWorker


@virtual_time
async def test_an_item_that_a_worker_of_the_hosts_loses_comes_back(
    virtual_database: TemporaryDatabase,
) -> None:
    """One exception in a method that a host has overridden would keep a row locked as long as
    the process lives.
    """
    CarelessWorker.has_lost = False
    await add(virtual_database, Volume())
    pipeline = CarelessPipeline(workers_num=1)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: heard.of(events.ItemApplied))
            assert pipeline.statistics().counters["strays"] == 0, (
                "it is released at once, and the second time it is in hand all the while"
            )
            assert pipeline.statistics().tracked == 0
    assert heard.of(events.StrayFound) == []


@virtual_time
async def test_a_settlement_that_is_cancelled_before_it_began_has_ended(
    virtual_database: TemporaryDatabase,
) -> None:
    """Its item would stay tracked, and what waits for it wait for ever."""
    await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        await steps.fetch_once()
        item = steps.run.context.queue.get()
        assert item is not None
        steps.run.settler.settle_later(item, Ended.INTERRUPTED)
        assert item in steps.run.settler
        [task] = [t for t in asyncio.all_tasks() if t.get_name() == "rowlock: settle an outcome"]
        task.cancel()
        await asyncio.wait({task})
        await asyncio.sleep(0)
        assert item not in steps.run.settler
        assert steps.run.statistics().tracked == 0


@virtual_time
async def test_an_outcome_that_cannot_be_handed_in_leaves_its_row_to_its_lease(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would count as being settled for ever: its lease be renewed, and a drain wait for it in
    vain.
    """
    await add(virtual_database, Volume())

    def refuse(*_args: object) -> None:
        raise MemoryError

    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        await steps.fetch_once()
        monkeypatch.setattr(steps.run.settler._batcher, "submit_nowait", refuse)
        with pytest.raises(MemoryError):
            await steps.work_once()
        assert (steps.run.statistics().tracked, len(steps.run.settler)) == (0, 0)
        assert steps.run.context.in_progress == set()


async def test_an_outcome_that_cannot_be_recorded_keeps_no_other_from_being_settled(
    sqlite_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of its batch would stay leased for as long as the process lives."""
    await add(sqlite_database, Volume(), Volume())
    pipeline, recorded = VolumePipeline(), list[object]()

    def record(item: Any, *_: object) -> None:
        recorded.append(item)
        raise MemoryError

    async with PipelineManager(sqlite_database.session_factory, [pipeline]):
        monkeypatch.setattr(pipeline.run.settler, "_record", record)
        await until(lambda: len(recorded) == 2 and not pipeline.statistics().tracked)
