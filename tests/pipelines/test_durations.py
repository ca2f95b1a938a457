"""How long what took: distributions in the statistics, durations in events."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock import (
    Apply,
    PipelineHinter,
    PipelineItem,
    PipelineManager,
    PipelineSettings,
    events,
    subscribe,
)
from rowlock.pipelines.statistics import SECONDS, Histogram
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import add, hang, replica, until

pytestmark = pytest.mark.either_database


async def for_two_seconds(_item: PipelineItem[Any]) -> Apply:
    await asyncio.sleep(2)
    return Apply({"status": "done"})


@given(st.lists(st.floats(0, 4000), max_size=30), st.lists(st.floats(0, 4000), max_size=30))
def test_each_value_is_counted_in_its_bucket(first: list[float], more: list[float]) -> None:
    """Quantiles of a dashboard would be wrong."""
    histogram = Histogram()
    for value in first:
        histogram.add(value)
    earlier = histogram.snapshot()
    for value in more:
        histogram.add(value)
    lower = (float("-inf"), *SECONDS)
    assert histogram.snapshot().since(earlier).counts == tuple(
        sum(low < value <= high for value in more)
        for low, high in zip(lower, (*SECONDS, float("inf")), strict=True)
    )
    assert earlier.count == len(first)


def test_a_quantile_is_within_its_bucket() -> None:
    """A p95 would be a number that no attempt took."""
    histogram = Histogram()
    assert histogram.snapshot().quantile(0.95) is None
    for _ in range(100):
        histogram.add(2.0)
    assert 1.0 < (histogram.snapshot().quantile(0.5) or 0) <= 2.5
    histogram.add(10_000)
    assert histogram.snapshot().quantile(1.0) == SECONDS[-1]


@virtual_time
async def test_each_stage_of_a_row_is_measured(virtual_database: TemporaryDatabase) -> None:
    """A row that took a minute would not say where it spent it."""
    await add(virtual_database, *(Run() for _ in range(2)))
    pipeline = RunPipeline(workers_num=1, answer=for_two_seconds)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await heard.wait_for(events.ItemApplied, count=2)
            buckets = manager.statistics()["RunPipeline"].buckets
    assert (buckets["process"].count, 4 <= buckets["process"].sum < 4.1) == (2, True)
    assert (buckets["queue_wait"].count, 2 <= buckets["queue_wait"].sum < 2.1) == (2, True)
    assert buckets["write"].count == len(heard.of(events.OutcomesWritten)) >= 1
    assert buckets["write_rows"].sum == 2
    assert buckets["fetch_rows"].sum == 2
    assert [2 <= (event.process_s or 0) < 2.1 for event in heard.of(events.ItemApplied)] == [
        True,
        True,
    ]
    assert {event.columns for event in heard.of(events.ItemApplied)} == {("status",)}


async def test_a_fetch_says_what_it_asked_and_found(database: TemporaryDatabase) -> None:
    """Nobody could tell an empty table from a pipeline that does not look."""
    await add(database, Volume())
    with heard_events() as heard:
        async with stepping(database.session_factory, VolumePipeline()) as steps:
            await steps.fetch_once(3)
            await steps.fetch_once(3)
    full, empty = heard.of(events.FetchEnded)
    assert [(event.count, event.asked, event.hinted) for event in (full, empty)] == [
        (1, 3, False),
        (0, 3, False),
    ]
    assert empty.database_time is None
    ahead = datetime.now(UTC) - datetime.fromtimestamp(full.database_time or 0, UTC)
    assert abs(ahead) < timedelta(minutes=5)


async def test_a_start_says_how_long_the_row_was_due(database: TemporaryDatabase) -> None:
    """A row that is late would look like one that was taken at once."""
    due_at = datetime.now(UTC) - timedelta(hours=1)
    await add(database, Run(due_at=due_at))
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [RunPipeline()]) as manager:
            await heard.wait_for(events.ItemApplied)
            pickup = manager.statistics()["RunPipeline"].buckets["pickup"]
    (started,) = heard.of(events.ItemStarted)
    assert not started.recovered
    assert 3600 <= (started.waited_s or 0) < 3900
    assert (pickup.count, pickup.sum) == (1, started.waited_s)


@virtual_time
async def test_an_end_says_what_its_begin_knew(virtual_database: TemporaryDatabase) -> None:
    """Who hears of the ends alone, as the history does, could not say which attempt it was; or
    nobody would hear that a holder has died.
    """
    due_at = datetime.now(UTC) - timedelta(hours=1)
    await add(virtual_database, Run(due_at=due_at), Run(due_at=due_at))
    dead = RunPipeline().build_run(replica(virtual_database), PipelineHinter())
    await dead.fetcher.fetch_once(2)
    await asyncio.sleep(31)
    with heard_events() as heard:
        async with stepping(virtual_database.session_factory, RunPipeline()) as steps:
            worked_on, queued = await steps.fetch_once(2)
            await steps.work_once()
    (started,), (recovered,) = heard.of(events.ItemStarted), heard.of(events.ItemRecovered)
    (applied,), (released,) = heard.of(events.ItemApplied), heard.of(events.ItemReleased)
    assert started.attempt == 2
    assert (started.waited_s or 0) > 3600
    for event in (recovered, applied):
        assert (event.lock_token, event.attempt, event.waited_s) == (
            worked_on.lock_token,
            started.attempt,
            started.waited_s,
        )
    assert (released.row_id, released.attempt, released.waited_s) == (queued.id, None, None)


@virtual_time
async def test_a_renewal_says_how_near_the_end_it_was(virtual_database: TemporaryDatabase) -> None:
    """Leases that are renewed ever later would show only when the first one is lost."""
    await add(virtual_database, Volume())
    with heard_events() as heard:
        pipeline = VolumePipeline(answer=hang)
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await until(lambda: len(heard.of(events.LeasesRenewed)) >= 2)
            margins = manager.statistics()["VolumePipeline"].buckets["lease_margin"]
            await manager.drain(0)
    told = heard.of(events.LeasesRenewed)
    settings = PipelineSettings()
    trigger_s = (settings.heartbeat_trigger - settings.lease_margin).total_seconds()
    assert margins.count >= 2
    assert all(0 < event.margin_s <= trigger_s for event in told[:2])


async def test_hints_are_counted(database: TemporaryDatabase) -> None:
    """A service that hints for nothing, or never, would not be noticed."""
    await add(database)
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [VolumePipeline()]) as manager:
            await heard.wait_for(events.FetchEnded)
            await add(database, Volume())
            for _ in range(3):
                manager.hinter.hint_fetch(Volume)
            await heard.wait_for(events.ItemApplied)
            counters = manager.statistics()["VolumePipeline"].counters
    assert counters["hints"] == 3
    assert counters["hints_coalesced"] == 2
    assert counters["hints_useful"] <= 1


OF_EACH_ROW = {events.ItemStarted, events.ItemApplied}
OF_MANY_ROWS = {events.FetchEnded, events.OutcomesWritten}


@virtual_time
async def test_what_nobody_wants_is_not_built(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wants to hear of a rare event would pay for those of each row."""
    built: list[type[events.Event]] = []
    monkeypatch.setattr(events, "emit", lambda event: built.append(type(event)))
    for wanted in (OF_EACH_ROW, OF_MANY_ROWS):
        built.clear()
        end = subscribe(print, *wanted)
        try:
            await add(virtual_database, Volume())
            pipeline = VolumePipeline()
            async with PipelineManager(virtual_database.session_factory, [pipeline]):
                await until(lambda one=pipeline: one.statistics().counters["applied"])
        finally:
            end()
        assert {*built} & (OF_EACH_ROW | OF_MANY_ROWS) == wanted
