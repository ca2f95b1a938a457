"""What an item costs in memory, queued and running, by ``tracemalloc``; beside it one row as
SQLAlchemy loads it.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

from host import Asleep, Host, Job
from measure import Figures, Place, Scale, until
from sqlalchemy import select

from rowlock import PipelineManager

WORKERS = 10


async def memory(place: Place, scale: Scale) -> Figures:
    """Return bytes per queued item, per running item with its worker, and per loaded row."""
    count = scale.pick(5_000, 1_000)
    tracemalloc.start()
    try:
        row = await _loaded(place, count)
        queued = await _held(place, count, workers=WORKERS)
        running = await _held(place, count, workers=count)
        worker = await _held(place, 0, workers=count)
    finally:
        tracemalloc.stop()
    return {
        "B/queued item": queued / count,
        "B/running item": running / count,
        "of which worker": worker / count,
        "B/row loaded": row / count,
    }


async def _held(place: Place, count: int, *, workers: int) -> float:
    factor = count / workers - 1 if workers == WORKERS else 1.0
    pipeline = Asleep(
        workers_num=workers,
        queue_lower_limit_factor=factor,
        queue_upper_limit_factor=factor,
        database_timeout=60,
    )
    async with Host.opened(place.url) as host:
        await host.add(count)
        before = _traced()
        manager = PipelineManager(host.session_factory, [pipeline])
        async with manager:
            await until(lambda: manager.statistics()["Asleep"].tracked >= count)
            await until(lambda: pipeline.started >= min(count, workers))
            await asyncio.sleep(0.5)
            held = _traced() - before
            pipeline.may_end.set()
    return held


async def _loaded(place: Place, count: int) -> float:
    async with Host.opened(place.url) as host:
        await host.add(count)
        before = _traced()
        async with host.session_factory() as session:
            jobs = (await session.scalars(select(Job))).all()
        held = _traced() - before
        assert len(jobs) == count
    return held


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
