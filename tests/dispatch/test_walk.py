"""The walk of a submission through the wing: in, accepted, run, done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from rowlock import PipelineManager
from rowlock.dispatch import (
    COMPLETED,
    AttemptEvent,
    Completed,
    DispatchPipeline,
    LoopEngine,
    Progress,
    StageDone,
    Task,
)
from rowlock.testing import TemporaryDatabase, virtual_time

from .renders import Base, Render, all_renders


async def render(task: Task[Render]) -> AsyncIterator[AttemptEvent]:
    (task.workdir / "raw").write_text(task.row.scene)
    yield StageDone("raw", "raw-1")
    yield Progress("half")
    yield Completed({"url": f"https://pictures/{task.row.scene}"})


@virtual_time
async def test_a_submission_is_done(virtual_database: TemporaryDatabase) -> None:
    """Nothing at all would work."""
    await virtual_database.create_tables(Base.metadata)
    renders = DispatchPipeline(Render, handler=render, engine=LoopEngine(2))
    async with PipelineManager(virtual_database.session_factory, [renders]):
        async with virtual_database.session_factory() as session:
            rows = [
                await renders.submit(session, dedup_key=f"scene:{n % 3}", scene=f"s{n % 3}")
                for n in range(4)
            ]
            await session.commit()
        renders.hint()
        assert [fresh for _, fresh in rows] == [True, True, True, False]

        async def done() -> bool:
            return all(row.status == COMPLETED for row in await all_renders(virtual_database))

        for _ in range(100):
            if await done():
                break
            await asyncio.sleep(1)
    for row in await all_renders(virtual_database):
        assert row.url == f"https://pictures/{row.scene}"
    assert renders.engine.workers()["loop-1"].active == 0
