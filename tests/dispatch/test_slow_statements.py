"""Dispatch with a database that is far away: each statement takes its time, and no attempt or
result is lost for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rowlock import PipelineManager, events
from rowlock.dispatch import COMPLETED, AttemptEvent, Completed, Progress, StageDone, Task
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import heard_events
from ..pipelines.test_slow_statements import far_away
from .renders import Fleet, Render, Scenes, pipeline_of, settled, submit

WORKERS = 80
ROUND_TRIP_S = 0.025
SETTLED_S_MAX = 120
DATABASE_TIMEOUT_S = 1
"""So long a transaction may take: a batch of all workers, with a statement for each, would take
2 s.
"""


@pytest.mark.at_length
@pytest.mark.parametrize("takes_s", [0.0, 40.0, 120.0])
@virtual_time
async def test_nothing_is_lost_where_round_trips_take_long(
    virtual_database: TemporaryDatabase, takes_s: float
) -> None:
    """Outcomes, states, stages and progress of all workers would outlast their transactions, and
    the work be done again.
    """
    scenes, fleet = Scenes(), Fleet(WORKERS)

    async def renders_in_stages(task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("begun")
        yield StageDone("raw", task.row.scene)
        await asyncio.sleep(takes_s)
        yield Progress("half")
        yield StageDone("lit", task.row.scene)
        yield Completed({"url": task.row.scene})

    keys = [f"{number:03}" for number in range(WORKERS)]
    scenes.answers.update(dict.fromkeys(keys, renders_in_stages))
    renders = pipeline_of(fleet, scenes, database_timeout=DATABASE_TIMEOUT_S)
    await submit(virtual_database, renders, *keys)
    with heard_events() as heard, far_away(virtual_database.engine, round_trip_s=ROUND_TRIP_S):
        async with PipelineManager(virtual_database.session_factory, [renders]):
            async with asyncio.timeout(takes_s + SETTLED_S_MAX):
                rows = await settled(virtual_database)
    assert {(row.status, row.error, row.losses, row.attempts) for row in rows} == {
        (COMPLETED, None, 0, 0)
    }
    assert [(row.url, row.stages, row.progress) for row in rows] == [
        (row.scene, {"raw": row.scene, "lit": row.scene}, "half") for row in rows
    ]
    assert set(fleet.begun.values()) == {1}
    assert len(fleet.begun) == WORKERS
    assert heard.of(events.ItemStale) == []
    assert heard.of(events.ItemFailed) == []
