"""Tests of fetches that ask for more rows than there is room for: none of them stays leased."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event

from rowlock import Fetcher, PipelineManager, events
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Volume, VolumePipeline, heard_events
from .scenes import add, is_free, now, read_all, until

pytestmark = pytest.mark.either_database


class GreedyFetcher(Fetcher[Any]):
    """Asks for four times as much as there is room for."""

    async def fetch_once(self, limit: int) -> int:
        return await super().fetch_once(4 * limit)


class GreedyPipeline(VolumePipeline):
    fetcher_class = GreedyFetcher


async def test_no_more_is_claimed_than_there_is_room_for(database: TemporaryDatabase) -> None:
    """A fetcher of the host's that asks for more would leave its rows leased, each time, until
    the lease expires.
    """
    await add(database, *(Volume() for _ in range(10)))
    async with stepping(
        database.session_factory, GreedyPipeline(workers_num=2, queue_upper_limit_factor=1)
    ) as steps:
        items = await steps.fetch_once()
        assert len(items) == len(steps.queued) == steps.run.statistics().tracked == 2
        assert await steps.run.fetcher.fetch_once(4) == 0
        leased = [row.id for row in await read_all(database, Volume) if not is_free(row)]
        assert sorted(leased) == sorted(item.id for item in items)


@virtual_time
async def test_a_queue_that_shrinks_while_rows_are_claimed_strands_none(
    virtual_database: TemporaryDatabase,
) -> None:
    """The rows of one claim would stay leased, and no worker would begin them."""
    await add(virtual_database, *(Volume() for _ in range(4)))
    async with stepping(virtual_database.session_factory, VolumePipeline(workers_num=4)) as steps:
        queue = steps.run.context.queue

        def shrink(*_: object) -> None:
            queue.capacity = 1

        event.listen(virtual_database.engine.sync_engine, "commit", shrink)
        items = await steps.fetch_once()
        event.remove(virtual_database.engine.sync_engine, "commit", shrink)
        assert (len(items), steps.run.statistics().tracked) == (4, 4)
        assert await steps.work_all() == 4


@virtual_time
async def test_a_greedy_fetcher_still_serves_all_rows(virtual_database: TemporaryDatabase) -> None:
    """What there was no room for would wait as if there were no more rows."""
    await add(virtual_database, *(Volume() for _ in range(10)))
    pipeline = GreedyPipeline(workers_num=2, queue_upper_limit_factor=1)
    began = now()
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: len(heard.of(events.ItemApplied)) == 10)
            assert now() - began < pipeline.run.context.settings.fetch_delays_s[0] / 2
            assert pipeline.statistics().counters["released"] == 0
    assert heard.of(events.StrayFound) == []
    assert len(pipeline.items) == 10
