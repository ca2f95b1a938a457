"""Rows whose holders die: many that are lost at once say nothing of one of them."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline
from .scenes import add, read_all

ROWS = 12
MAX_DEATHS = 2
KILLER = 7
LAUNCHES_MAX = 12
KILLS = """
import asyncio, os, sys
from rowlock import Apply, PipelineManager
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from tests.host import Run, RunPipeline

async def work(item):
    if item.id == int(sys.argv[2]):
        os._exit(9)
    await asyncio.sleep(0.02)
    return Apply({"status": "done"})

async def main():
    sessions = async_sessionmaker(create_async_engine(sys.argv[1]))
    left = select(func.count()).where(Run.status == "queued", Run.parked_at.is_(None))
    pipeline = RunPipeline(answer=work, workers_num=30, max_deaths=1)
    async with PipelineManager(sessions, [pipeline]):
        while True:
            async with sessions() as session:
                if not await session.scalar(left):
                    return
            await asyncio.sleep(0.02)

asyncio.run(main())
"""


async def _end_leases(database: TemporaryDatabase) -> None:
    past = datetime.now(UTC) - timedelta(hours=1)
    async with database.session_factory.begin() as session:
        leased = update(Run).where(Run.lock_token.is_not(None))
        await session.execute(leased.values(lock_expires_at=past))


async def _lose(database: TemporaryDatabase, rows: int, *, at_once: int) -> list[Any]:
    async with stepping(
        database.session_factory, RunPipeline(max_deaths=MAX_DEATHS, workers_num=ROWS)
    ) as steps:
        items: list[Any] = []
        while len(items) < rows:
            items += await steps.fetch_once(at_once)
        # A replica that dies releases nothing.
        for item in steps.run.context.queue.close():
            steps.run.heartbeater.untrack([item])
    await _end_leases(database)
    return items


@pytest.mark.parametrize("claimed_at_once", [ROWS, 1])
async def test_rows_that_end_with_many_others_are_not_parked_for_it(
    database: TemporaryDatabase, claimed_at_once: int
) -> None:
    """The end of many rows of one replica says nothing of one of them: it is no attempt of theirs,
    and yet `process` learns that its last holder died.
    """
    await add(database, *(Run() for _ in range(ROWS)))
    for _ in range(MAX_DEATHS + 1):
        await _lose(database, ROWS, at_once=claimed_at_once)
    done = RunPipeline(max_deaths=MAX_DEATHS, workers_num=ROWS)
    async with stepping(database.session_factory, done) as steps:
        await steps.fetch_once()
        for _ in range(ROWS):
            await steps.work_once()
    assert {row.status for row in await read_all(database, Run)} == {"done"}
    assert {item.prev_lock_expired for item in done.items} == {True}


async def test_a_row_that_dies_alone_is_parked(database: TemporaryDatabase) -> None:
    """A replica that lost few rows lost them over one of these: each death is an attempt, and at
    `max_deaths` the row is parked unrun.
    """
    await add(database, Run())
    attempts = [(await _lose(database, 1, at_once=1))[0].attempt for _ in range(MAX_DEATHS)]
    assert attempts == [1, 2], "the second claim has found one death"
    last = RunPipeline(max_deaths=MAX_DEATHS)
    async with stepping(database.session_factory, last) as steps:
        await steps.fetch_once()
        await steps.work_once()
    [row] = await read_all(database, Run)
    assert (row.last_error, last.items) == ("gave up: 2 holders in a row died over this row", [])


@pytest.mark.either_database
async def test_a_row_that_kills_its_process_is_found_among_many(
    database: TemporaryDatabase,
) -> None:
    """It is tried alone in the end, and parked; all others are done."""
    await add(database, *(Run() for _ in range(ROWS)))
    url = database.url.render_as_string(hide_password=False)
    for _ in range(LAUNCHES_MAX):
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", KILLS, url, str(KILLER)), cwd=Path(__file__).parents[2]
        )
        try:
            code = await child.wait()
        finally:
            if child.returncode is None:
                child.kill()
        if code == 0:
            break
        assert code == 9
        await _end_leases(database)
    rows = {row.id: row for row in await read_all(database, Run)}
    killer = rows.pop(KILLER)
    assert killer.parked_at is not None
    assert "alone" in str(killer.last_error)
    assert {row.status for row in rows.values()} == {"done"}
