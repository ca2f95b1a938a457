"""The crash matrix: submit, accept, stage done and complete, each cut at boundaries of statements
(each fifth of an attempt by default), or killed at every await.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock import PipelineManager
from rowlock.dispatch import (
    COMPLETED,
    AttemptEvent,
    Completed,
    DispatchPipeline,
    Progress,
    StageDone,
    Task,
)
from rowlock.testing import Failpoints, TemporaryDatabase, crash_everywhere, virtual_time
from rowlock.testing.failpoints import lose_connection

from ..lengths import at_length
from .renders import Fleet, Render, Scenes, all_renders, settled, submit

BOUNDARIES_MIN = 12
"""As many boundaries an attempt has at least; fewer, and the sweep is no sweep."""
EVERY = at_length(9, 1)
"""Each fifth boundary of an attempt is on either side of a statement in turn."""


class Store:
    """What is outside: pictures by name; to store one twice is to store it once."""

    def __init__(self) -> None:
        self.fleet = Fleet(1)
        self.pictures: dict[str, str] = {}
        self.stored: Counter[str] = Counter()

    async def put(self, name: str, picture: str) -> None:
        await asyncio.sleep(0)
        self.pictures[name] = picture
        self.stored[name] += 1

    async def render(self, task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        if not task.is_done("raw"):
            await self.put("raw", task.row.scene)
            yield StageDone("raw", "raw")
        yield Progress("half")
        await self.put("url", task.row.scene)
        yield Completed({"url": "url"})

    def pipeline(self, **settings: Any) -> DispatchPipeline[Render]:
        """Return a new pipeline with a worker of its own."""
        self.fleet = Fleet(1)
        return DispatchPipeline(
            Render, handler=self.render, engine=self.fleet, max_losses=100, **settings
        )


@pytest.mark.either_database
async def test_killed_at_every_await(rowlock_database_with_clock: TemporaryDatabase) -> None:
    """A replica that dies between two steps would leave the row, or the world, in another state."""
    moments = await crash_everywhere(
        rowlock_database_with_clock,
        row=lambda: Render(dedup_key="a", scene="a"),
        world=Store,
        build=Store.pipeline,
        effects=lambda store: store.pictures,
        until=lambda row: row.status == COMPLETED,
        ignore=["losses"],
    )
    assert moments > BOUNDARIES_MIN


@virtual_time
async def test_cut_at_boundaries_of_an_attempt(virtual_database: TemporaryDatabase) -> None:
    """A connection that is lost at the wrong moment would lose the row, or do a recorded stage
    again.
    """
    boundary = 0
    while True:
        store = Store()
        key = f"scene-{boundary:03}"
        renders = store.pipeline(lock_timeout=6, heartbeat_trigger=3, heartbeat=2)
        await submit(virtual_database, renders, key)
        engine = virtual_database.create_engine()
        with Failpoints(engine, at=boundary, act=lose_connection) as points:
            async with PipelineManager(async_sessionmaker(engine), [renders]):
                await settled(virtual_database)
        row = next(row for row in await all_renders(virtual_database) if row.dedup_key == key)
        assert (row.status, row.url, row.error) == (COMPLETED, "url", None), points.reached
        assert store.stored["raw"] == 1, points.reached
        # Nor is an attempt given up that has only not heard what became of its own writes.
        assert (store.fleet.begun[key], row.losses) == (1, 0), points.reached
        assert renders.statistics().counters["changed"] == 0, points.reached
        if points.reached is None:
            break
        boundary += EVERY
    assert boundary > BOUNDARIES_MIN


async def test_cut_at_every_boundary_of_a_submission(database: TemporaryDatabase) -> None:
    """A client that asks again after an error would get two rows, or none."""
    renders = DispatchPipeline(Render, handler=Scenes(), engine=Fleet())
    boundary = 0
    while True:
        key = f"scene-{boundary:03}"
        with Failpoints(database.engine, at=boundary, act=lose_connection) as points:
            try:
                await submit(database, renders, key)
            except ConnectionResetError:
                assert points.reached is not None
        await database.engine.dispose()
        was_there = [row.dedup_key for row in await all_renders(database)].count(key)
        [(_, fresh)] = await submit(database, renders, key)
        rows = [row for row in await all_renders(database) if row.dedup_key == key]
        assert len(rows) == 1, points.reached
        assert fresh == (was_there == 0), points.reached
        if points.reached is None:
            break
        boundary += 1
    assert boundary >= 6
