"""Replicas as processes: one is killed at work, and none is left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from rowlock.demo.host import NEW, Document
from rowlock.demo.run import kill_at_work, replicas_on, tables_in


async def test_replica_is_killed_while_it_has_a_row(tmp_path: Path) -> None:
    """The kill would show no recovery, or no replica would be left to recover the row."""
    async with (
        tables_in(tmp_path) as engine,
        replicas_on(tmp_path, scratch=tmp_path, count=2) as both,
    ):
        await kill_at_work(engine, both, ["one"])
        assert sorted(replica.is_alive for replica in both) == [False, True]
        async with engine.connect() as connection:
            row = (await connection.execute(select(Document))).one()
        assert (row.path, row.status) == ("one", NEW)
        assert row.lock_token is not None


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
