"""Tests of heartbeats in hard moments: a chunk that fails, work settled while a beat is under
way, a budget used up.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from rowlock import Heartbeater, PipelineManager, events
from rowlock.clock import monotonic
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Volume, VolumePipeline, heard_events
from .scenes import (
    Work,
    add,
    change,
    counted,
    faults_of,
    hang,
    is_renewal,
    now,
    ticket,
    turns,
    until,
)


def is_question(statement: str) -> bool:
    return statement.startswith("SELECT volumes.lock_token")


def first(matches: Callable[[str], bool]) -> Callable[[str], bool]:
    """Return a choice of the first statement that matches, and of none after it."""
    left = iter([True])
    return lambda statement: matches(statement) and next(left, False)


@virtual_time
async def test_a_chunk_that_fails_costs_the_others_nothing(
    virtual_database: TemporaryDatabase,
) -> None:
    """One bad statement would cost all rows their renewal, and in the end their leases."""
    await add(virtual_database, *(Volume() for _ in range(1100)))
    async with stepping(virtual_database.session_factory, VolumePipeline(workers_num=600)) as steps:
        await steps.fetch_once()
        await asyncio.sleep(16)
        with faults_of(virtual_database.engine) as faults:
            faults.fail(OSError("cut"), when=first(is_renewal))
            assert await steps.beat_once() == 100
            assert await steps.beat_once() == 1000


@pytest.mark.parametrize("moment", ["BEGIN", "SELECT volumes.lock_token"])
@virtual_time
async def test_what_was_settled_during_a_beat_is_not_lost(
    virtual_database: TemporaryDatabase, moment: str
) -> None:
    """A lease that ended well would be counted as lost, and its row be reported as in trouble."""
    [row] = await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        await asyncio.sleep(16)
        if moment != "BEGIN":
            await change(virtual_database, row, lock_token=uuid.uuid4())
        with faults_of(virtual_database.engine) as faults:
            faults.hang(when=first(lambda statement: statement.startswith(moment)))
            beat = asyncio.create_task(steps.beat_once())
            await turns(100)
            assert not beat.done()
            await steps.work_once()
            asked = faults.count(is_question)
            faults.heal()
            assert await beat == 0
            assert faults.count(is_question) == asked
        assert (item.is_lost, counted(steps)["leases_lost"]) == (False, 0)


@virtual_time
async def test_what_is_over_is_forgotten(virtual_database: TemporaryDatabase) -> None:
    """Each item ever worked on would stay in memory, with the call that ends its work."""
    await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        await steps.fetch_once()
        await steps.work_once()
        assert (len(steps.run.heartbeater), steps.run.context.running) == (0, {})


@virtual_time
async def test_the_watch_does_not_wait_for_its_next_look(
    virtual_database: TemporaryDatabase,
) -> None:
    """Work would go on for up to a beat after the end of trust, and use up the margin."""
    await add(virtual_database)
    for phase in range(5):
        ended: list[float] = []
        async with stepping(
            virtual_database.session_factory, VolumePipeline(heartbeat_interval=1)
        ) as steps:
            watch = asyncio.create_task(steps.run.heartbeater.watch())
            await asyncio.sleep(0.1 + 0.2 * phase)
            item = ticket(trusted_for_s=27.0)
            steps.run.heartbeater.track([item])
            Work(steps, item, lambda ended=ended: ended.append(now()))
            trusted_until = item.trusted_until
            await asyncio.sleep(30)
            watch.cancel()
            await asyncio.wait({watch})
        assert ended == [pytest.approx(trusted_until, abs=1e-6)]


@virtual_time
async def test_the_whole_budget_may_be_used(
    virtual_database: TemporaryDatabase, monkeypatch: Any
) -> None:
    """Settings that pass the check would still lose a lease by one failed renewal, when every
    beat is late.
    """
    monkeypatch.setattr(random, "uniform", lambda lowest, highest: highest)
    await add(virtual_database)
    for phase in range(6):
        # Used up but for a moment: heartbeat_trigger 15 s = margin 3 s + two beats of 1.2 s + a
        # renewal of 9.5 s.
        pipeline = VolumePipeline(
            answer=hang, fetch_delays=[3600], renew_timeout=9.5, database_timeout=60
        )
        with heard_events() as heard, faults_of(virtual_database.engine) as faults:
            async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
                await asyncio.sleep(10 + 0.2 * phase)
                [row] = await add(virtual_database, Volume())
                manager.hinter.hint_fetch(Volume)
                await until(lambda pipeline=pipeline: pipeline.running)
                faults.hang()
                [failed] = await heard.wait_for(events.RenewalFailed)
                faults.heal()
                assert "TransactionTimeout" in failed.error
                await asyncio.sleep(30)
                assert (heard.of(events.LeaseExpired), pipeline.items[0].is_trusted()) == ([], True)
                await change(virtual_database, row, status="seen")
                await manager.drain(0)


@virtual_time
async def test_beats_are_spread(virtual_database: TemporaryDatabase) -> None:
    """All replicas would beat in step, or one beat so late that it costs leases."""
    beats: list[float] = []

    class Noting(Heartbeater[Any]):
        async def beat_once(self) -> int:
            beats.append(now())
            return await super().beat_once()

    class NotingPipeline(VolumePipeline):
        heartbeater_class = Noting

    await add(virtual_database, Volume())
    pipeline = NotingPipeline(answer=hang, heartbeat_interval=1)
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        await asyncio.sleep(200)
        await manager.drain(0)
    gaps = [after - before for before, after in itertools.pairwise(beats)]
    assert len(gaps) > 150
    assert 0.8 - 1e-9 <= min(gaps) < 0.85
    assert 1.15 < max(gaps) <= 1.2 + 1e-9


async def test_an_item_whose_outcome_is_on_its_way_is_not_told_lost(
    database: TemporaryDatabase,
) -> None:
    """A beat that crosses a commit would tell of a lease lost that was not, in health and to
    every listener.
    """
    [row] = await add(database, Volume())
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        item.trusted_until -= 16
        item.is_settling = True  # and committed, but the loop has not turned since
        await change(database, row, lock_token=None, lock_owner=None, lock_expires_at=None)
        with heard_events() as heard:
            assert await steps.beat_once() == 0
        assert heard.of(events.LeaseExpired) == []
        assert not item.is_lost


async def test_whoever_asks_too_late_is_told_at_once(sqlite_database: TemporaryDatabase) -> None:
    """A lease that was lost while its row was being read would let work begin, and nobody would
    ever cancel it.
    """
    await add(sqlite_database, Volume())
    async with stepping(sqlite_database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        item.trusted_until = now() - 1
        steps.run.heartbeater.lose_expired()
        assert item.is_lost
        assert steps.run.heartbeater.has_lost(item, monotonic())
        assert counted(steps)["leases_lost"] == 1


@virtual_time
async def test_an_outcome_that_waits_past_its_trust_is_told_lost_once(
    virtual_database: TemporaryDatabase,
) -> None:
    """The watch would look at it again in every turn of the loop, and nothing else would get its
    turn.
    """
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        item = ticket(trusted_for_s=5.0)
        item.is_settling = True
        steps.run.heartbeater.track([item])
        watching = asyncio.create_task(steps.run.heartbeater.watch())
        await asyncio.sleep(6)
        assert item.is_lost
        assert steps.run.heartbeater._until_next_end() > 0
        assert counted(steps)["leases_lost"] == 1
        watching.cancel()
        await asyncio.wait({watching})
