"""How late a loop is: by its own plan, so that neither an outage nor a long rest makes it late."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rowlock import Fetcher, PipelineManager
from rowlock.pipelines import heartbeat_thread as loop_monitor
from rowlock.pipelines.heartbeat_thread import LoopMonitor
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline
from .scenes import add, faults_of, hang, turns, until
from .told import end_of_logging


async def stand_still(*_arguments: Any) -> None:
    await asyncio.Event().wait()


LOOPS = {"fetcher", "heartbeater", "lease watch"}


@virtual_time
async def test_loops_that_rest_are_on_time(virtual_database: TemporaryDatabase) -> None:
    """A probe would restart a replica that has nothing to do, or whose queue is full."""
    # What the other one had leased is over soon.
    await add(virtual_database, Volume(), *(Run() for _ in range(9)))
    busy = RunPipeline(workers_num=1, answer=hang)
    manager = PipelineManager(virtual_database.session_factory, [busy, VolumePipeline()])
    assert [health.late_s for health in manager.health().pipelines] == [{}, {}]
    async with manager:
        for _ in range(50):
            await asyncio.sleep(3.3)
            for health in manager.health().pipelines:
                assert set(health.late_s) == LOOPS
                assert max(health.late_s.values()) < 1
        await manager.drain(0)
    assert [health.late_s for health in manager.health().pipelines] == [{}, {}]


@virtual_time
async def test_a_fetcher_that_stands_still_is_late(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that claims nothing any more would be ready for ever."""
    await add(virtual_database)
    async with PipelineManager(virtual_database.session_factory, [VolumePipeline()]) as manager:
        await asyncio.sleep(1)
        monkeypatch.setattr(Fetcher, "_fetch", stand_still)
        await asyncio.sleep(120)
        (health,) = manager.health().pipelines
        assert health.late_s["fetcher"] > 30
        assert health.late_s["heartbeater"] == health.late_s["lease watch"] == 0


@virtual_time
async def test_a_fetcher_that_does_not_hear_a_hint_is_late(
    virtual_database: TemporaryDatabase,
) -> None:
    """One that waits for room for ever, although there is some, would look as if it were right."""
    await add(virtual_database, *(Run() for _ in range(9)))
    pipeline = RunPipeline(workers_num=1, answer=hang)
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        await until(lambda: len(manager.items()) >= 2)
        await asyncio.sleep(1)
        pipeline.run.fetcher._woken = asyncio.Event()  # nothing wakes it now
        pipeline.hint()
        await asyncio.sleep(10)
        (health,) = manager.health().pipelines
        assert health.late_s["fetcher"] >= 9
        await manager.drain(0)


@virtual_time
@pytest.mark.parametrize("stands", ["beat_once", "sleep"])
async def test_a_keeper_of_leases_that_stands_still_is_late(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, stands: str
) -> None:
    """Leases would end, one by one, in a replica that looks well."""
    await add(virtual_database, Volume())
    pipeline = VolumePipeline(answer=hang)
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        if stands == "sleep":
            monkeypatch.setattr("rowlock.pipelines.heartbeater.sleep", stand_still)
        else:
            monkeypatch.setattr(pipeline.run.heartbeater, stands, stand_still)
        await until(lambda: len(manager.items()) == 1)
        await asyncio.sleep(25)
        late_s = manager.health().pipelines[0].late_s
        assert late_s["heartbeater"] > 1
        assert (late_s["lease watch"] > 1) == (stands == "sleep")
        await manager.drain(0)


@virtual_time
async def test_an_outage_makes_no_loop_late(virtual_database: TemporaryDatabase) -> None:
    """All replicas would be restarted because the database is away."""
    await add(virtual_database, Volume())
    pipeline = VolumePipeline(answer=hang)
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        await until(lambda: len(manager.items()) == 1)
        with faults_of(virtual_database.engine) as faults:
            faults.hang()
            for _ in range(30):
                await asyncio.sleep(1)
                late_s = manager.health().pipelines[0].late_s
                assert max(late_s.values(), default=0) < 1
            faults.heal()
        await manager.drain(0)


@virtual_time
async def test_a_loop_that_turns_is_not_stalled() -> None:
    """A healthy host would be told of in the log, and its leases let go."""
    host = LoopMonitor()
    asking = asyncio.create_task(host.ask())
    await asyncio.sleep(60)
    assert (host.stalled_s, host.longest_stall_s) == (0.0, 0.0)
    asking.cancel()
    await asyncio.wait({asking})


@virtual_time
async def test_a_loop_that_stands_still_is_told_of_once(caplog: Any) -> None:
    """Nobody would know which line of whose code blocks the service, or the log would be full of
    it.
    """
    host = LoopMonitor()
    answers: list[Any] = []
    host.do = answers.append  # type: ignore[method-assign, assignment]
    asking = asyncio.create_task(host.ask())
    await asyncio.sleep(loop_monitor.LOGGED_AFTER_S - 1)
    assert caplog.records == []
    await asyncio.sleep(60)
    end_of_logging()
    [told] = caplog.records
    assert told.rowlock_stalled_s == loop_monitor.LOGGED_AFTER_S
    # Here the loop's thread is the one that asks.
    assert "heartbeat_thread.py" in told.rowlock_where
    assert len(answers) == 1
    assert host.stalled_s == 60 + loop_monitor.LOGGED_AFTER_S - 1
    answers.pop()()
    assert host.stalled_s == 0.0
    await asyncio.sleep(60)
    end_of_logging()
    assert len(caplog.records) == 2, "the next block is told of again"
    asking.cancel()
    await asyncio.wait({asking})


async def test_what_is_to_be_done_is_done_on_the_loop() -> None:
    """Listeners of the host would be called in a thread that they do not know of."""
    host = LoopMonitor()
    done: list[int] = []
    host.do(lambda: done.append(threading.get_ident()))
    assert done == [threading.get_ident()], "at once, here"
    await asyncio.to_thread(host.do, lambda: done.append(threading.get_ident()))
    await turns()
    assert done == [threading.get_ident()] * 2


async def test_a_loop_that_has_ended_does_nothing_more() -> None:
    """The other thread would die of a host that is gone."""

    async def seen() -> LoopMonitor:
        return LoopMonitor()

    def elsewhere() -> LoopMonitor:
        return asyncio.run(seen())

    host = await asyncio.to_thread(elsewhere)
    done: list[int] = []
    host.do(lambda: done.append(1))
    assert done == []
    assert "thread" in host.where()
