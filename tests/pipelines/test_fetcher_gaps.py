"""Tests of a fetcher at rest: what must end the rest at once, and what must not begin one."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

import pytest

from rowlock import PipelineHinter, PipelineManager, events
from rowlock.pipelines.loader import LOADER
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Volume, VolumePipeline, heard_events
from .scenes import add, faults_of, hang, is_claim, now, until


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


@virtual_time
async def test_a_full_fetch_is_followed_without_a_rest(virtual_database: TemporaryDatabase) -> None:
    """Throughput in front of a full table would be one queue per fetch delay."""
    await add(virtual_database, *(Volume() for _ in range(20)))
    pipeline = VolumePipeline(workers_num=2, fetch_delays=[60])
    began_at = now()
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: len(heard.of(events.ItemApplied)) == 20)
            assert now() < began_at + 1


@pytest.mark.parametrize("queued", [0, 1])
@virtual_time
async def test_a_shutdown_ends_the_rest(virtual_database: TemporaryDatabase, queued: int) -> None:
    """Every deployment would wait for a fetcher that has nothing to do."""
    await add(virtual_database, *(Volume() for _ in range(2 * queued)))
    pipeline = VolumePipeline(workers_num=1, fetch_delays=[3600], answer=hang)
    pipeline.start(virtual_database.session_factory, PipelineHinter())
    await asyncio.sleep(100)
    assert pipeline.statistics().queued == queued
    stopped_at = now()
    await pipeline.drain(timedelta(0))
    assert now() == stopped_at


@virtual_time
async def test_a_hint_whose_fetch_failed_is_followed_after_the_rest(
    virtual_database: TemporaryDatabase,
) -> None:
    """One hiccup while workers are busy would make the fetcher deaf to hints, and show it ill
    for hours.
    """
    await add(virtual_database, Volume(), Volume())
    pipeline = VolumePipeline(workers_num=1, queue_upper_limit_factor=4, answer=hang)
    with faults_of(virtual_database.engine) as faults, heard_events() as heard:
        pipeline.start(virtual_database.session_factory, PipelineHinter())
        await asyncio.sleep(20)
        assert (pipeline.running, pipeline.statistics().queued) == (1, 1)
        await add(virtual_database, Volume())
        faults.fail(OSError("cut"), when=is_claim)
        pipeline.hint()
        await heard.wait_for(events.FetchFailed)
        faults.heal()
        await asyncio.sleep(6)
        assert pipeline.statistics().queued == 2
        assert pipeline.health().healthy
        await pipeline.drain(timedelta(0))


@virtual_time
async def test_failing_fetches_back_off(virtual_database: TemporaryDatabase) -> None:
    """A database that is down would be asked twice a second by every pipeline of every replica."""
    await add(virtual_database)
    pipeline = VolumePipeline()
    with faults_of(virtual_database.engine) as faults:
        faults.fail(ConnectionRefusedError("nobody listens"))
        pipeline.start(virtual_database.session_factory, PipelineHinter())
        await asyncio.sleep(120)
        assert 20 <= pipeline.statistics().counters["fetches_failed"] <= 60
        await pipeline.drain(timedelta(0))


@virtual_time
async def test_a_row_that_stays_ready_rests_for_the_interval(
    virtual_database: TemporaryDatabase,
) -> None:
    """A row that is reconciled again and again would be so at full speed."""
    await add(virtual_database, Volume())
    started: list[float] = []
    pipeline = VolumePipeline(
        answer=lambda _item: started.append(now()), min_processing_interval=40
    )
    pipeline.start(virtual_database.session_factory, PipelineHinter())
    for _ in range(600):
        await asyncio.sleep(0.5)
        pipeline.hint()
    await pipeline.drain(timedelta(0))
    assert all(40 <= rest <= 41 for rest in gaps(started))
    assert len(started) == 8


@virtual_time
async def test_while_no_row_can_be_read_two_are_claimed_now_and_then(
    virtual_database: TemporaryDatabase,
) -> None:
    """Before a migration all rows would be claimed and released in turn; or nobody see that
    nothing is worked on.
    """
    await add(virtual_database, *(Volume() for _ in range(5)))
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        context, fetcher = steps.run.context, steps.run.fetcher
        context.failures.failed(LOADER, "no such column")
        with heard_events() as heard:
            await fetcher._fetch(5)
        assert len(context.queue) == 2
        [failed] = heard.of(events.FetchFailed)
        assert failed.error.startswith("PipelineError: no row can be read: no such column")
        assert steps.run.health().fetch_failures == 1
        context.failures.succeeded(LOADER)
        await fetcher._fetch(5)
        assert len(context.queue) == 5
        assert (steps.run.health().fetch_failures, steps.run.health().last_error) == (0, None)
