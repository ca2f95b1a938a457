"""Tests of heartbeats that run beside the host's loop: when they come home, and when they let a
loop's leases go.

The other side is made up here: it runs in this very loop, so that the time can be moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError, ProgrammingError

from rowlock import Heartbeater
from rowlock.pipelines import heartbeat_thread as heartbeat_thread_module
from rowlock.pipelines.heartbeat_thread import HeartbeatThread
from rowlock.testing import Steps, TemporaryDatabase, stepping, virtual_time

from ..host import Volume, VolumePipeline
from .scenes import add, counted, faults_of, is_renewal, read, replica, turns
from .told import Line, end_of_logging, told

UNSUITED = RuntimeError("attached to a different loop")


class OtherSide:
    """What a heartbeat thread is to a heartbeater.

    Attributes:
        monitor: of a loop that stands still for as long as the test says.
        ended: how often what ran over here has ended.
    """

    def __init__(self, sessions: Any) -> None:
        self.sessions = sessions
        self.monitor = SimpleNamespace(do=lambda act: act(), stalled_s=0.0, thread=7)
        self.ended = 0

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        finally:
            self.ended += 1


@asynccontextmanager
async def beating(
    database: TemporaryDatabase, **settings: Any
) -> AsyncIterator[tuple[Steps[Any], OtherSide, Heartbeater[Any]]]:
    await add(database, Volume())
    other = OtherSide(replica(database))
    async with stepping(database.session_factory, VolumePipeline(**settings)) as steps:
        steps.run.heartbeater.thread = other  # type: ignore[assignment]
        heartbeater = steps.run.heartbeater
        running = asyncio.create_task(heartbeater.run())
        await steps.fetch_once()
        yield steps, other, heartbeater
        running.cancel()
        await asyncio.wait({running})


@virtual_time
async def test_leases_are_renewed_over_there(virtual_database: TemporaryDatabase) -> None:
    """Heartbeats would use the host's connections, and stop when those are all out."""
    with faults_of(virtual_database.engine) as faults:
        async with beating(virtual_database) as (steps, other, _):
            await asyncio.sleep(100)
            assert faults.count(is_renewal) == 0
            assert counted(steps)["renewals"] >= 5
            assert (steps.queued[0].is_trusted(), other.ended) == (True, 0)
        assert other.ended == 1


