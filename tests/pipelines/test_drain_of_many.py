"""A drain that interrupts many rows: what it asks of the database grows with the batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from rowlock import PipelineHinter, PipelineItem
from rowlock.pipelines.settler import release_items
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Attachment, Volume, VolumePipeline
from .related_scenes import GatheringPipeline
from .scenes import add, faults_of, hang, is_free, read_all, replica, until

ROWS = 40
"""Far more than the connections of a pool."""
HANDFUL = 6


async def _fail_when_interrupted(_item: PipelineItem[Any]) -> None:
    try:
        await hang()
    except asyncio.CancelledError:
        raise ValueError("not now") from None


async def _give_up_when_interrupted(item: PipelineItem[Any]) -> Any:
    try:
        await hang()
    except asyncio.CancelledError:
        return VolumePipeline().usual_answer(item)


@pytest.mark.parametrize(
    "build",
    [
        partial(VolumePipeline, answer=hang, workers_num=ROWS),
        partial(VolumePipeline, answer=_fail_when_interrupted, workers_num=ROWS),
        partial(VolumePipeline, answer=_give_up_when_interrupted, workers_num=ROWS),
        partial(GatheringPipeline, then=lambda *_: hang(), workers_num=ROWS),
        partial(VolumePipeline, answer=hang, workers_num=1, queue_upper_limit_factor=ROWS),
    ],
    ids=["hanging", "raising", "returning", "with related rows", "not started"],
)
async def test_a_drain_of_many_rows_takes_a_handful_of_transactions(
    database: TemporaryDatabase, build: Callable[[], Any]
) -> None:
    """Releases gather as outcomes do: interrupted rows are free within the grace, and none of them
    waits for a connection until its lease ends and counts as a death.
    """
    volumes = await add(database, *(Volume() for _ in range(ROWS)))
    await add(database, *(Attachment(volume_id=volume.id) for volume in volumes))
    pipeline = build()
    pipeline.start(database.session_factory, PipelineHinter())
    run, is_gathering = pipeline.run, isinstance(pipeline, GatheringPipeline)
    begun = pipeline.locked if is_gathering else pipeline.items
    await until(lambda: len(run.heartbeater) == ROWS)
    await until(lambda: len(begun) == run.context.settings.workers_num)
    with faults_of(database.engine) as faults:
        await run.drain(0)
    assert len(faults.committed) <= HANDFUL
    assert all(map(is_free, await read_all(database, Volume)))
    assert all(map(is_free, await read_all(database, Attachment)))


async def test_a_row_that_is_locked_holds_up_no_other_release(
    postgresql_database: TemporaryDatabase,
) -> None:
    """The rows beside it are free at once, and it is free as soon as the other transaction ends."""
    volumes = await add(postgresql_database, *(Volume() for _ in range(ROWS)))
    pipeline = VolumePipeline(answer=hang, workers_num=ROWS)
    pipeline.start(postgresql_database.session_factory, PipelineHinter())
    await until(lambda: len(pipeline.items) == ROWS)
    async with replica(postgresql_database).begin() as session:
        await session.get(Volume, volumes[0].id, with_for_update=True)
        draining = asyncio.create_task(pipeline.run.drain(0))
        await until(lambda: pipeline.run.statistics().counters["released"] == ROWS - 1)
        assert not draining.done()
    await draining
    assert all(map(is_free, await read_all(postgresql_database, Volume)))


async def test_a_row_that_cannot_be_released_keeps_no_other_leased(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A trigger of the host's that refuses one row would leave a whole batch to its leases."""
    volumes = await add(sqlite_database, *(Volume() for _ in range(ROWS)))
    refused = volumes[ROWS // 3].id
    async with stepping(sqlite_database.session_factory, VolumePipeline(workers_num=ROWS)) as steps:
        items = await steps.fetch_once()
        async with sqlite_database.session_factory.begin() as session:
            trigger = (
                "CREATE TRIGGER keep BEFORE UPDATE OF lock_token ON volumes"
                f" WHEN old.id = '{refused.hex}' BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
            await session.execute(text(trigger))
        await release_items(steps.run.context, items)
        rows = await read_all(sqlite_database, Volume)
        assert [row.id for row in rows if not is_free(row)] == [refused]
        steps.run.context.queue.close()
