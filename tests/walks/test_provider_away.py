"""A provider is away for hours: by default nothing is parked, and nobody has to do anything."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from rowlock import Apply, Outcome, Park, PipelineManager, Retry, events
from rowlock.clock import JITTER
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Base, Run, RunPipeline, heard_events
from ..lengths import at_length

HOURS = at_length(4, 24)
OUTAGE_S = HOURS * 3600.0
ROWS = 2


async def add_runs(database: TemporaryDatabase, count: int, **values: Any) -> None:
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add_all(Run(id=number, **values) for number in range(1, count + 1))


async def count_of(database: TemporaryDatabase, *where: Any) -> int:
    async with database.session_factory() as session:
        return int(await session.scalar(select(func.count()).select_from(Run).where(*where)) or 0)


@virtual_time(max_virtual_s=2 * OUTAGE_S, max_iterations=5_000_000)
async def test_an_outage_of_hours_parks_nothing(virtual_database: TemporaryDatabase) -> None:
    """Every customer whose row met the outage would wait for a person who releases it."""
    is_away = True

    def provide(_item: object) -> Outcome:
        if is_away:
            raise ConnectionError("the provider is away")
        return Apply({"status": "done"})

    await add_runs(virtual_database, ROWS)
    # Beats and polls of hours would take a minute, and are not what this is about.
    rare = {"lock_timeout": 1200, "heartbeat_trigger": 600, "fetch_delays": (120,)}
    pipeline = RunPipeline(answer=provide, **rare)
    backoff_s = pipeline.settings.retry_delay_max.total_seconds() * (1 + JITTER)
    last_fetch_s = pipeline.settings.fetch_delays_s[-1] * (1 + JITTER)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await asyncio.sleep(OUTAGE_S)
            # Each has failed for ever, visibly, and no more often than the capped backoff lets it.
            failed = Counter(event.row_id for event in heard.of(events.ItemFailed))
            assert len(failed) == ROWS
            assert all(8 * HOURS <= count <= 17 * HOURS for count in failed.values())
            is_away = False
            await asyncio.sleep(backoff_s + last_fetch_s)
            assert manager.health().pipelines[0].parked == 0
    assert heard.of(events.ItemParked) == []
    assert await count_of(virtual_database, Run.status == "done") == ROWS


@virtual_time
async def test_what_the_host_parks_is_told(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A row would be set aside without a word: no line, no event, no count."""
    await add_runs(virtual_database, 2)

    def answer(item: Any) -> Outcome:
        return Park("no quota") if item.id == 1 else Retry(error="no disk")

    pipeline = RunPipeline(answer=answer, max_attempts=1)
    with heard_events() as heard, caplog.at_level(logging.WARNING, "rowlock"):
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await heard.wait_for(events.ItemParked, count=2)
            await heard.wait_for(events.ItemApplied, count=2)
            assert manager.statistics()["RunPipeline"].counters["parked"] == 2
            assert manager.health().pipelines[0].parked == 2
            assert manager.health().healthy
    reasons = {event.row_id: event.reason for event in heard.of(events.ItemParked)}
    assert reasons == {1: "no quota", 2: "gave up after 1 attempts: no disk"}
    async with virtual_database.session_factory() as session:
        stored = await session.execute(select(Run.id, Run.last_error))
        assert {row.id: row.last_error for row in stored} == reasons
    lines = [record.getMessage() for record in caplog.records if "is parked" in record.getMessage()]
    assert len(lines) == 2
    assert "unparked: no quota" in "".join(lines)


async def die_over_it(database: TemporaryDatabase, *, times: int) -> None:
    for _ in range(times):
        run = RunPipeline().build_run(database.session_factory, None)  # type: ignore[arg-type]
        assert await run.fetcher.fetch_once(1) == 1
        await asyncio.sleep(31)


@virtual_time(max_virtual_s=5000)
async def test_failures_before_and_between_are_no_deaths(
    virtual_database: TemporaryDatabase,
) -> None:
    """After an outage the first deployment by kill would park what has failed most often."""
    await add_runs(virtual_database, 1, attempts=300)
    await die_over_it(virtual_database, times=2)
    pipeline = RunPipeline(answer=Retry(error="no"), max_deaths=3)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await heard.wait_for(events.ItemApplied)
        await asyncio.sleep(timedelta(minutes=7).total_seconds())
        await die_over_it(virtual_database, times=2)
        done = RunPipeline(max_deaths=3)
        async with PipelineManager(virtual_database.session_factory, [done]):
            await heard.wait_for(events.ItemApplied, count=2)
    assert [item.attempt for item in pipeline.items + done.items] == [303, 306]
    assert heard.of(events.ItemParked) == []
