"""The end of trust: work is cancelled before its row can be taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rowlock import Outcome, PipelineItem, PipelineManager, events
from rowlock.pipelines.worker import Loader
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Volume, VolumePipeline, heard_events
from .scenes import (
    Faults,
    Work,
    add,
    counted,
    faults_of,
    hang,
    is_claim,
    is_renewal,
    now,
    read,
    replica,
    turns,
    until,
)


class Watched(VolumePipeline):
    """Works without an end, and notes by the loop's time when it was started and when cancelled."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(answer=self.work, **settings)
        self.started: list[float] = []
        self.cancelled: list[float] = []

    async def work(self, item: PipelineItem[Any]) -> Outcome:
        self.started.append(now())
        try:
            await hang()
        finally:
            self.cancelled.append(now())
        raise AssertionError


def left_of(database: TemporaryDatabase, row: Volume) -> float:
    assert row.lock_expires_at is not None
    return (row.lock_expires_at - database.clock.now).total_seconds()


def is_renewal_or_claim(statement: str) -> bool:
    """Whether a statement renews or claims: a replica that can still claim would take its own
    row back.
    """
    return is_renewal(statement) or is_claim(statement)


FAULTS: dict[str, Callable[[Faults], None]] = {
    "writes raise": lambda faults: faults.fail(OSError("network"), when=is_renewal_or_claim),
    "writes hang": lambda faults: faults.hang(when=is_renewal_or_claim),
    "everything raises": lambda faults: faults.fail(ConnectionRefusedError("down")),
    "everything hangs": lambda faults: faults.hang(),
}


@pytest.mark.parametrize("fault", FAULTS)
@virtual_time
async def test_work_is_cancelled_before_its_row_can_be_taken(
    virtual_database: TemporaryDatabase, fault: str
) -> None:
    """While one replica is cut off from the database, another one would work on the same row
    beside it.
    """
    [row] = await add(virtual_database, Volume())
    cut_off, other = Watched(), Watched()
    with heard_events() as heard, faults_of(virtual_database.engine) as faults:
        first = PipelineManager(virtual_database.session_factory, [cut_off])
        first.start()
        await until(lambda: cut_off.started)
        await asyncio.sleep(5)
        FAULTS[fault](faults)
        others = replica(virtual_database)
        second = PipelineManager(others, [other])
        second.start()
        await until(lambda: cut_off.cancelled)
        async with others() as session:
            held = await session.get_one(Volume, row.id)
        assert left_of(virtual_database, held) == pytest.approx(3.0, abs=0.02), (
            "lease_margin before its end"
        )
        assert held.lock_token == cut_off.items[0].lock_token
        assert other.started == []
        await until(lambda: other.started)
        assert other.started[0] >= cut_off.cancelled[0] + 2.9
        assert other.items[0].prev_lock_expired
        assert len(heard.of(events.LeaseExpired)) == 1
        faults.heal()
        await first.drain(0)
        await second.drain(0)


@virtual_time
async def test_trust_is_counted_from_the_sending_of_the_claim(
    virtual_database: TemporaryDatabase,
) -> None:
    """A slow answer to the claim would stretch the holder's trust beyond its lease."""
    [row] = await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        with faults_of(virtual_database.engine) as faults:
            faults.hang(when=is_claim)
            sent_at = now()
            asyncio.get_running_loop().call_later(4, faults.heal)
            [item] = await steps.fetch_once()
        assert now() == pytest.approx(sent_at + 4)
        assert item.trusted_until == pytest.approx(sent_at + 27)
        assert item.remaining.total_seconds() == pytest.approx(23)
        assert left_of(virtual_database, await read(virtual_database, row)) == pytest.approx(
            30, abs=0.01
        )


@virtual_time
async def test_a_slow_renewal_does_not_stretch_trust(virtual_database: TemporaryDatabase) -> None:
    """Trust would be counted from the answer, and end after the lease."""
    await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        await asyncio.sleep(16)
        with faults_of(virtual_database.engine) as faults:
            faults.hang(when=is_renewal)
            sent_at = now()
            asyncio.get_running_loop().call_later(4, faults.heal)
            assert await steps.beat_once() == 1
        assert now() == pytest.approx(sent_at + 4)
        assert item.trusted_until == pytest.approx(sent_at + 27)


