"""The kill comes at the right moment, and hits the right one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from rowlock.demo.database import address_in, tables_at
from rowlock.demo.display import PlainDisplay
from rowlock.demo.play import DemoRun
from rowlock.demo.processes import replicas_on


async def test_idle_replicas_are_let_go(tmp_path: Path) -> None:
    """The kill would show no recovery, or a replica would stay frozen for good."""
    address = address_in(tmp_path, None)
    async with (
        tables_at(address, keep=False) as engine,
        replicas_on(address, tmp_path, count=2, files=tmp_path) as both,
    ):
        play = DemoRun(engine, both, [], PlainDisplay())
        assert not await play.kill_one()
        assert play.kill is None
        assert await both[0].ask("a")
        assert await both[1].ask("b")


async def test_replica_at_work_is_killed_unless_it_is_the_last(tmp_path: Path) -> None:
    """The row that the dead one held could not be shown to be recovered, or nobody would be left to recover it."""
    address = address_in(tmp_path, None)
    pipe = tmp_path / "pipe"  # a file whose reader waits until somebody writes: work that does not end
    os.mkfifo(pipe)
    async with (
        tables_at(address, keep=False) as engine,
        replicas_on(address, tmp_path, count=2, files=tmp_path) as both,
    ):
        play = DemoRun(engine, both, [], PlainDisplay())
        assert await both[0].ask("pipe")
        writer = await asyncio.to_thread(pipe.open, "wb")  # it is open once a replica has begun to read
        assert await play.kill_one()
        assert play.kill is not None
        assert not play.kill.replica.is_alive
        assert [start.token for start in play.kill.replica.journal().starts] == list(play.kill.leased)
        await asyncio.to_thread(writer.close)

        writer = await asyncio.to_thread(pipe.open, "wb")  # the other one has taken over
        assert not await play.kill_one()
        await asyncio.to_thread(writer.close)
