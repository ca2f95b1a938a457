"""Tests of the fetcher: when it fetches, when it rests, and what wakes it."""

from __future__ import annotations

import asyncio
import itertools
import random
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, null

from rowlock import Apply, PipelineHinter, PipelineManager, Reset, events
from rowlock.pipelines.fetcher import plan_fetch
from rowlock.pipelines.statistics import LOADER
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import (
    Faults,
    add,
    counted,
    faults_of,
    hang,
    is_claim,
    is_free,
    now,
    read,
    replica,
    turns,
    until,
)

pytestmark = pytest.mark.either_database


def claims(faults: Faults) -> list[float]:
    return [at for at, statement in faults.sent if is_claim(statement)]


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


# ---------------------------------------------------------------- the plan


@pytest.mark.parametrize(
    ("room", "is_low", "hinted", "delay_left_s", "plan"),
    [
        (0, False, False, 0.0, (0, None)),
        (0, False, True, 0.0, (0, None)),
        (0, True, True, 2.0, (0, None)),
        (-1, True, True, 0.0, (0, None)),
        (3, False, False, 0.0, (0, None)),
        (3, True, False, 0.0, (3, None)),
        (3, True, False, -1.0, (3, None)),
        (3, False, False, 2.0, (0, 2.0)),
        (3, True, False, 2.0, (0, 2.0)),
        (3, False, True, 0.0, (3, None)),
        (3, True, True, 0.0, (3, None)),
        (3, False, True, 2.0, (3, None)),
        (3, True, True, 2.0, (3, None)),
    ],
)
def test_plan(room: int, is_low: bool, hinted: bool, delay_left_s: float, plan: Any) -> None:
    """It would claim without room, hammer an idle database, or let workers starve beside a full
    table.
    """
    assert plan_fetch(room=room, is_low=is_low, hinted=hinted, delay_left_s=delay_left_s) == plan


# ---------------------------------------------------------------- what wakes it


@virtual_time
async def test_a_hint_ends_the_rest(virtual_database: TemporaryDatabase) -> None:
    """A request would wait for seconds although somebody said that it is there."""
    await add(virtual_database)
    pipeline = VolumePipeline()
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        await asyncio.sleep(100.123)
        await add(virtual_database, Volume())
        hinted_at = now()
        manager.hinter.hint_fetch(Volume)
        await turns(200)
        assert len(pipeline.items) == 1
        assert now() == hinted_at


@virtual_time
async def test_a_row_that_nobody_hinted_is_found_within_the_longest_rest(
    virtual_database: TemporaryDatabase,
) -> None:
    """A lost hint would cost more than one fetch delay."""
    await add(virtual_database)
    pipeline = VolumePipeline()
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        for _ in range(10):
            await asyncio.sleep(30)
            before = len(pipeline.items)
            await add(virtual_database, Volume())
            async with asyncio.timeout(6.0):
                await until(lambda before=before: len(pipeline.items) > before)


@virtual_time
async def test_a_hint_raised_during_a_fetch_is_not_forgotten(
    virtual_database: TemporaryDatabase,
) -> None:
    """The row that was committed just behind the claim would wait for the next poll."""
    await add(virtual_database)
    with faults_of(virtual_database.engine) as faults:
        faults.hang(when=is_claim)
        async with PipelineManager(virtual_database.session_factory, [VolumePipeline()]) as manager:
            await asyncio.sleep(1)
            assert len(claims(faults)) == 1
            manager.hinter.hint_fetch(Volume)
            await turns()
            healed_at = now()
            faults.heal()
            await turns(200)
            assert claims(faults)[1:] == [healed_at]


@virtual_time
async def test_a_hint_raised_while_the_queue_is_full_is_not_forgotten(
    virtual_database: TemporaryDatabase,
) -> None:
    """The hinted row would wait until the queue is nearly empty, behind rows that are due later."""
    await add(virtual_database, *(Volume() for _ in range(5)))
    pipeline = VolumePipeline(
        workers_num=1,
        queue_lower_limit_factor=0,
        queue_upper_limit_factor=4,
        answer=lambda item: asyncio.sleep(10),
    )
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await asyncio.sleep(1)
            manager.hinter.hint_fetch(Volume)
            await asyncio.sleep(1)
            assert manager.statistics()["VolumePipeline"].queued == 4
            await add(virtual_database, Volume())
            before = len(claims(faults))
            manager.hinter.hint_fetch(Volume)
            await asyncio.sleep(1)
            assert len(claims(faults)) == before
            await until(lambda: len(pipeline.items) == 2)
            await turns(100)
            assert len(claims(faults)) == before + 1
            assert manager.statistics()["VolumePipeline"].queued == 4
            await manager.drain(0)


@virtual_time
async def test_hints_from_before_the_start_of_the_loop_count(
    virtual_database: TemporaryDatabase,
) -> None:
    """A hint raised right after the start would fall into a gap."""
    await add(virtual_database)
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [VolumePipeline()]) as manager:
            manager.hinter.hint_fetch(Volume)
            await turns(200)
            assert len(claims(faults)) == 1


# ---------------------------------------------------------------- how long it rests


