"""Rows that come with their claim: used while they are fresh, and read anew after that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.orm import selectinload
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock import Apply, PipelineItem, PipelineManager, events
from rowlock.pipelines.loader import FRESH_S
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import Faults, add, change, faults_of, until


class WithAttachments(VolumePipeline):
    """Wants more than the row."""

    def options(self) -> Sequence[LoaderOption]:
        """Read attachments as well."""
        return (selectinload(Volume.attachments),)


def reads(faults: Faults) -> int:
    """Return how many statements read whole rows by their tokens."""
    return faults.count(
        lambda statement: (
            statement.startswith("SELECT") and ".status" in statement.split("WHERE")[0] and " IN (" in statement
        )
    )


async def test_work_that_begins_at_once_needs_no_second_statement(database: TemporaryDatabase) -> None:
    """Each row would cost a round trip more between the hint and its start."""
    await add(database, Run(id=1, result={"size": 3}))
    seen: list[Any] = []

    def answer(item: PipelineItem[Any]) -> Apply:
        seen.append((item.row.id, item.row.status, item.row.result, item.row.lock_token))
        return Apply({"status": "done"})

    with faults_of(database.engine) as faults, heard_events() as heard:
        pipeline = RunPipeline(answer=answer)
        async with PipelineManager(database.session_factory, [pipeline]):
            await heard.wait_for(events.ItemApplied)
    assert seen == [(1, "queued", {"size": 3}, pipeline.items[0].lock_token)]
    assert reads(faults) == 0


@virtual_time
async def test_work_that_begins_late_sees_the_row_as_it_is_then(virtual_database: TemporaryDatabase) -> None:
    """What a service wrote while the row was queued would be unknown to the attempt."""
    rows = await add(virtual_database, Run(id=1), Run(id=2))
    first_is_through, seen = asyncio.Event(), {}

    async def answer(item: PipelineItem[Any]) -> Apply:
        seen[item.id] = item.row.result
        if len(seen) == 1:
            await first_is_through.wait()
        return Apply({"status": "done"})

    pipeline = RunPipeline(answer=answer, workers_num=1)
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        await until(lambda: seen)
        [queued] = [row for row in rows if row.id not in seen]
        await change(virtual_database, queued, result="from a service")
        await asyncio.sleep(2 * FRESH_S)
        first_is_through.set()
        await until(lambda: len(seen) == 2)
    assert seen[queued.id] == "from a service"


@virtual_time
async def test_rows_are_not_read_with_a_claim_while_the_queue_is_slow(virtual_database: TemporaryDatabase) -> None:
    """Wide rows would be read twice, and wait in memory, for as long as there is more work than workers."""
    await add(virtual_database, *(Run(id=number) for number in range(1, 9)))
    with_rows: list[bool] = []

    async def answer(item: PipelineItem[Any]) -> Apply:
        with_rows.extend(queued.has_row for queued in pipeline.run.context.queue)
        await asyncio.sleep(10 * FRESH_S)
        return Apply({"status": "done"})

    pipeline = RunPipeline(answer=answer, workers_num=1, queue_upper_limit_factor=1, queue_lower_limit_factor=1)
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        await until(lambda: len(pipeline.items) == 8)
    assert not any(with_rows[2:])


async def test_the_hosts_options_are_respected(database: TemporaryDatabase) -> None:
    """`process` would find rows without what it asked for, now and then."""
    await add(database, Volume())
    seen: list[Any] = []

    def answer(item: PipelineItem[Any]) -> Apply:
        seen.append(list(item.row.attachments))
        return Apply({"status": "active"})

    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [WithAttachments(answer=answer)]):
            await heard.wait_for(events.ItemApplied)
    assert seen == [[]]


async def test_a_step_sees_what_the_test_has_changed(database: TemporaryDatabase) -> None:
    """A test that changes a row between two steps would depend on how fast it is."""
    [row] = await add(database, Run(id=1))
    async with stepping(database.session_factory, RunPipeline()) as steps:
        await steps.fetch_once()
        await change(database, row, result="changed")
        item = await steps.work_once()
    assert item.row.result == "changed"


@pytest.mark.parametrize("values", [(1, True), (True, 1)], ids=str)
async def test_what_is_merely_equal_is_written_as_it_is(database: TemporaryDatabase, values: tuple[Any, Any]) -> None:
    """An outcome would be written with its neighbour's value."""
    await add(database, Run(id=1), Run(id=2))

    def answer(item: PipelineItem[Any]) -> Apply:
        return Apply({"status": "done", "result": values[item.id - 1]})

    async with stepping(database.session_factory, RunPipeline(answer=answer, workers_num=2)) as steps:
        items = await steps.fetch_once()
        for _ in items:
            await steps.run.context.queue.take()
        await asyncio.gather(*(worker.work(item) for worker, item in zip(steps.run.workers, items, strict=True)))
        await steps.run.settler.wait_until_idle()
    async with database.session_factory() as session:
        rows = [await session.get(Run, number) for number in (1, 2)]
    assert [(type(row.result), row.result) for row in rows if row is not None] == [
        (type(value), value) for value in values
    ]
