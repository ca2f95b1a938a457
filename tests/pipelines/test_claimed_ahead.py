"""What was claimed ahead in vain is given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rowlock import Apply, PipelineItem, PipelineManager, events
from rowlock.pipelines import context as ahead
from rowlock.pipelines import fetcher as unstarted
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Run, RunPipeline, heard_events
from .scenes import add, is_free, now, read_all, replica, until
from .test_claims_grow import FAST, LONG_AGO, claimed, done, done_until_fast_is_over, runs

MORE = 200
WAITING_MIN = 30
"""What was claimed ahead and waits, at least."""


async def is_leased(database: TemporaryDatabase) -> list[int]:
    return sorted(row.id for row in await read_all(database, Run) if not is_free(row))


@pytest.mark.usefixtures("short_queues")
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
            await asyncio.sleep(unstarted.WAITS_S_MAX / 2)
            assert pipeline.statistics().queued > WAITING_MIN
            await asyncio.sleep(unstarted.WAITS_S_MAX)
            statistics = pipeline.statistics()
            assert (statistics.running, statistics.queued, statistics.tracked) == (10, 20, 30)
            assert await is_leased(virtual_database) == [*range(FAST, FAST + 30)]
            released = [one.row_id for one in heard.of(events.ItemReleased)]
            assert len(released) == statistics.counters["released"] > WAITING_MIN // 2
            assert min(released) == FAST + 30
            await asyncio.sleep(60)
            assert await is_leased(virtual_database) == [*range(FAST, FAST + 30)]
            await manager.drain(0)
    assert await is_leased(virtual_database) == []
    assert (heard.of(events.LeaseExpired), heard.of(events.StrayFound)) == ([], [])


@pytest.mark.usefixtures("short_queues")
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
                await asyncio.sleep(unstarted.WAITS_S_MAX / 2)
                free.items.clear()
                assert heard.of(events.ItemReleased) == []
                await heard.wait_for(events.ItemReleased, count=WAITING_MIN // 2)
                released_at = now()
                released = [one.row_id for one in heard.of(events.ItemReleased)]
                await until(lambda: len(free.items) >= len(released))
                assert now() - released_at <= 0.1
                assert [item.id for item in free.items] == sorted(released)
            await manager.drain(0)


@pytest.mark.usefixtures("short_queues")
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
            await heard.wait_for(events.ItemReleased, count=WAITING_MIN // 2)
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


@pytest.mark.usefixtures("short_queues")
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
        assert len(queue) > WAITING_MIN
        await add(virtual_database, Run(id=1, due_at=LONG_AGO))
        hinted_at = now()
        manager.hinter.hint_fetch(Run)
        await until(lambda: any(item.id == 1 for item in pipeline.items))
        assert now() - hinted_at <= 2 * 0.1 + 0.02, (
            "one worker frees a place, the next one begins the row"
        )
        await manager.drain(0)


async def test_on_both_databases(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim of hundreds, or releasing hundreds, would be refused by one of the databases."""
    monkeypatch.setattr(ahead, "GROWS_BELOW_S", 600.0)
    monkeypatch.setattr(ahead, "SHRINKS_ABOVE_S", 2000.0)
    monkeypatch.setattr(unstarted, "WAITS_S_MAX", 2.0)
    fast, more = 500, 400
    await add(database, *runs(fast + more))
    gate = asyncio.Event()

    async def answer(item: PipelineItem[Any]) -> Apply:
        if item.id >= fast:
            await gate.wait()
        return Apply({"status": "done"})

    pipeline = RunPipeline(answer=answer)
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [pipeline]):
            await heard.wait_for(events.ItemReleased)
            assert max(claimed(heard)) > 100
            gate.set()
            await heard.wait_for(events.ItemApplied, count=fast + more)
        assert pipeline.statistics().counters["applied"] == fast + more
    assert heard.of(events.ItemStale) == []
