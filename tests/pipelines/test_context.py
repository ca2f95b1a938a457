"""What the actors of a pipeline have in common: failures, tasks in the background."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rowlock.errors import TransactionTimeout
from rowlock.pipelines.attempt import Attempt, Ended
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import VolumePipeline
from .scenes import add, now, turns


@virtual_time
async def test_failures_are_noted_until_the_loop_succeeds(
    virtual_database: TemporaryDatabase,
) -> None:
    """A pipeline would look ill for ever, or well after half a recovery."""
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        failures = steps.run.context.failures
        failures.failed("fetcher", "no")
        failures.failed("fetcher", "still no")
        failures.failed("heartbeater", "neither")
        assert failures.errors == {"fetcher": "still no", "heartbeater": "neither"}
        assert failures.in_a_row == {"fetcher": 2, "heartbeater": 1}
        failures.succeeded("loader")
        failures.succeeded("fetcher")
        assert failures.errors == {"heartbeater": "neither"}
        assert failures.in_a_row == {"heartbeater": 1}
        failures.succeeded("heartbeater")
        assert (failures.errors, failures.in_a_row) == ({}, {})


@virtual_time
async def test_a_drain_waits_for_what_runs_in_the_background(
    virtual_database: TemporaryDatabase,
) -> None:
    """Rows that are being released would stay locked when the process ends."""
    done: list[float] = []

    async def work() -> None:
        await asyncio.sleep(5)
        done.append(now())

    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        steps.run.context.background.begin(work(), purpose="test")
        assert len(steps.run.context.background) == 1
    assert len(done) == 1
    assert len(steps.run.context.background) == 0


@virtual_time
async def test_what_was_left_behind_is_forgotten_when_it_ends(
    virtual_database: TemporaryDatabase,
) -> None:
    """Memory would fill with attempts that ended long ago, and health never be good again."""
    gates = [asyncio.Event(), asyncio.Event()]

    def stubborn(gate: asyncio.Event) -> Attempt:
        async def call() -> None:
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    continue

        return Attempt(call, timeout_s=1, grace_s=1)

    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        calls = steps.run.context.calls
        attempts = [stubborn(gate) for gate in gates]
        assert (
            await asyncio.gather(*(attempt.run() for attempt in attempts)) == [Ended.ABANDONED] * 2
        )
        calls.abandon(attempts[0])
        assert calls.abandoned() == [attempts[0]]
        gates[0].set()
        await turns()
        calls.abandon(attempts[1])
        assert calls.abandoned() == [attempts[1]]
        gates[1].set()
        await turns()
        assert calls.abandoned() == []


@virtual_time
async def test_transactions_are_bounded(virtual_database: TemporaryDatabase) -> None:
    """A database that does not answer would hold an actor for ever."""
    await add(virtual_database)

    async def work(session: Any, connection: Any) -> None:
        await asyncio.Event().wait()

    async with stepping(
        virtual_database.session_factory, VolumePipeline(database_timeout=7)
    ) as steps:
        began_at = now()
        with pytest.raises(TransactionTimeout, match="wait for nothing"):
            await steps.run.context.transact(work, purpose="wait for nothing")
        assert now() == pytest.approx(began_at + 7, abs=0.1)
