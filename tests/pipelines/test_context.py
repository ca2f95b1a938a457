"""Tests of what the actors of a pipeline have in common: notes of failures, tasks in the background, what was left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rowlock.errors import TransactionTimeout
from rowlock.pipelines.host_code.call import Attempt, Ended
from rowlock.pipelines.host_code.deadlines import Deadlines
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import VolumePipeline
from .scenes import add, now, turns


@virtual_time
async def test_failures_are_noted_until_the_loop_succeeds(virtual_database: TemporaryDatabase) -> None:
    """A pipeline would look ill for ever, or well after half a recovery."""
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        context = steps.run.context
        context.failed("fetcher", "no")
        context.failed("fetcher", "still no")
        context.failed("heartbeater", "neither")
        assert context.errors == {"fetcher": "still no", "heartbeater": "neither"}
        assert context.failures == {"fetcher": 2, "heartbeater": 1}
        context.succeeded("loader")
        context.succeeded("fetcher")
        assert context.errors == {"heartbeater": "neither"}
        assert context.failures == {"heartbeater": 1}
        context.succeeded("heartbeater")
        assert (context.errors, context.failures) == ({}, {})


@virtual_time
async def test_a_drain_waits_for_what_runs_in_the_background(virtual_database: TemporaryDatabase) -> None:
    """Rows that are being released would stay locked when the process ends."""
    done: list[float] = []

    async def work() -> None:
        await asyncio.sleep(5)
        done.append(now())

    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        steps.run.context.in_background(work(), purpose="test")
        assert [task.get_name() for task in steps.run.context.background] == ["rowlock: test"]
    assert len(done) == 1
    assert steps.run.context.background == set()


@virtual_time
async def test_what_was_left_behind_is_forgotten_when_it_ends(virtual_database: TemporaryDatabase) -> None:
    """Memory would fill with attempts that ended long ago, and health never be good again."""
    gates = [asyncio.Event(), asyncio.Event()]

    def stubborn(gate: asyncio.Event) -> Attempt:
        async def call() -> None:
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    continue

        return Attempt(call, deadlines=Deadlines(1), grace_s=1)

    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        context = steps.run.context
        attempts = [stubborn(gate) for gate in gates]
        assert await asyncio.gather(*(attempt.run() for attempt in attempts)) == [Ended.ABANDONED] * 2
        context.abandon(attempts[0])
        assert context.still_abandoned() == [attempts[0]]
        gates[0].set()
        await turns()
        context.abandon(attempts[1])
        assert context.abandoned == [attempts[1]]
        gates[1].set()
        await turns()
        assert context.still_abandoned() == []


@virtual_time
async def test_transactions_are_bounded(virtual_database: TemporaryDatabase) -> None:
    """A database that does not answer would hold an actor for ever."""
    await add(virtual_database)

    async def work(session: Any, connection: Any) -> None:
        await asyncio.Event().wait()

    async with stepping(virtual_database.session_factory, VolumePipeline(database_timeout=7)) as steps:
        began_at = now()
        with pytest.raises(TransactionTimeout, match="wait for nothing"):
            await steps.run.context.transact(work, purpose="wait for nothing")
        assert now() == pytest.approx(began_at + 7, abs=0.1)
