"""Clocks that are wrong: a host's never matters; the database's decides."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock import Apply, PipelineManager, events, make_due
from rowlock import clock as clock_module
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from ..lengths import at_length
from ..pipelines.scenes import TidyPipeline, add, counted, is_free, read, read_all, replica, until
from .patience import HeldWork

HOUR_S = 3600

# ---------------------------------------------------------------- clocks of hosts


@virtual_time
async def test_jumps_of_the_hosts_clock_while_rows_are_at_work(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host whose clock is set would lose its leases, keep them past their end, or find rows
    due that are not.
    """

    asked = 0

    def jumping() -> float:
        nonlocal asked
        asked += 1
        return 1_900_000_000.0 + (HOUR_S if asked % 2 else -HOUR_S)

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(jumping(), tz or UTC)

    database = virtual_database
    await add(database, *(Volume() for _ in range(10)))

    async def process(item: Any) -> Apply:
        await asyncio.sleep(100)
        return Apply({"status": "active"})

    pipelines = [TidyPipeline(answer=process, workers_num=5) for _ in range(2)]
    monkeypatch.setattr(time, "time", jumping)
    monkeypatch.setattr(clock_module, "datetime", Jumping)
    with heard_events() as heard:
        async with AsyncExitStack() as stack:
            for pipeline in pipelines:
                await stack.enter_async_context(PipelineManager(replica(database), [pipeline]))
            await until(lambda: len(heard.of(events.ItemApplied)) == 10)
        monkeypatch.undo()
    assert heard.of(events.LeaseExpired) == []
    assert sum(len(pipeline.items) for pipeline in pipelines) == 10
    assert all(
        (row.status, is_free(row)) == ("active", True) for row in await read_all(database, Volume)
    )


# ---------------------------------------------------------------- the clock of the database


@pytest.mark.parametrize("seconds", at_length([20, -HOUR_S], [20, -20, -HOUR_S]))
async def test_a_jump_that_ends_no_lease_loses_nothing(
    database_with_clock: TemporaryDatabase, seconds: float
) -> None:
    """A holder would lose a row that nobody else can have, or another would get it too early."""
    await add(database_with_clock, Volume())
    settings = {"lock_timeout": 30, "heartbeat_trigger": 29.999, "lease_margin": 1}
    async with stepping(database_with_clock.session_factory, VolumePipeline(**settings)) as steps:
        [item] = await steps.fetch_once()
        database_with_clock.clock.advance(seconds)
        assert await steps.beat_once() == 1
        assert item.lock_expires_at == database_with_clock.clock.now + timedelta(seconds=30)
        async with stepping(replica(database_with_clock), VolumePipeline()) as other:
            assert await other.fetch_once() == []
        await steps.work_all()
        assert counted(steps)["applied"] == 1


@pytest.mark.parametrize("is_heard_of", [True, False], ids=["after a beat", "before a beat"])
async def test_a_leap_past_the_lease_costs_work_and_no_result(
    database_with_clock: TemporaryDatabase, is_heard_of: bool
) -> None:
    """Two holders of one row would both write: the one whose lease the leap ended, and the one
    who took the row.
    """
    [volume] = await add(database_with_clock, Volume())
    later = VolumePipeline(answer=Apply({"status": "active", "disk_id": "later"}))
    work = HeldWork(Apply({"status": "active", "disk_id": "earlier"}))
    earlier = VolumePipeline(answer=work, lock_timeout=30, heartbeat_trigger=29.999, lease_margin=1)
    async with (
        stepping(replica(database_with_clock), later) as other,
        stepping(database_with_clock.session_factory, earlier) as steps,
    ):
        await steps.fetch_once()
        working = asyncio.create_task(steps.work_all())
        await work.started.wait()
        database_with_clock.clock.advance(HOUR_S)
        if is_heard_of:
            assert await steps.beat_once() == 0
        [taken] = await other.fetch_once()
        assert taken.prev_lock_expired
        await other.work_all()
        work.go_on.set()
        await working
        assert (counted(steps)["applied"], counted(steps)["stale"]) == (0, 1)
        assert counted(steps)["leases_lost"] == is_heard_of
        assert counted(other)["applied"] == 1
    after = await read(database_with_clock, volume)
    assert (after.disk_id, is_free(after)) == ("later", True)


