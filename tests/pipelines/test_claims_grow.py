"""Claims grow while rows start at once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from rowlock import Apply, Fetcher, PipelineItem, PipelineManager, events
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import HeardEvents, Run, RunPipeline, heard_events
from .conftest import AHEAD_MAX
from .scenes import add, faults_of, hang, is_claim, turns, until

pytestmark = pytest.mark.usefixtures("short_queues")

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAST = 200
"""How many rows take no time before those that do; enough for claims to grow to the full."""


def runs(count: int, *, first: int = 0) -> list[Run]:
    return [
        Run(id=number, due_at=LONG_AGO + timedelta(seconds=number))
        for number in range(first, first + count)
    ]


async def done(_item: PipelineItem[Any]) -> Apply:
    return Apply({"status": "done"})


async def done_until_fast_is_over(item: PipelineItem[Any]) -> Apply:
    if item.id >= FAST:
        await hang()
    return Apply({"status": "done"})


def slow(work_s: float) -> Any:
    async def answer(_item: PipelineItem[Any]) -> Apply:
        await asyncio.sleep(work_s)
        return Apply({"status": "done"})

    return answer


def claimed(heard: HeardEvents) -> list[int]:
    return [one.count for one in heard.of(events.RowsClaimed)]


# ---------------------------------------------------------------- while rows start at once


@virtual_time
async def test_claims_grow_while_rows_start_at_once(virtual_database: TemporaryDatabase) -> None:
    """With ten workers, a pipeline of short work would spend its time on claims of twenty rows."""
    await add(virtual_database, *runs(4 * AHEAD_MAX))
    pipeline = RunPipeline(answer=done)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: len(pipeline.items) == 4 * AHEAD_MAX)
    assert claimed(heard)[0] == 20
    assert AHEAD_MAX // 2 < max(claimed(heard)) <= AHEAD_MAX
    assert len(claimed(heard)) <= 12
    assert [item.id for item in pipeline.items] == list(range(4 * AHEAD_MAX)), (
        "in their order, across claims"
    )
    assert heard.of(events.ItemReleased) == []


@virtual_time
async def test_a_pipeline_that_has_caught_up_claims_as_before(
    virtual_database: TemporaryDatabase,
) -> None:
    """Rows that come later, and take long, would be leased by the hundreds."""
    await add(virtual_database, *runs(FAST))
    pipeline = RunPipeline(answer=done_until_fast_is_over)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await until(lambda: len(pipeline.items) == FAST)
            await asyncio.sleep(30)
            assert max(claimed(heard)) > 40
            await add(virtual_database, *runs(100, first=FAST))
            manager.hinter.hint_fetch(Run)
            await turns(500)
            assert (pipeline.statistics().running, pipeline.statistics().queued) == (10, 10)
            await manager.drain(0)


@pytest.mark.parametrize("work_s", [0.05, 2.0])
@virtual_time
async def test_slow_work_is_not_claimed_ahead(
    virtual_database: TemporaryDatabase, work_s: float
) -> None:
    """Rows would be leased long before work on them begins, and kept from replicas that have
    time for them.
    """
    await add(virtual_database, *runs(300))
    pipeline = RunPipeline(answer=slow(work_s))
    most = 0
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            for _ in range(100):
                await asyncio.sleep(work_s / 7)
                most = max(most, pipeline.statistics().tracked)
            await manager.drain(0)
    assert max(claimed(heard)) == 20
    assert most <= 20 + 2 * 10, "queued, running, and being settled"


@virtual_time
async def test_after_a_failure_claims_are_small(virtual_database: TemporaryDatabase) -> None:
    """A claim of so many rows that it takes all its time would be tried again and again, and
    never end well.
    """
    await add(virtual_database, *runs(4 * AHEAD_MAX))
    gate = asyncio.Event()

    async def answer(item: PipelineItem[Any]) -> Apply:
        if item.id == FAST:
            faults.fail(OperationalError("SELECT 1", {}, Exception("gone")), when=is_claim)
        elif item.id > FAST:
            await gate.wait()
        return Apply({"status": "done"})

    pipeline = RunPipeline(answer=answer)
    with heard_events() as heard, faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await until(lambda: len(pipeline.items) == FAST + 11)
            gate.set()
            await until(lambda: pipeline.statistics().counters["fetches_failed"])
            heard.all.clear()
            faults.heal()
            await heard.wait_for(events.RowsClaimed)
            assert claimed(heard)[0] <= 20
            await manager.drain(0)


# -------------------- where the queue is not left to the pipeline


class OwnFetcher(Fetcher[Any]):
    async def fetch_once(self, limit: int) -> int:
        return await super().fetch_once(limit)


class OwnFetcherPipeline(RunPipeline):
    fetcher_class = OwnFetcher


class StatedPipeline(RunPipeline):
    """Says how long its queue is: as long as it would be anyway."""

    queue_upper_limit_factor = 2.0


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (RunPipeline, {"queue_upper_limit_factor": 2.0}),
        (RunPipeline, {"queue_lower_limit_factor": 0.5}),
        (RunPipeline, {"queue_lower_limit_factor": 0, "queue_upper_limit_factor": 0}),
        (StatedPipeline, {}),
        (OwnFetcherPipeline, {}),
        (RunPipeline, {"workers_num": AHEAD_MAX // 2}),
    ],
)
@virtual_time
async def test_a_queue_whose_size_was_stated_does_not_grow(
    virtual_database: TemporaryDatabase, kind: type[RunPipeline], settings: dict[str, Any]
) -> None:
    """A host that bounds what a replica may lease, or what its own fetches bring, would not be
    heard.
    """
    await add(virtual_database, *runs(3 * AHEAD_MAX))
    pipeline = kind(answer=done, **settings)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: len(pipeline.items) == 3 * AHEAD_MAX)
    assert max(claimed(heard)) <= pipeline.settings.queue_capacity
    assert pipeline.run.context.queue.grows is False
