"""Dispatch under a flood, and what admission costs beside rows that are settled.

``tests/dispatch/test_admission_at_once.py`` asserts the same on a smaller flood.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from statistics import median
from typing import Any

from measure import Figures, Place, Scale
from sqlalchemy import func, insert, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import AdmissionRejected, LockColumns, PipelineManager, ScheduleColumns
from rowlock.dispatch import (
    AttemptEvent,
    Completed,
    DispatchColumns,
    DispatchPipeline,
    LoopEngine,
    Task,
    dispatch_indexes,
)
from rowlock.dispatch.columns import ACTIVE

CLIENTS = 50
POOL = 20
WORKERS = 64
SETTLED = (1_000, 10_000, 100_000, 1_000_000)
CHUNK = 10_000


class Base(DeclarativeBase):
    """The host's tables."""


class Picture(LockColumns, ScheduleColumns, DispatchColumns, Base):
    __tablename__ = "bench_pictures"
    __table_args__ = dispatch_indexes("bench_pictures")
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)


def picture_pipeline(begun: Counter[str], *, max_active: int) -> DispatchPipeline[Picture]:
    async def paint(task: Task[Picture]) -> AsyncIterator[AttemptEvent]:
        begun[task.row.dedup_key] += 1
        yield Completed()

    return DispatchPipeline(
        Picture, handler=paint, engine=LoopEngine(WORKERS), max_active=max_active
    )


async def flood(place: Place, scale: Scale) -> Figures:
    """Return what becomes of so many submissions from `CLIENTS` clients, at a ceiling of a tenth
    of them.
    """
    submissions = scale.pick(10_000, 1_000)
    ceiling, begun, admitted, refused, most = submissions // 10, Counter[str](), 0, 0, 0
    engine = create_async_engine(place.url, pool_size=POOL, max_overflow=WORKERS)
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    await _make_table(engine)
    pictures, numbers, waits = (
        picture_pipeline(begun, max_active=ceiling),
        iter(range(submissions)),
        list[float](),
    )
    active = select(func.count()).select_from(Picture).where(Picture.status.in_(ACTIVE))

    async def client() -> None:
        nonlocal admitted, refused, most
        for number in numbers:
            sent = time.perf_counter()
            async with sessions() as session:
                try:
                    await pictures.submit(session, dedup_key=f"{number}")
                except AdmissionRejected:
                    refused += 1
                else:
                    await session.commit()
                    admitted += 1
                    most = max(most, await session.scalar(active) or 0)
            waits.append(time.perf_counter() - sent)

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    flooded_s = time.perf_counter() - began
    async with PipelineManager(sessions, [pictures]):
        began = time.perf_counter()
        async with sessions() as session:
            while await session.scalar(active):
                await session.rollback()
                await asyncio.sleep(0.05)
        drained_s = time.perf_counter() - began
    await engine.dispose()
    return {
        "admitted": float(admitted),
        "refused": float(refused),
        "overshoot": float(max(0, most - ceiling)),
        "begun twice": float(sum(times > 1 for times in begun.values())),
        "never begun": float(admitted - len(begun)),
        "submits/s": submissions / flooded_s,
        "ms median": median(waits) * 1000,
        "attempts/s": admitted / drained_s,
    }


async def admission(place: Place, scale: Scale) -> Figures:
    """Return how long the count of active rows takes beside more and more settled ones, in ms."""
    engine = create_async_engine(place.url)
    sessions = async_sessionmaker(engine)
    await _make_table(engine)
    pictures, figures, there = picture_pipeline(Counter(), max_active=1024), Figures(), 0
    async with sessions.begin() as session:
        await session.execute(
            insert(Picture),
            [{"dedup_key": f"active-{n}", "status": "pending"} for n in range(1000)],
        )
    for settled in SETTLED[: scale.pick(len(SETTLED), 2)]:
        while there < settled:
            rows = [
                {"dedup_key": f"{there + n}", "status": "completed"}
                for n in range(min(CHUNK, settled - there))
            ]
            async with sessions.begin() as session:
                await session.execute(insert(Picture), rows)
            there += len(rows)
        async with engine.connect() as connection:
            await connection.execute(text("ANALYZE"))
            await connection.commit()
        figures[f"ms beside {settled:,}"] = await _count_ms(sessions, pictures)
    await engine.dispose()
    first, *_, last = figures.values()
    return figures | {"ratio": last / first}


async def _count_ms(
    sessions: async_sessionmaker[Any], pictures: DispatchPipeline[Picture]
) -> float:
    taken = []
    async with sessions() as session:
        for _ in range(200):
            began = time.perf_counter()
            assert await pictures.count_active(session) == 1000
            taken.append((time.perf_counter() - began) * 1000)
    return median(taken)


async def _make_table(engine: Any) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
        await connection.run_sync(Base.metadata.create_all)