@virtual_time
async def test_what_cannot_be_done_there_is_done_at_home(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A host whose connections know their loop would lose every lease, and not know what to
    change.
    """
    async with beating(virtual_database) as (steps, other, _):
        with faults_of(other.sessions.kw["bind"]) as faults:
            faults.fail(UNSUITED)
            await asyncio.sleep(100)
        assert (other.ended, steps.run.heartbeater.thread) == (1, None)
        assert (counted(steps)["renewals_failed"], steps.queued[0].is_trusted()) == (1, True)
    text = (
        "VolumePipeline: leases cannot be renewed in a thread of their own here, and are from now"
        " on renewed on the event loop; pass heartbeat_thread=False to the manager"
    )
    assert told(caplog, "thread") == [Line(text, {"pipeline": "VolumePipeline"}, repr(UNSUITED))]


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError("down"),
        OperationalError("", {}, Exception("gone")),
        ProgrammingError("", {}, SimpleNamespace(sqlstate="42703")),  # type: ignore[arg-type]
    ],
    ids=["outage", "driver", "schema"],
)
@virtual_time
async def test_an_outage_is_no_reason_to_come_home(
    virtual_database: TemporaryDatabase, error: Exception
) -> None:
    """After the first restart of the database, code that blocks the loop would cost its leases
    for ever after.
    """
    async with beating(virtual_database) as (steps, other, _):
        with faults_of(other.sessions.kw["bind"]) as faults:
            faults.fail(error)
            await asyncio.sleep(20)
            faults.heal()
            await asyncio.sleep(5)
        assert (other.ended, steps.run.heartbeater.thread) == (0, other)
        assert steps.run.health().renewal_failures == 0
        assert steps.queued[0].is_trusted()


@virtual_time
async def test_a_loop_that_stands_still_for_too_long_is_let_go_and_told_of_once(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A wedged replica would keep its rows for ever; or one that comes back after all never keep
    any again.
    """
    async with beating(virtual_database, stall_limit=60) as (steps, other, heartbeater):
        other.monitor.stalled_s = 60.0
        await asyncio.sleep(16.5)
        assert counted(steps)["renewals"] == 1, "so long it may stand"
        other.monitor.stalled_s = 60.5
        await asyncio.sleep(16.5)
        assert counted(steps)["renewals"] == 1
        other.monitor.stalled_s = 0.0
        await asyncio.sleep(2)
        assert counted(steps)["renewals"] == 2, "before its trust has ended"
        other.monitor.stalled_s = 99.0
        await asyncio.sleep(2)
        assert len(heartbeater) == 1
    end_of_logging()
    text = (
        "VolumePipeline: the event loop has been stalled for {} s, so its leases are no longer"
        " renewed"
    )
    assert told(caplog, "been stalled") == [
        Line(
            text.format(shown),
            {"pipeline": "VolumePipeline", "stalled_s": stalled_s, "leases": 1},
            None,
        )
        for shown, stalled_s in (("60", 60.5), ("99", 99.0))
    ]


@virtual_time
async def test_what_a_loop_keeps_locked_is_ended_once_a_renewal_would_be_late(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that blocks in the middle of a transaction would keep its own leases from being
    renewed.
    """
    cuts: list[tuple[Any, ...]] = []
    looks = 0

    async def cut(beside: Any, *, thread: int, older_than_s: float) -> None:
        cuts.append((beside, thread, older_than_s))
        if len(cuts) == 1:
            raise OSError("no connection to be had")

    class Host:
        thread = 7
        kept_s = 4.9

        @property
        def stalled_s(self) -> float:
            nonlocal looks
            looks += 1
            return self.kept_s

    monkeypatch.setattr(heartbeat_thread_module, "abort_stalled", cut)
    heartbeat_thread = HeartbeatThread(
        virtual_database.session_factory, renew_timeout=timedelta(seconds=5)
    )
    heartbeat_thread.monitor = host = Host()  # type: ignore[assignment]
    keeping = asyncio.create_task(heartbeat_thread._abort_stalled())
    await asyncio.sleep(10.5)
    assert (cuts, looks) == ([], 10), "once for all pipelines"
    host.kept_s = 5.0
    await asyncio.sleep(2)
    assert cuts == [(heartbeat_thread.sessions.connect, 7, 5.0)] * 2, "also after one that failed"
    keeping.cancel()
    await asyncio.wait({keeping})


@pytest.mark.parametrize("apart", [True, False])
@virtual_time
async def test_an_idle_pipeline_has_no_timers(
    virtual_database: TemporaryDatabase, *, apart: bool
) -> None:
    """Hundreds of idle pipelines would keep a core busy with looking at nothing."""
    await add(virtual_database)
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        if apart:
            steps.run.heartbeater.thread = OtherSide(replica(virtual_database))  # type: ignore[assignment]
        heartbeater = steps.run.heartbeater
        loops = [asyncio.create_task(loop()) for loop in (heartbeater.run, heartbeater.watch)]
        await turns()
        loop: Any = asyncio.get_running_loop()
        assert [timer for timer in loop._scheduled if not timer.cancelled()] == []
        await add(virtual_database, Volume())
        await steps.fetch_once()
        await asyncio.sleep(100)
        [item] = steps.queued
        assert item.is_trusted()
        for one in loops:
            one.cancel()
        await asyncio.wait(loops)


@virtual_time
async def test_a_renewed_lease_is_told_to_row_and_ticket_alike(
    virtual_database: TemporaryDatabase,
) -> None:
    """Over there a renewal would be written that its holder never hears of."""
    async with beating(virtual_database) as (steps, _, _heartbeater):
        await asyncio.sleep(20)
        await turns()
        [item] = steps.queued
        assert (
            await read(virtual_database, Volume(id=item.id))
        ).lock_expires_at == item.lock_expires_at