@virtual_time
async def test_empty_fetches_back_off(virtual_database: TemporaryDatabase) -> None:
    """An idle pipeline would keep the database busy, replicas march in step, or far-off work
    never be noticed early.
    """
    random.seed(4711)
    await add(virtual_database)
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [VolumePipeline()]):
            await asyncio.sleep(1500)
    rests = gaps(claims(faults))
    for rest, delay in zip(rests, [0.5, 1, 2, 5], strict=False):
        assert 0.8 * delay <= rest <= 1.2 * delay or 0.4 <= rest <= 0.6
    later = rests[3:]
    long, short = [rest for rest in later if rest > 1], [rest for rest in later if rest <= 1]
    assert all(4 <= rest <= 6 for rest in long)
    assert all(0.4 <= rest <= 0.6 for rest in short)
    assert 0.05 <= len(short) / len(later) <= 0.15
    assert min(long) < 4.2
    assert max(long) > 5.8


@virtual_time
async def test_what_was_found_shortens_the_rests_again(virtual_database: TemporaryDatabase) -> None:
    """A pipeline that was idle for long would be sluggish in the middle of its work."""
    await add(virtual_database)
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [VolumePipeline()]) as manager:
            await asyncio.sleep(100)
            await add(virtual_database, Volume())
            manager.hinter.hint_fetch(Volume)
            await turns(200)
            found_at = claims(faults)[-1]
            await asyncio.sleep(1)
            following = next(at for at in claims(faults) if at > found_at)
            assert 0.4 <= following - found_at <= 0.6


@virtual_time(max_iterations=200_000)
async def test_rows_that_are_reset_again_and_again_do_not_spin(
    virtual_database: TemporaryDatabase,
) -> None:
    """Rows that wait for a related lock would keep a processor busy, and those behind them from
    ever being worked on.
    """
    await add(virtual_database, *(Run(id=number) for number in range(6)))
    [last] = await add(virtual_database, Run(id=99))
    pipeline = RunPipeline(
        workers_num=1, answer=lambda item: Apply({"status": "done"}) if item.id == 99 else Reset()
    )
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        await asyncio.sleep(20)
    assert (await read(virtual_database, last)).status == "done"
    assert len(pipeline.items) <= 6 * 26, "each row at most once in 0.8 s"


# ---------------------------------------------------------------- what it does besides


async def test_it_counts_and_tells(database: TemporaryDatabase) -> None:
    """A dashboard would show a fetcher that does nothing, or claims that brought nothing."""
    await add(database, *(Volume() for _ in range(3)))
    with heard_events() as heard:
        async with stepping(database.session_factory, VolumePipeline()) as steps:
            await steps.fetch_once()
            await steps.fetch_once()
            assert (
                counted(steps)["fetches"],
                counted(steps)["fetches_empty"],
                counted(steps)["claimed"],
            ) == (2, 1, 3)
    assert [event.count for event in heard.of(events.RowsClaimed)] == [3]


@virtual_time
async def test_it_counts_what_it_took_over_from_the_dead(
    virtual_database: TemporaryDatabase,
) -> None:
    """Nobody would see that replicas die."""
    await add(virtual_database, Volume())
    run = VolumePipeline().build_run(replica(virtual_database), PipelineHinter())
    await run.fetcher.fetch_once(1)
    await asyncio.sleep(31)
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        assert item.prev_lock_expired
        assert counted(steps)["recovered"] == 1


@virtual_time
async def test_abandoned_locks_are_cleared_in_the_end(virtual_database: TemporaryDatabase) -> None:
    """A row whose pipeline is gone from the code would be nobody's for ever."""
    [row] = await add(
        virtual_database,
        Volume(
            status="active", lock_owner="GonePipeline", lock_expires_at=virtual_database.clock.now
        ),  # type: ignore[union-attr]
    )
    async with PipelineManager(virtual_database.session_factory, [VolumePipeline()]) as manager:
        await asyncio.sleep(200)
        assert (await read(virtual_database, row)).lock_owner == "GonePipeline"
        await asyncio.sleep(700)
        assert is_free(await read(virtual_database, row))
        assert manager.statistics()["VolumePipeline"].counters["swept"] == 1


def test_ready_may_be_a_mapped_attribute() -> None:
    """A boolean column would have to be compared with true."""

    class AttributePipeline(VolumePipeline):
        def ready(self) -> Any:
            return Volume.disk_id

    class NullPipeline(VolumePipeline):
        def ready(self) -> Any:
            return null()

    AttributePipeline()
    NullPipeline()


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
    for _ in range(300):
        await asyncio.sleep(0.5)
        pipeline.hint()
    await pipeline.drain(timedelta(0))
    assert all(40 <= rest <= 41 for rest in gaps(started))
    assert len(started) == 4


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


async def test_what_a_claim_brings_after_the_stop_is_released(database: TemporaryDatabase) -> None:
    """Rows of a claim that was under way when a shutdown began are released at once, not queued
    until the end of the drain, which waits for the work that runs.
    """
    [row] = await add(database, Volume())
    pipeline = VolumePipeline()
    with heard_events() as heard:
        async with stepping(database.session_factory, pipeline) as steps:

            def on_execute(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
                if is_claim(statement):
                    steps.run.fetcher.stop()

            event.listen(database.engine.sync_engine, "before_cursor_execute", on_execute)
            assert await steps.fetch_once() == []
            assert counted(steps)["claimed"] == 1
            assert len(heard.of(events.ItemReleased)) == 1
            assert is_free(await read(database, row))
