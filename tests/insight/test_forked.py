"""A process that forks: each child is a replica of its own, and what does not run there is told."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX, Base
from .test_history import history_of, make_tables

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


async def test_each_child_is_a_replica_of_its_own(database: TemporaryDatabase) -> None:
    """Replicas of a server that loads its app once would all have the name of their parent, or one
    history, or a dashboard that cannot be asked. And where a process forks while its Observer runs,
    what becomes of rows in the child would be kept for a writer that does not run there, without a
    word; or be written by parent and child.
    """
    await make_tables(database)
    await database.create_tables(Base.metadata)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-m", "tests.insight.forking"),
        database.url.render_as_string(hide_password=False),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(HANG_S_MAX):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert process.returncode == 0, err.decode()
    *preloaded, child = [json.loads(line) for line in out.decode().splitlines()]
    assert [(one["status"], one["is_shown"]) for one in preloaded] == [(200, True), (200, True)]
    assert [one["name"].rpartition(":")[2] for one in preloaded] == [
        str(one["pid"]) for one in preloaded
    ]
    assert child["kept"] == 0
    assert err.decode().count("This process was forked from one that has an Observer") == 1
    entries = await history_of(database)
    by = {entry.row_id: entry.replica for entry in entries}
    assert len(entries) == len(by)
    parent = by.pop("3")
    assert by == {"1": preloaded[0]["mark"], "2": preloaded[1]["mark"], "5": child["mark"]}
    assert parent not in by.values()
