"""Tests of cancellation: at whichever await a drain meets an attempt, it knows what the row is,
and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from rowlock import PipelineItem
from rowlock.dispatch import (
    COMPLETED,
    PENDING,
    AttemptEvent,
    Completed,
    DispatchPipeline,
    Progress,
    StageDone,
    Task,
)
from rowlock.dispatch.attempt import Scratch
from rowlock.testing import Steps, TemporaryDatabase, stepping

from ..cancellation.cancelling import Canceller, background_ends, cancelled_at
from ..lengths import at_length
from .renders import Fleet, Render, one_render, submit

pytestmark = pytest.mark.either_database

SUSPENSIONS_MAX = 500
SUSPENSIONS_MIN = 15
"""So many an attempt has at least; fewer, and the sweep is no sweep."""


async def speaks(task: Task[Render]) -> AsyncIterator[AttemptEvent]:
    await asyncio.sleep(0)
    yield StageDone("raw", task.row.scene)
    yield Progress("half")
    yield Completed({"url": "url"})


async def one_attempt(
    steps: Steps[Render], pipeline: DispatchPipeline[Render], canceller: Canceller
) -> tuple[PipelineItem[Render], Any]:
    """Make an attempt at the only row, cancelled as `canceller` says; return its item and what
    came of it, if anything.
    """
    [item] = await steps.fetch_once()
    assert await steps.run.workers[0]._loader.load(item)
    outcomes: list[Any] = []

    async def attempt() -> None:
        outcomes.append(await pipeline.process(item))

    await cancelled_at(attempt, canceller)
    if (follows := item.after_settling) is not None:
        steps.run.context.background.begin(follows(), purpose="what follows")
    return item, next(iter(outcomes), None)


@pytest.mark.parametrize("times", [1, 2])
async def test_at_each_await_of_an_attempt(
    database: TemporaryDatabase, times: int, tmp_path: Path
) -> None:
    """A row would show as running while nobody has it; a worker would stay busy, or a folder
    stay behind.
    """
    fleet, root = Fleet(1), tmp_path / "scratch"
    root.mkdir()
    pipeline = DispatchPipeline(Render, handler=speaks, engine=fleet, scratch_root=root)
    # What is cancelled twice is struck at the next await, too.
    for at in range(0, SUSPENSIONS_MAX, at_length(2, 1)):
        async with database.session_factory.begin() as session:
            await session.execute(delete(Render))
        await submit(database, pipeline, "a")
        before, canceller = asyncio.all_tasks(), Canceller(at, times)
        async with stepping(database.session_factory, pipeline) as steps:
            item, outcome = await one_attempt(steps, pipeline, canceller)
            await background_ends(before)
            row = await one_render(database)
        if outcome is not None:
            assert outcome.values["status"] in (PENDING, COMPLETED), at
            # It is written only if the row is still what the attempt took it for.
            assert (item.row.status, item.row.stages) == (row.status, row.stages), at
        assert (fleet.running, fleet.workers()["worker-1"].active) == (0, 0), at
        assert os.listdir(root) == [], at  # noqa: PTH208
        if not canceller.struck:
            break
    assert at > SUSPENSIONS_MIN


async def test_a_folder_that_is_being_made(tmp_path: Path) -> None:
    """Each drain would leave folders behind that nobody knows of."""

    scratch = Scratch(tmp_path)

    async def work() -> None:
        async with scratch.folder():
            await asyncio.sleep(0)

    at, struck = 0, True
    while struck:
        before = asyncio.all_tasks()
        struck = await cancelled_at(work, Canceller(at, 1))
        await background_ends(before)
        assert os.listdir(tmp_path) == [], at  # noqa: PTH208
        at += 1
    assert at > 2
