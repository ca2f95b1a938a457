"""Tests of the end: attempts get their grace, then they are cancelled, and what was not done is
done elsewhere.
"""

from __future__ import annotations

import asyncio

from rowlock import PipelineManager
from rowlock.dispatch import COMPLETED, PENDING, RUNNING, DispatchPipeline
from rowlock.testing import TemporaryDatabase, virtual_time

from .renders import Fleet, Render, Scenes, all_renders, one_render, settled, submit


@virtual_time
async def test_attempts_have_their_grace(virtual_database: TemporaryDatabase) -> None:
    """Every deployment would throw away what is nearly done."""
    fleet = Fleet(1)
    renders = DispatchPipeline(Render, handler=Scenes(20), engine=fleet)
    manager = PipelineManager(virtual_database.session_factory, [renders])
    manager.start()
    await submit(virtual_database, renders, "a", "b")
    await asyncio.sleep(5)
    await manager.drain(60)
    rows = {row.dedup_key: row for row in await all_renders(virtual_database)}
    assert sorted(row.status for row in rows.values()) == [COMPLETED, PENDING]
    assert fleet.running == 0


@virtual_time
async def test_what_is_not_done_by_then_is_done_elsewhere_at_once(
    virtual_database: TemporaryDatabase,
) -> None:
    """A row would show as running while nobody runs it, and wait for a lease to expire."""
    first, second = Fleet(1), Fleet(1)
    renders = DispatchPipeline(Render, handler=Scenes(600), engine=first)
    manager = PipelineManager(virtual_database.session_factory, [renders])
    manager.start()
    await submit(virtual_database, renders, "a")
    await asyncio.sleep(5)
    assert (await one_render(virtual_database)).status == RUNNING
    await manager.drain(10)
    row = await one_render(virtual_database)
    assert (row.status, row.lock_token, row.losses) == (PENDING, None, 0)
    assert first.running == 0
    heir = DispatchPipeline(Render, handler=Scenes(), engine=second)
    async with PipelineManager(virtual_database.session_factory, [heir]):
        async with asyncio.timeout(15):
            [row] = await settled(virtual_database)
    assert row.status == COMPLETED
