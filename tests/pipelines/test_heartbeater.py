"""Tests of heartbeats: leases are renewed in bulk when they near their end, and each under its
own token.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from typing import Any

import pytest
from sqlalchemy import select

from rowlock import Heartbeater, PipelineItem, PipelineManager, events
from rowlock.testing import Steps, TemporaryDatabase, stepping, virtual_time

from ..host import HANG_S_MAX, Volume, VolumePipeline, heard_events
from .scenes import add, change, counted, faults_of, hang, is_renewal, now, read, replica, until
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


@virtual_time
async def test_what_is_due(virtual_database: TemporaryDatabase) -> None:
    """The trigger would be measured from the end of trust, and a renewal come a margin too late."""
    await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        assert steps.run.heartbeater.due_for_renewal() == []
        await asyncio.sleep(14.9)
        assert steps.run.heartbeater.due_for_renewal() == []
        assert await steps.beat_once() == 0
        await asyncio.sleep(0.2)
        assert steps.run.heartbeater.due_for_renewal() == [item]
        assert await steps.beat_once() == 1
        assert steps.run.heartbeater.due_for_renewal() == []


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


@virtual_time
async def test_work_under_a_replaced_token_is_cancelled(
    virtual_database: TemporaryDatabase,
) -> None:
    """A holder whose row was taken away by hand would work on it to the end."""
    [row] = await add(virtual_database, Volume())
    pipeline = VolumePipeline(answer=hang)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: pipeline.running == 1)
            await asyncio.sleep(10)
            await change(virtual_database, row, lock_token=uuid.uuid4())
            await asyncio.sleep(7)
            assert pipeline.running == 0
            assert [event.reason for event in heard.of(events.ItemStale)] == ["lost"]


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


# ---------------------------------------------------------------- a heartbeater of one's own


class NotingHeartbeater(Heartbeater[Any]):
    beats = 0

    async def beat_once(self) -> int:
        type(self).beats += 1
        return await super().beat_once()


class SpecialPipeline(VolumePipeline):
    heartbeater_class = NotingHeartbeater


@virtual_time
async def test_a_host_may_bring_its_own_heartbeater(virtual_database: TemporaryDatabase) -> None:
    """The class named on the pipeline would be ignored."""
    await add(virtual_database, Volume())
    async with PipelineManager(
        virtual_database.session_factory, [SpecialPipeline(answer=hang)]
    ) as manager:
        await asyncio.sleep(60)
        assert 50 <= NotingHeartbeater.beats <= 75
        manager.shutdown()
        await manager.drain(0)
