"""A flood of submissions from many clients at once: what was admitted is done once, everybody
else got a clean refusal.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock import AdmissionRejected, PipelineManager
from rowlock.dispatch import COMPLETED, AttemptEvent, Completed, DispatchPipeline, Task
from rowlock.dispatch.columns import ACTIVE
from rowlock.testing import TemporaryDatabase

from .renders import SETTLED_S_MAX, Base, Fleet, Render, settled

pytestmark = pytest.mark.either_database

CLIENTS = 50
SUBMISSIONS = 400
CEILING = 40
POOL = 10


async def test_a_flood(database: TemporaryDatabase) -> None:
    """Work would be lost or done twice; a client would get neither a row nor a refusal; or the
    ceiling would not hold.
    """
    await database.create_tables(Base.metadata)
    api = async_sessionmaker(
        database.create_engine(pool_size=POOL, max_overflow=0, pool_timeout=SETTLED_S_MAX),
        expire_on_commit=False,
    )
    fleet, gate = Fleet(20), asyncio.Event()

    async def render(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        await gate.wait()
        yield Completed()

    renders = DispatchPipeline(
        Render, handler=render, engine=fleet, max_active=CEILING, fetch_delays=(0.05, 0.1)
    )
    numbers, admitted, refused, most_active = (
        iter(range(SUBMISSIONS)),
        set[str](),
        Counter[str](),
        0,
    )

    async def client() -> None:
        nonlocal most_active
        for number in numbers:
            key = f"scene-{number:04}"
            async with api() as session:
                try:
                    _, fresh = await renders.submit(session, dedup_key=key, scene=key)
                except AdmissionRejected:
                    refused[key] += 1
                    if refused.total() >= 2 * CEILING:
                        gate.set()
                    continue
                assert fresh
                await session.commit()
                admitted.add(key)
                active = select(func.count()).select_from(Render).where(Render.status.in_(ACTIVE))
                most_active = max(most_active, await session.scalar(active) or 0)
            renders.hint()

    async with PipelineManager(database.session_factory, [renders]):
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        rows = await settled(database, every_s=0.05)
    assert len(admitted) + refused.total() == SUBMISSIONS
    assert refused.total() >= 2 * CEILING
    assert {row.dedup_key for row in rows} == admitted
    assert {(row.status, row.error) for row in rows} == {(COMPLETED, None)}
    assert set(fleet.begun.values()) == {1}
    # As many may be too many as submit at once, less one, and here that is as many as there are
    # connections.
    too_many_max = POOL - 1 if database.dialect_name == "postgresql" else 0
    assert most_active <= CEILING + too_many_max
