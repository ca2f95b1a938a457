"""What is cancelled in these tests: each act sets its scene, gives what is to be cancelled, and
tidies up as a host does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import Apply, PipelineItem, PipelineManager, hold_rows
from rowlock.pipelines.settler import Settler, release_items
from rowlock.pipelines.writer import PendingOutcome
from rowlock.testing import Steps, stepping

from ..host import Attachment, Volume, VolumePipeline
from ..pipelines.related_scenes import GatheringPipeline, write_all

Sessions: TypeAlias = async_sessionmaker[AsyncSession]
Work: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]
Act: TypeAlias = Callable[[Sessions], AbstractAsyncContextManager[Work]]

SETTINGS: dict[str, Any] = {"workers_num": 2, "cancel_grace": 1, "database_timeout": 5}


@asynccontextmanager
async def claim(sessions: Sessions) -> AsyncIterator[Work]:
    """Claim and queue rows."""
    async with stepping(sessions, VolumePipeline(**SETTINGS)) as steps:
        yield lambda: steps.run.fetcher.fetch_once(3)
        assert len(steps.queued) in {0, 2}
        assert len(steps.run.heartbeater) == len(steps.queued), (
            "rows were claimed that nobody knows of"
        )


@asynccontextmanager
async def process(sessions: Sessions) -> AsyncIterator[Work]:
    """Take an item through a worker: read its row, run the host's code, hand over the outcome."""
    async with _gathering(sessions) as (steps, item):
        yield lambda: steps.run.workers[0].work(item)


@asynccontextmanager
async def write_with_others(sessions: Sessions) -> AsyncIterator[Work]:
    """Write an outcome that may go with others."""
    async with _written(sessions, Apply({"status": "active"})) as work:
        yield work


@asynccontextmanager
async def write_alone(sessions: Sessions) -> AsyncIterator[Work]:
    """Write an outcome that brings its own statements."""

    async def also(session: AsyncSession, now: object) -> None:
        await session.execute(select(Volume.id))

    async with _written(sessions, Apply({"status": "active"}, also=also)) as work:
        yield work


@asynccontextmanager
async def renew(sessions: Sessions) -> AsyncIterator[Work]:
    """Renew leases."""
    always: dict[str, Any] = {"lock_timeout": 30, "heartbeat_trigger": 29.999}
    async with stepping(sessions, VolumePipeline(**SETTINGS | always)) as steps:
        await steps.fetch_once()
        await asyncio.sleep(0.002)  # one renewal is due a millisecond after the claim
        yield steps.beat_once
        assert len(steps.run.heartbeater) == len(steps.queued) == 2


@asynccontextmanager
async def drain(sessions: Sessions) -> AsyncIterator[Work]:
    """End a manager with work in hand. A host whose shutdown was cancelled drains once more."""
    all_run, running = asyncio.Event(), 0

    async def hang(item: PipelineItem[Any], rows: list[Any]) -> None:
        nonlocal running
        running += 1
        if running == SETTINGS["workers_num"]:
            all_run.set()
        await asyncio.Event().wait()

    manager = PipelineManager(sessions, [GatheringPipeline(then=hang, **SETTINGS)])
    manager.start()
    await all_run.wait()

    async def end() -> None:
        manager.shutdown()
        await manager.drain(0)

    yield end
    await manager.drain(0)


@asynccontextmanager
async def hold(sessions: Sessions) -> AsyncIterator[Work]:
    """Hold rows as a service does."""

    async def serve() -> None:
        async with hold_rows(sessions, Volume, ids, timeout=5):
            await asyncio.sleep(0)

    async with sessions() as session:
        ids = list(await session.scalars(select(Volume.id)))
    yield serve


@asynccontextmanager
async def lock_related(sessions: Sessions) -> AsyncIterator[Work]:
    """Lock related rows of an item, whose outcome is written whatever became of it."""
    async with _gathering(sessions) as (steps, item):
        yield lambda: item.lock_related(Attachment, Attachment.volume_id == item.id)
        await steps.run.workers[0].work(item)


@asynccontextmanager
async def _gathering(sessions: Sessions) -> AsyncIterator[tuple[Steps[Any], PipelineItem[Any]]]:
    async def then(item: PipelineItem[Any], rows: list[Any]) -> Apply:
        await asyncio.sleep(0)
        return write_all(item, rows)

    async with stepping(sessions, GatheringPipeline(then=then, **SETTINGS)) as steps:
        await steps.fetch_once(1)
        item = steps.run.context.queue.get()
        assert item is not None
        yield steps, item
        await steps.run.settler.wait_until_idle()


@asynccontextmanager
async def _written(sessions: Sessions, outcome: Apply) -> AsyncIterator[Work]:
    async with _gathering(sessions) as (steps, item):
        context = steps.run.context
        settler = Settler(context, steps.run.heartbeater)
        yield lambda: settler.write(PendingOutcome(item, outcome))
        # Whoever was to write it releases the row, if it was not written.
        await release_items(context, [item])
        steps.run.heartbeater.untrack([item])


ACTS: dict[str, Act] = {
    "claim": claim,
    "process": process,
    "write-with-others": write_with_others,
    "write-alone": write_alone,
    "renew": renew,
    "drain": drain,
    "hold": hold,
    "lock-related": lock_related,
}
