"""Heartbeats: leases are renewed in bulk when they near their end."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from rowlock import Heartbeater, PipelineItem, PipelineManager, events
from rowlock.testing import Steps, TemporaryDatabase, stepping, virtual_time

from ..host import HANG_S_MAX, Volume, VolumePipeline, heard_events
from .scenes import (
    add,
    change,
    counted,
    faults_of,
    hang,
    is_renewal,
    now,
    read,
    replica,
    ticket,
    turns,
    until,
)
from .told import Line, repeated, told

NEARLY_OVER_S = 16.0
"""By how much a test shortens trust on the real loop, so that renewal is due at once. **Unit**
seconds.
"""


async def aged_items(steps: Steps[Any], limit: int | None = None) -> list[PipelineItem[Any]]:
    items = await steps.fetch_once(limit)
    for item in items:
        item.trusted_until -= NEARLY_OVER_S
    return items


# ---------------------------------------------------------------- renewal


@virtual_time
async def test_a_long_process_keeps_its_lease(virtual_database: TemporaryDatabase) -> None:
    """Work that takes longer than a lease would be done twice."""
    [row] = await add(virtual_database, Volume())

    async def answer(item: PipelineItem[Any]) -> Any:
        await asyncio.sleep(200)
        return pipeline.usual_answer(item)

    pipeline, other = VolumePipeline(answer=answer), VolumePipeline()
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: pipeline.items)
            async with PipelineManager(replica(virtual_database), [other]):
                [applied] = await _first_applied(heard)
    assert applied.lock_token == pipeline.items[0].lock_token
    assert len(pipeline.items) == 1
    assert other.items == []
    assert heard.of(events.LeaseExpired) == []
    assert (await read(virtual_database, row)).status == "active"


async def _first_applied(heard: Any) -> list[events.ItemApplied]:
    await until(lambda: heard.of(events.ItemApplied))
    return heard.of(events.ItemApplied)


@virtual_time
async def test_a_queued_item_keeps_its_lease(virtual_database: TemporaryDatabase) -> None:
    """Items behind a long one would be lost, fetched again, and lost again."""
    await add(virtual_database, Volume(), Volume())
    pipeline = VolumePipeline(workers_num=1, answer=lambda item: asyncio.sleep(70))
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: len(heard.of(events.ItemApplied)) == 2)
    assert heard.of(events.LeaseExpired) == []


@virtual_time
async def test_a_lease_is_renewed_only_when_it_nears_its_end(
    virtual_database: TemporaryDatabase,
) -> None:
    """Every beat would write every row in hand."""
    await add(virtual_database, Volume())
    pipeline = VolumePipeline(answer=hang)
    with faults_of(virtual_database.engine) as faults:
        manager = PipelineManager(virtual_database.session_factory, [pipeline])
        manager.start()
        await until(lambda: pipeline.items)
        claimed_at = now()
        await asyncio.sleep(200)
        renewed = [at for at, statement in faults.sent if is_renewal(statement)]
        await manager.drain(0)
    rests = [after - before for before, after in itertools.pairwise([claimed_at, *renewed])]
    # heartbeat_trigger before the end of the lease, and at most one jittered beat late.
    assert all(15 - 0.1 <= rest <= 15 + 1.3 for rest in rests)
    assert len(rests) >= 11


async def test_a_renewal_moves_the_lease_in_the_row_and_on_the_ticket(
    database_with_clock: TemporaryDatabase,
) -> None:
    """The holder would believe in another end than the others see."""
    database, clock = database_with_clock, database_with_clock.clock
    [row] = await add(database, Volume())
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        [item] = await aged_items(steps)
        before = item.trusted_until
        clock.advance(16)
        with heard_events() as heard:
            assert await steps.beat_once() == 1
        after = await read(database, row)
        assert (after.lock_expires_at - clock.now).total_seconds() == 30
        assert item.lock_expires_at == after.lock_expires_at
        assert item.trusted_until > before
        assert counted(steps)["renewals"] == 1
        (told,) = heard.of(events.LeasesRenewed)
        assert (told.pipeline, told.due, told.renewed) == ("VolumePipeline", 1, 1)


async def test_nothing_due_sends_nothing(sqlite_database: TemporaryDatabase) -> None:
    """An idle pipeline would open a transaction at every beat."""
    await add(sqlite_database)
    async with stepping(sqlite_database.session_factory, VolumePipeline()) as steps:
        with faults_of(sqlite_database.engine) as faults, heard_events() as heard:
            assert await steps.beat_once() == 0
        assert faults.sent == []
        assert heard.all == []


# ---------------------------------------------------------------- each under its own token


async def test_a_replaced_token_is_found_at_the_beat(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Two holders would work on one row, and each keep the other's lease alive."""
    rows = await add(database, Volume(), Volume())
    other = uuid.uuid4()
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        items = await aged_items(steps)
        lost = next(item for item in items if item.id == rows[0].id)
        await change(database, rows[0], lock_token=other)
        before = await read(database, rows[0])
        with heard_events() as heard:
            assert await steps.beat_once() == 1
        assert lost.is_lost
        assert heard.of(events.LeaseExpired) == [
            events.LeaseExpired("VolumePipeline", lost.id, lost.lock_token)
        ]
        text, extra = f"VolumePipeline: the lease of row {lost.id} was lost", {"row_id": lost.id}
        assert told(caplog, "lost") == [Line(text, {"pipeline": "VolumePipeline", **extra}, None)]
        assert [item.id for item in steps.queued] == [rows[1].id]
        assert counted(steps)["leases_lost"] == 1
        after = await read(database, rows[0])
        assert (after.lock_token, after.lock_expires_at) == (other, before.lock_expires_at)