async def test_after_a_step_back_the_dead_are_recovered_later(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Rows of a dead replica would be taken at once, under a living one too, or never again."""
    await add(database_with_clock, Volume())
    dead = VolumePipeline().build_run(replica(database_with_clock), None)  # type: ignore[arg-type]
    assert await dead.fetcher.fetch_once(1) == 1
    database_with_clock.clock.advance(-HOUR_S)
    async with stepping(database_with_clock.session_factory, VolumePipeline()) as steps:
        database_with_clock.clock.advance(HOUR_S - 1)
        assert await steps.fetch_once() == []
        database_with_clock.clock.advance(31)
        [item] = await steps.fetch_once()
        assert item.prev_lock_expired


async def test_a_row_of_another_century_has_its_turn(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A time that somebody wrote by hand, or a clock that was years ahead, would keep a row from
    its turn for as long.
    """
    database = database_with_clock
    clock = database.clock
    [volume] = await add(database, Volume(last_processed_at=clock.now + timedelta(days=36_500)))
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        assert await steps.fetch_once() == []
        await steps.run.fetcher.sweep_once()
        clock.advance(60)
        assert len(await steps.fetch_once()) == 1
        await steps.work_once()
    row = await read(database, volume)
    assert (row.status, row.last_processed_at) == ("active", clock.now)


async def test_after_a_step_back_rows_wait_for_their_time_unless_a_service_says_so(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Rows whose due time lies in the hour that was taken back could not be worked on for an
    hour by any means.
    """
    [run] = await add(database_with_clock, Run(id=1))
    async with stepping(database_with_clock.session_factory, RunPipeline()) as steps:
        database_with_clock.clock.advance(-HOUR_S)
        assert await steps.fetch_once() == []
        async with database_with_clock.session_factory.begin() as session:
            await make_due(session, await session.get_one(Run, 1))
        await steps.fetch_once()
        await steps.work_all()
    assert (await read(database_with_clock, run)).status == "done"


@pytest.mark.parametrize("seed", range(at_length(1, 8)))
@virtual_time
async def test_a_database_clock_that_jumps_at_random(
    virtual_database: TemporaryDatabase, seed: int
) -> None:
    """Some order of leaps and steps back would have a result applied twice, or a row left
    locked.
    """
    database, chance, count = virtual_database, random.Random(seed), 12
    await add(database, *(Run(id=number) for number in range(count)))

    async def process(item: Any) -> Apply:
        await asyncio.sleep(chance.uniform(0.1, 40))
        written = item.row.result or []
        return Apply(
            {
                "status": "done" if len(written) == 2 else "queued",
                "result": [*written, str(item.lock_token)],
            },
            after=0,
        )

    pipelines = [RunPipeline(answer=process, workers_num=4, max_attempts=1000) for _ in range(2)]
    with heard_events() as heard:
        async with AsyncExitStack() as stack:
            for pipeline in pipelines:
                engine = database.create_engine()
                await stack.enter_async_context(
                    PipelineManager(async_sessionmaker(engine), [pipeline])
                )
            for _ in range(20):
                await asyncio.sleep(chance.uniform(1, 20))
                database.clock.advance(chance.choice([-HOUR_S, -60, -5, 5, 25, 60, HOUR_S]))
            # The furthest back that it can have gone in all; after that, every row is due and
            # every lease over.
            database.clock.advance(20 * HOUR_S)
            await until(lambda: _done(heard) == count * 3)
    rows = await read_all(database, Run)
    assert all((row.status, is_free(row), len(row.result)) == ("done", True, 3) for row in rows)
    tokens = Counter(token for row in rows for token in row.result)
    applied = Counter(str(event.lock_token) for event in heard.of(events.ItemApplied))
    assert tokens == applied


def _done(heard: Any) -> int:
    return len([event for event in heard.of(events.ItemApplied) if event.outcome == "Apply"])