@virtual_time
async def test_a_late_confirmation_revives_nothing(virtual_database: TemporaryDatabase) -> None:
    """Work that was cancelled would have its outcome written all the same, beside that of the
    next holder.
    """
    await add(virtual_database, Volume())
    pipeline = Watched()
    with heard_events() as heard, faults_of(virtual_database.engine) as faults:
        manager = PipelineManager(virtual_database.session_factory, [pipeline])
        manager.start()
        await until(lambda: pipeline.started)
        started_at = now()
        faults.fail(OSError("network"), when=is_renewal)
        await asyncio.sleep(started_at + 25 - now())
        faults.hang(when=is_renewal)
        await asyncio.sleep(started_at + 29 - now())
        assert pipeline.cancelled == [pytest.approx(started_at + 27, abs=0.02)]
        renewals = manager.statistics()["Watched"].counters["renewals"]
        faults.heal()
        await turns(200)
        assert manager.statistics()["Watched"].counters["renewals"] == renewals + 1, (
            "it was confirmed"
        )
        [item] = pipeline.items
        assert item.is_lost
        assert not item.is_trusted()
        assert item.remaining == timedelta(0)
        assert manager.statistics()["Watched"].tracked == 0
        assert [event.reason for event in heard.of(events.ItemStale)] == ["lost"]
        await manager.drain(0)


@virtual_time
async def test_a_lost_item_in_the_queue_is_never_started(
    virtual_database: TemporaryDatabase,
) -> None:
    """A worker that becomes free would begin with a row that another replica may hold by then."""
    rows = await add(virtual_database, Volume(), Volume())
    released = asyncio.Event()

    async def answer(item: PipelineItem[Any]) -> Outcome:
        await released.wait()
        return pipeline.usual_answer(item)

    pipeline = VolumePipeline(workers_num=1, answer=answer)
    with heard_events() as heard, faults_of(virtual_database.engine) as faults:
        manager = PipelineManager(virtual_database.session_factory, [pipeline])
        manager.start()
        await until(lambda: pipeline.items)
        assert manager.statistics()["VolumePipeline"].queued == 1
        faults.fail(OSError("network"))
        await asyncio.sleep(28)
        assert len(heard.of(events.LeaseExpired)) == 2
        assert manager.statistics()["VolumePipeline"].queued == 0
        released.set()
        await asyncio.sleep(1)
        assert len(pipeline.items) == 1
        assert len(heard.of(events.ItemStarted)) == 1
        await manager.drain(0)
    assert [(await read(virtual_database, row)).status for row in rows] == [
        "submitted",
        "submitted",
    ]


@virtual_time
async def test_no_work_begins_on_a_lease_that_ended_while_the_row_was_read(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two would work on the row at a time: whoever has taken it, and one whom nobody would ever
    cancel.
    """
    await add(virtual_database, Volume())
    pipeline = VolumePipeline()
    async with stepping(virtual_database.session_factory, pipeline) as steps:
        [item] = await steps.fetch_once()
        await asyncio.sleep(1)
        load = Loader.load

        async def load_slowly(loader: Any, item: PipelineItem[Any]) -> bool:
            is_there = await load(loader, item)
            item.trusted_until = now() - 1
            return is_there

        monkeypatch.setattr(Loader, "load", load_slowly)
        await steps.work_once()
        assert item.is_lost
    assert pipeline.items == []
    assert counted(steps)["started"] == 0


@virtual_time
async def test_a_settled_item_is_not_told_of_anything(virtual_database: TemporaryDatabase) -> None:
    """The end of one attempt would cancel whatever runs in its worker by then."""
    await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        told: list[str] = []
        Work(steps, item, lambda: told.append("lost"))
        steps.run.heartbeater.untrack([item])
        await asyncio.sleep(100)
        steps.run.heartbeater.lose_expired()
        assert told == []
        assert len(steps.run.heartbeater) == 0


@virtual_time
async def test_only_those_whose_trust_is_over_are_lost(virtual_database: TemporaryDatabase) -> None:
    """One lost lease would take its neighbours with it."""
    await add(virtual_database, Volume(), Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        [first] = await steps.fetch_once(1)
        await asyncio.sleep(1)
        [second] = [item for item in await steps.fetch_once(1) if item is not first] or list(
            steps.queued
        )[1:]
        await asyncio.sleep(26)
        steps.run.heartbeater.lose_expired()
        assert (first.is_lost, second.is_lost) == (True, False)


@virtual_time
async def test_the_watch_is_on_time_to_the_moment(virtual_database: TemporaryDatabase) -> None:
    """Work would go on for up to a beat after the end of trust, and eat up the margin."""
    await add(virtual_database, Volume())
    pipeline = Watched(heartbeat_interval=4, renew_timeout=0.5, lease_margin=3)
    with faults_of(virtual_database.engine) as faults:
        manager = PipelineManager(virtual_database.session_factory, [pipeline])
        manager.start()
        await until(lambda: pipeline.started)
        [item] = pipeline.items
        trusted_until = item.trusted_until
        faults.fail(OSError("network"))
        await until(lambda: pipeline.cancelled)
        assert pipeline.cancelled == [pytest.approx(trusted_until, abs=1e-6)]
        faults.heal()
        await manager.drain(0)
