"""Replicas as processes: one is killed in the middle, another finishes, with no request."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rowlock.dispatch import COMPLETED, DispatchPipeline
from rowlock.testing import TemporaryDatabase

from ..walks.processes import Replica
from .renders import Fleet, Render, Scenes, settled, submit

pytestmark = pytest.mark.either_database

KEYS = [f"scene-{number:02}" for number in range(15)]
LINES_MAX = 1_000
"""More than a replica ever tells: whoever waits for so many hears all of it."""
LOOK_EVERY_S = 0.05


@asynccontextmanager
async def replica(database: TemporaryDatabase, *, workers: int) -> AsyncIterator[Replica]:
    """Give a replica that is ready; it is killed at the end, on every path."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("replica.py")),
        database.url.render_as_string(hide_password=False),
        str(workers),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    started = Replica(process, [])
    try:
        await started.wait_for("Ready")
        yield started
    finally:
        await started.end()


def submitter() -> DispatchPipeline[Render]:
    return DispatchPipeline(Render, handler=Scenes(), engine=Fleet(), max_active=15)


async def test_another_replica_finishes_what_a_dead_one_had_begun(
    database: TemporaryDatabase,
) -> None:
    """What was in hand when a machine died would wait for that machine; or two replicas would do
    the same work, or fail each other's.
    """
    async with replica(database, workers=2) as victim:
        await submit(database, submitter(), *KEYS)
        await victim.wait_for("Begun", times=3)
        async with replica(database, workers=2) as other:
            os.kill(victim.pid, signal.SIGKILL)
            await victim.wait_for_lines(LINES_MAX)
            rows = await settled(database, every_s=LOOK_EVERY_S)
            other.say_go_on()
            await other.wait_for("Done")
    assert [(row.status, row.error) for row in rows] == [(COMPLETED, None)] * 15
    begun = begun_by(victim, other)
    assert set(begun) == set(KEYS)
    assert begun.total() - 15 <= 2


def begun_by(*replicas: Replica) -> Counter[str]:
    """Return how often each key was begun, as far as the replicas could tell."""
    return Counter(line["key"] for by in replicas for line in by.told if line["event"] == "Begun")
