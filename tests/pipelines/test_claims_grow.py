"""Claims grow while rows start at once, and what was claimed ahead in vain is released: a
pipeline with its default queue.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.util import await_only

from rowlock import Apply, Fetcher, PipelineItem, PipelineManager, events
from rowlock.pipelines import ahead
from rowlock.pipelines.ahead import AHEAD_MAX, CLAIM_S_MAX
from rowlock.pipelines.fetching import unstarted
from rowlock.pipelines.fetching.unstarted import WAITS_S_MAX
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import HeardEvents, Run, RunPipeline, heard_events
from .scenes import add, faults_of, hang, is_claim, is_free, now, read_all, replica, turns, until

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAST = 600
"""How many rows take no time before those that do; enough for claims to grow to the full."""
MORE = 500
"""How many rows follow them; more than are claimed ahead."""


def runs(count: int, *, first: int = 0) -> list[Run]:
    """Return runs that are due one after the other since long ago."""
    return [
        Run(id=number, due_at=LONG_AGO + timedelta(seconds=number))
        for number in range(first, first + count)
    ]


async def done(_item: PipelineItem[Any]) -> Apply:
    """Be done at once."""
    return Apply({"status": "done"})


async def done_until_fast_is_over(item: PipelineItem[Any]) -> Apply:
    """Be done at once with the first `FAST` rows, and never with any other."""
    if item.id >= FAST:
        await hang()
    return Apply({"status": "done"})


def slow(work_s: float) -> Any:
    """Return an answer that takes so long."""

    async def answer(_item: PipelineItem[Any]) -> Apply:
        await asyncio.sleep(work_s)
        return Apply({"status": "done"})

    return answer


def claimed(heard: HeardEvents) -> list[int]:
    """Return how many rows each claim brought that brought any."""
    return [one.count for one in heard.of(events.RowsClaimed)]


async def is_leased(database: TemporaryDatabase) -> list[int]:
    """Return the keys of all runs that are leased."""
    return sorted(row.id for row in await read_all(database, Run) if not is_free(row))


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
            assert max(claimed(heard)) > 100
            await add(virtual_database, *runs(200, first=FAST))
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
async def test_slow_claims_do_not_grow(virtual_database: TemporaryDatabase) -> None:
    """A database that answers late would have to lease ever more rows at once, and all of them
    wait for the last one.
    """
    await add(virtual_database, *runs(300))
    pipeline = RunPipeline(answer=done)

    def delay(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if is_claim(statement):
            await_only(asyncio.sleep(1.5 * CLAIM_S_MAX))

    event.listen(virtual_database.engine.sync_engine, "before_cursor_execute", delay)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: len(pipeline.items) == 300)
    assert max(claimed(heard)) == 20


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


@virtual_time
async def test_two_replicas_share_work_that_takes_its_time(
    virtual_database: TemporaryDatabase,
) -> None:
    """The first one would lease all of it, and the other have nothing to do."""
    await add(virtual_database, *runs(400))
    pipelines = [RunPipeline(answer=slow(0.05)) for _ in range(2)]
    here, there = virtual_database.session_factory, replica(virtual_database)
    async with PipelineManager(here, pipelines[:1]), PipelineManager(there, pipelines[1:]):
        began_at = now()
        await until(lambda: sum(len(pipeline.items) for pipeline in pipelines) == 400)
        assert now() - began_at < 1.2 * 400 * 0.05 / 20
    assert all(160 <= len(pipeline.items) <= 240 for pipeline in pipelines)


# -------------------- where the queue is not left to the pipeline


class OwnFetcher(Fetcher[Any]):
    """Does something besides in its fetches."""

    async def fetch_once(self, limit: int) -> int:
        """Fetch."""
        return await super().fetch_once(limit)


class OwnFetcherPipeline(RunPipeline):
    """Brings its own fetcher."""

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
    await add(virtual_database, *runs(1200))
    pipeline = kind(answer=done, **settings)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: len(pipeline.items) == 1200)
    assert max(claimed(heard)) <= pipeline.settings.queue_capacity
    assert pipeline.run.context.queue.ahead is None


# ---------------------------------------------------------------- what waits is released


@virtual_time
async def test_what_was_claimed_ahead_and_waits_is_given_back(
    virtual_database: TemporaryDatabase,
) -> None:
    """Hundreds of rows would stay leased by a replica whose work has become long, and no other
    one could begin them.
    """
    await add(virtual_database, *runs(FAST + MORE))
    pipeline = RunPipeline(answer=done_until_fast_is_over)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await until(lambda: len(pipeline.items) == FAST + 10)
            await asyncio.sleep(WAITS_S_MAX / 2)
            assert pipeline.statistics().queued > 100
            await asyncio.sleep(WAITS_S_MAX)
            statistics = pipeline.statistics()
            assert (statistics.running, statistics.queued, statistics.tracked) == (10, 20, 30)
            assert await is_leased(virtual_database) == [*range(FAST, FAST + 30)]
            released = [one.row_id for one in heard.of(events.ItemReleased)]
            assert len(released) == statistics.counters["released"] > 100
            assert min(released) == FAST + 30
            await asyncio.sleep(60)
            assert await is_leased(virtual_database) == [*range(FAST, FAST + 30)]
            await manager.drain(0)
    assert await is_leased(virtual_database) == []
    assert (heard.of(events.LeaseExpired), heard.of(events.StrayFound)) == ([], [])


@virtual_time
async def test_another_replica_begins_what_was_given_back_at_once(
    virtual_database: TemporaryDatabase,
) -> None:
    """Rows that were released would wait for the next poll of those who have time for them, or
    lose their places in the order.
    """
    await add(virtual_database, *runs(FAST + MORE))
    busy, free = (
        RunPipeline(answer=done_until_fast_is_over),
        RunPipeline(answer=done, fetch_delays=(1000,)),
    )
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [busy]) as manager:
            await until(lambda: len(busy.items) == FAST + 10)
            async with PipelineManager(replica(virtual_database), [free]) as other:
                manager.hinter.attach_relay(other.hinter.hint_fetch)
                # It has looked once, and found what had not been claimed.
                await asyncio.sleep(WAITS_S_MAX / 2)
                free.items.clear()
                assert heard.of(events.ItemReleased) == []
                await heard.wait_for(events.ItemReleased, count=100)
                released_at = now()
                released = [one.row_id for one in heard.of(events.ItemReleased)]
                await until(lambda: len(free.items) >= len(released))
                assert now() - released_at <= 0.1
                assert [item.id for item in free.items] == sorted(released)
            await manager.drain(0)


@virtual_time
async def test_a_row_that_was_given_back_is_as_if_it_had_never_been_claimed(
    virtual_database: TemporaryDatabase,
) -> None:
    """It would count as tried, or be due at another time than before."""
    await add(virtual_database, *runs(FAST + MORE))
    before = {
        row.id: (row.due_at, row.attempts, row.last_processed_at)
        for row in await read_all(virtual_database, Run)
    }
    pipeline = RunPipeline(answer=done_until_fast_is_over)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await heard.wait_for(events.ItemReleased, count=100)
            released = {one.row_id for one in heard.of(events.ItemReleased)}
            after = {
                row.id: row for row in await read_all(virtual_database, Run) if row.id in released
            }
            assert {
                key: (row.due_at, row.attempts, row.last_processed_at) for key, row in after.items()
            } == {key: before[key] for key in released}
            pipeline.answer = done
            await manager.drain(0)
    again = RunPipeline(answer=done)
    async with PipelineManager(virtual_database.session_factory, [again]):
        await until(lambda: len(again.items) == MORE)
    assert {item.attempt for item in again.items if item.id in released} == {1}
    assert [item.id for item in again.items] == sorted(item.id for item in again.items)


@virtual_time
async def test_rows_that_were_queued_later_wait_as_long(
    virtual_database: TemporaryDatabase,
) -> None:
    """What a later claim brought would be released too early, or not before the next claim,
    which may never come.
    """
    await add(virtual_database, *runs(FAST + MORE))
    pipeline = RunPipeline(answer=done_until_fast_is_over)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await until(lambda: len(pipeline.items) == FAST + 10)
            queue = pipeline.run.context.queue
            # As if a claim that was long under way had come only now.
            await asyncio.sleep(WAITS_S_MAX / 2)
            queue.capacity += 20
            await pipeline.run.fetcher.fetch_once(20)
            later = [item.id for item, queued_at in queue.waiting() if queued_at == now()]
            await asyncio.sleep(0.75 * WAITS_S_MAX)
            assert len(later) == 20
            assert heard.of(events.ItemReleased)
            assert set(later) <= {item.id for item in queue}
            await asyncio.sleep(0.5 * WAITS_S_MAX)
            assert len(queue) == 20
            assert not set(later) & {item.id for item in queue}
            await manager.drain(0)


@virtual_time
async def test_a_hinted_row_does_not_wait_for_what_was_claimed_ahead(
    virtual_database: TemporaryDatabase,
) -> None:
    """The most urgent row would wait until a queue of hundreds has shrunk to what it may hold
    now.
    """
    await add(virtual_database, *runs(FAST + MORE, first=10))

    async def answer(item: PipelineItem[Any]) -> Apply:
        await asyncio.sleep(0 if item.id < FAST else 0.1)
        return Apply({"status": "done"})

    pipeline = RunPipeline(answer=answer)
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        queue = pipeline.run.context.queue
        await until(lambda: any(item.id >= FAST + 30 for item in pipeline.items))
        assert len(queue) > 100
        await add(virtual_database, Run(id=1, due_at=LONG_AGO))
        hinted_at = now()
        manager.hinter.hint_fetch(Run)
        await until(lambda: any(item.id == 1 for item in pipeline.items))
        assert now() - hinted_at <= 2 * 0.1 + 0.02, (
            "one worker frees a place, the next one begins the row"
        )
        await manager.drain(0)


@virtual_time
async def test_a_shutdown_gives_back_what_was_claimed_ahead(
    virtual_database: TemporaryDatabase,
) -> None:
    """Hundreds of rows would wait for their leases to expire after each deployment, and be
    missing elsewhere.
    """
    await add(virtual_database, *runs(FAST + MORE))
    pipeline = RunPipeline(answer=done_until_fast_is_over)
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        await until(
            lambda: len(pipeline.items) == FAST + 10 and pipeline.statistics().tracked > 100
        )
        manager.shutdown()
        await asyncio.sleep(0.1)
        assert await is_leased(virtual_database) == [item.id for item in pipeline.items[-10:]]
        released = pipeline.statistics().counters["released"]
        await asyncio.sleep(5 * WAITS_S_MAX)
        assert pipeline.statistics().counters["released"] == released
        await manager.drain(0)
    assert await is_leased(virtual_database) == []


async def test_on_both_databases(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim of hundreds, or releasing hundreds, would be refused by one of the databases."""
    monkeypatch.setattr(ahead, "GROWS_BELOW_S", 600.0)
    monkeypatch.setattr(ahead, "SHRINKS_ABOVE_S", 2000.0)
    monkeypatch.setattr(unstarted, "WAITS_S_MAX", 0.5)
    await add(database, *runs(FAST + MORE))
    gate = asyncio.Event()

    async def answer(item: PipelineItem[Any]) -> Apply:
        if item.id >= FAST:
            await gate.wait()
        return Apply({"status": "done"})

    pipeline = RunPipeline(answer=answer)
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [pipeline]):
            await heard.wait_for(events.ItemReleased)
            assert max(claimed(heard)) > 100
            gate.set()
            await heard.wait_for(events.ItemApplied, count=FAST + MORE)
        assert pipeline.statistics().counters["applied"] == FAST + MORE
    assert heard.of(events.ItemStale) == []
