"""Replicas as processes: the right one is killed, and none is left behind."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from rowlock.demo.host import Document
from rowlock.demo.run import kill_busiest, replicas_on, tables_in


async def insert(engine: AsyncEngine, path: str) -> None:
    async with AsyncSession(engine) as session, session.begin():
        session.add(Document(path=path))


async def test_replica_at_work_is_killed_unless_it_is_the_last(tmp_path: Path) -> None:
    """The kill would show no recovery, or no replica would be left to recover the row."""
    # a file whose reader waits until a writer ends: work that does not end
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with (
        tables_in(tmp_path) as engine,
        replicas_on(tmp_path, scratch=tmp_path, count=2) as both,
    ):
        assert not await kill_busiest(both), "neither holds a row"
        await insert(engine, "pipe")
        # it is open once a replica has begun to read
        writer = await asyncio.to_thread(pipe.open, "wb")
        assert await kill_busiest(both)
        assert sorted(replica.is_alive for replica in both) == [False, True]
        await asyncio.to_thread(writer.close)

        writer = await asyncio.to_thread(pipe.open, "wb")  # the other one has taken over
        assert not await kill_busiest(both)
        await asyncio.to_thread(writer.close)


async def test_replicas_end_on_every_path(tmp_path: Path) -> None:
    """A demo that fails, or that is itself killed, would leave processes behind."""
    async with tables_in(tmp_path):
        context = replicas_on(tmp_path, scratch=tmp_path, count=2)
        first, second = await context.__aenter__()
        await first.end()  # closes its standard input, as the end of the parent does
        assert first.process.returncode == 0
        assert second.is_alive
        assert not await context.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
        assert not second.is_alive


async def test_replica_that_cannot_start_shows_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason would lie in a file that has been removed already."""
    monkeypatch.setattr(sys, "executable", "/bin/ls")
    with pytest.raises(ChildProcessError, match=r"did not start(?s:.*)rowlock.demo.host"):
        async with replicas_on(tmp_path, scratch=tmp_path, count=1):
            pass