async def test_a_row_in_somebodys_transaction_does_not_hold_up_the_others(
    postgresql_database: TemporaryDatabase,
) -> None:
    """One row locked by a long report would cost the leases of all others; or its own, although
    nobody took it.
    """
    rows = await add(postgresql_database, Volume(), Volume())
    async with stepping(postgresql_database.session_factory, VolumePipeline()) as steps:
        items = await aged_items(steps)
        held = next(item for item in items if item.id == rows[0].id)
        async with replica(postgresql_database)() as session, session.begin():
            await session.scalars(select(Volume).where(Volume.id == rows[0].id).with_for_update())
            async with asyncio.timeout(HANG_S_MAX):
                assert await steps.beat_once() == 1
            assert not held.is_lost
            assert steps.run.heartbeater.due_for_renewal() == [held]
        assert await steps.beat_once() == 1
        assert steps.run.heartbeater.due_for_renewal() == []


@virtual_time
async def test_settled_items_are_no_longer_renewed(virtual_database: TemporaryDatabase) -> None:
    """Memory would fill with items whose work is done."""
    await add(virtual_database, *(Volume() for _ in range(20)))
    async with PipelineManager(virtual_database.session_factory, [VolumePipeline()]) as manager:
        await asyncio.sleep(10)
        statistics = manager.statistics()["VolumePipeline"]
        assert statistics.counters["applied"] == 20
        assert (statistics.tracked, statistics.running, statistics.queued) == (0, 0, 0)


# ---------------------------------------------------------------- failing renewals


@virtual_time
async def test_one_failed_renewal_loses_no_lease(virtual_database: TemporaryDatabase) -> None:
    """A hiccup of the database would cost all work in hand."""
    await add(virtual_database, Volume())
    pipeline = VolumePipeline(answer=lambda item: asyncio.sleep(60))
    with heard_events() as heard, faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await until(lambda: pipeline.items)
            faults.hang(when=is_renewal)
            await until(lambda: heard.of(events.RenewalFailed))
            assert manager.health().pipelines[0].renewal_failures == 1
            assert not manager.health().healthy
            faults.heal()
            await until(
                lambda: (
                    [(one.due, one.renewed) for one in heard.of(events.LeasesRenewed)[-1:]]
                    == [(1, 1)]
                )
            )
            assert manager.health().healthy
            await until(lambda: heard.of(events.ItemApplied))
    assert heard.of(events.LeaseExpired) == []
    assert heard.of(events.LoopReplaced) == []


@pytest.mark.parametrize("error", [OSError("network"), ValueError("a bug in the driver")])
def test_a_beat_survives_any_error(
    virtual_database: TemporaryDatabase, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Heartbeats would stop for good, and every long work be lost from then on."""

    @virtual_time
    async def play() -> None:
        await add(virtual_database, Volume())
        pipeline = VolumePipeline(answer=lambda item: asyncio.sleep(60))
        with heard_events() as heard, faults_of(virtual_database.engine) as faults:
            async with PipelineManager(virtual_database.session_factory, [pipeline]):
                await until(lambda: pipeline.items)
                faults.fail(error, when=is_renewal)
                await until(lambda: len(heard.of(events.RenewalFailed)) == 3)
                faults.heal()
                await until(lambda: heard.of(events.ItemApplied))
            assert pipeline.statistics().counters["renewals_failed"] == 3
        assert heard.of(events.LoopReplaced) == []
        text = f"{type(error).__name__}: {error}"
        assert heard.of(events.RenewalFailed) == [events.RenewalFailed("VolumePipeline", text)] * 3

    play()
    line = Line("VolumePipeline: a renewal failed", {"pipeline": "VolumePipeline"}, repr(error))
    assert told(caplog, "renewal") == repeated(line, 2)


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


@virtual_time
async def test_an_outcome_that_waits_past_its_trust_is_watched_no_longer(
    virtual_database: TemporaryDatabase,
) -> None:
    """The watch would look at it again in every turn of the loop, and nothing else would get its
    turn; or a lease be told lost whose outcome is committed, and not answered yet.
    """
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        item = ticket(trusted_for_s=5.0)
        item.is_settling = True
        steps.run.heartbeater.track([item])
        watching = asyncio.create_task(steps.run.heartbeater.watch())
        await asyncio.sleep(6)
        assert item.is_lost
        assert steps.run.heartbeater._until_next_end() > 0
        assert counted(steps)["leases_lost"] == 0
        watching.cancel()
        await asyncio.wait({watching})
