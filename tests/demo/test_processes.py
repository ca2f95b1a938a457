"""Replicas as processes: none outlives its parent, and a dead one is no riddle."""

from __future__ import annotations

from asyncio.subprocess import Process
from pathlib import Path

import pytest

from rowlock.demo import processes
from rowlock.demo.database import Address, address_in, tables_at
from rowlock.demo.processes import replicas_on


async def test_replicas_end_on_every_path(tmp_path: Path) -> None:
    """A demo that fails would leave processes behind."""
    address = address_in(tmp_path, None)
    async with tables_at(address, keep=False):
        context = replicas_on(address, tmp_path, count=2, files=tmp_path)
        replicas = await context.__aenter__()
        assert all(replica.is_alive for replica in replicas)
        assert not await context.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
        assert not any(replica.is_alive for replica in replicas)


async def test_replica_ends_with_its_input(tmp_path: Path) -> None:
    """A parent that was itself killed would leave its replicas behind."""
    address = address_in(tmp_path, None)
    async with tables_at(address, keep=False), replicas_on(address, tmp_path, count=1, files=tmp_path) as replicas:
        await replicas[0].end()
        assert replicas[0].process.returncode == 0
        assert not replicas[0].was_killed


async def test_replica_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    """The reason would lie in a file that has been removed already."""
    nowhere = Address("nonsense://nothing")
    with pytest.raises(ChildProcessError, match=r"did not start(?s:.*)nonsense"):
        async with replicas_on(nowhere, tmp_path, count=1, files=tmp_path):
            pass


async def test_replica_killed_while_it_starts_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill by hand would be forgiven at any moment but this one."""
    honest_start = processes._start

    async def start_and_kill(log_path: Path) -> Process:
        process = await honest_start(log_path)
        if log_path.name == "replica-1.log":
            process.kill()
        return process

    monkeypatch.setattr(processes, "_start", start_and_kill)
    address = address_in(tmp_path, None)
    async with tables_at(address, keep=False), replicas_on(address, tmp_path, count=2, files=tmp_path) as replicas:
        assert [replica.is_alive for replica in replicas] == [False, True]


async def test_asking_a_dead_replica_is_no_failure(tmp_path: Path) -> None:
    """A replica that somebody kills would end the demo, instead of its file being taken elsewhere."""
    address = address_in(tmp_path, None)
    async with tables_at(address, keep=False), replicas_on(address, tmp_path, count=1, files=tmp_path) as replicas:
        await replicas[0].kill()
        assert replicas[0].was_killed
        assert not await replicas[0].ask("a")


async def test_file_asked_for_twice_is_taken_once(tmp_path: Path) -> None:
    """A client that had no answer and asked again would have its file in the catalogue twice, or stop the replica."""
    address = address_in(tmp_path, None)
    async with tables_at(address, keep=False), replicas_on(address, tmp_path, count=1, files=tmp_path) as replicas:
        assert await replicas[0].ask("a")
        assert await replicas[0].ask("a")
        assert len(replicas[0].journal().hinted) == 1
