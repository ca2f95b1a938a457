"""A process that forks: each child is a replica of its own, and what does not run there is told."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX, Base
from .test_history import history_of, make_tables

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


async def forked(database: TemporaryDatabase, how: str) -> tuple[list[dict[str, Any]], str]:
    """Run a server that forks; return what its processes say, and what they log."""
    await make_tables(database)
    await database.create_tables(Base.metadata)
    url = database.url.render_as_string(hide_password=False)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-m", "tests.insight.forking", how, url),
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
    return [json.loads(line) for line in out.decode().splitlines()], err.decode()


async def test_what_was_made_before_the_fork_is_each_child_s_own(
    database: TemporaryDatabase,
) -> None:
    """Replicas of a server that loads its app once would all have the name of their parent, or one
    history, or a dashboard that cannot be asked.
    """
    told, log = await forked(database, "preloaded")
    assert [(one["status"], one["is_shown"]) for one in told] == [(200, True), (200, True)]
    assert [one["name"].rpartition(":")[2] for one in told] == [str(one["pid"]) for one in told]
    assert {(entry.row_id, entry.replica) for entry in await history_of(database)} == {
        ("1", told[0]["mark"]),
        ("2", told[1]["mark"]),
    }
    assert "was forked" not in log


async def test_a_child_without_an_observer_is_told(database: TemporaryDatabase) -> None:
    """What becomes of rows in a child would be kept for a writer that does not run there, without a
    word; or be written by parent and child.
    """
    [child], log = await forked(database, "running")
    assert child["kept"] == 0
    assert log.count("This process was forked from one that has an Observer") == 1
    entries = [
        (entry.row_id, entry.replica == child["mark"]) for entry in await history_of(database)
    ]
    assert sorted(entries) == [("1", False), ("3", True)]
