"""Crowds at full size: 10,000 items in flight, 100 pipelines, a million idle rows, 100,000 hints a
second.

``tests/faults/test_load.py`` asserts the same bounds on smaller crowds; here is what they cost.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from host import Asleep, Host, NoOp
from measure import Figures, Place, Scale, until
from sqlalchemy import insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    LockColumns,
    Pipeline,
    PipelineManager,
    ScheduleColumns,
    pipeline_hinter,
    subscribe,
)
from rowlock.events import Event, ItemApplied, LeaseExpired, LeasesRenewed

PIPELINES = 100
ROWS_EACH = 20
HINTING_THREADS = 4
HINTS_PER_BURST = 1_000


def resident_mb() -> float:
    """Return what the process takes in memory now; asking costs nothing, unlike tracing."""
    gc.collect()
    return psutil.Process().memory_info().rss / 1e6


class Ear:
    def __init__(self) -> None:
        self.applied = self.renewed = self.lost = 0

    def __call__(self, event: Event) -> None:
        match event:
            case ItemApplied():
                self.applied += 1
            case LeasesRenewed():
                self.renewed += event.renewed
            case LeaseExpired():
                self.lost += 1


@contextmanager
def listening() -> Iterator[Ear]:
    ear = Ear()
    unsubscribe = subscribe(ear)
    try:
        yield ear
    finally:
        unsubscribe()


class Gaps:
    """Measures how long the loop was kept from its turns at most."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.01)
            self.longest_s = max(self.longest_s, time.perf_counter() - before - 0.01)


async def in_flight(place: Place, scale: Scale) -> Figures:
    """Return what so many items cost that are queued, run and are written at once."""
    count = scale.pick(10_000, 1_000)
    pipeline = Asleep(
        workers_num=count // 2,
        queue_lower_limit_factor=1,
        queue_upper_limit_factor=1,
        database_timeout=60,
    )
    with listening() as ear:
        async with Host.opened(place.url) as host:
            await host.add(count)
            before = resident_mb()
            gaps = Gaps()
            watching = asyncio.create_task(gaps.watch())
            began = time.perf_counter()
            async with PipelineManager(host.session_factory, [pipeline]) as manager:
                await until(lambda: manager.statistics()["Asleep"].tracked >= count)
                await until(lambda: pipeline.started >= count // 2)
                all_held_s = time.perf_counter() - began
                held = resident_mb() - before
                await until(lambda: ear.renewed >= 2 * count)
                pipeline.may_end.set()
                ending = time.perf_counter()
                await until(lambda: ear.applied >= count)
                settled_s = time.perf_counter() - ending
                after = resident_mb() - before
            watching.cancel()
    return {
        "items": float(count),
        "s until held": all_held_s,
        "s until settled": settled_s,
        "MB held": held,
        "MB after": after,
        "renewed": float(ear.renewed),
        "lost": float(ear.lost),
        "longest gap ms": gaps.longest_s * 1000,
    }


def _shelves() -> list[Any]:
    class Shelves(DeclarativeBase):
        pass

    def shelf(number: int) -> type:
        columns = {
            "__annotations__": {"id": Mapped[int], "status": Mapped[str]},
            "id": mapped_column(primary_key=True),
            "status": mapped_column(default="submitted"),
        }
        parents = (LockColumns, ScheduleColumns, Shelves)
        return type(
            f"Shelf{number}", parents, {"__tablename__": f"bench_shelf_{number}", **columns}
        )

    return [shelf(number) for number in range(PIPELINES)]


async def pipelines(place: Place, scale: Scale) -> Figures:
    """Return what so many pipelines with a table each cost in one process, at work and idle."""
    models, rows = _shelves(), scale.pick(ROWS_EACH, 5)
    async with Host.opened(place.url) as host:
        async with host.engine.begin() as connection:
            await connection.run_sync(models[0].metadata.drop_all)
            await connection.run_sync(models[0].metadata.create_all)
            for model in models:
                await connection.execute(
                    insert(model), [{"status": "submitted"} for _ in range(rows)]
                )
        memory = resident_mb()
        built = [_pipeline_of(model) for model in models]
        with listening() as ear:
            began = time.perf_counter()
            async with PipelineManager(host.session_factory, built) as manager:
                await until(lambda: ear.applied >= rows * len(models))
                seconds = time.perf_counter() - began
                held = resident_mb() - memory
                idle_s = scale.pick(20, 5)
                before = time.process_time()
                await asyncio.sleep(idle_s)
                idle = time.process_time() - before
                fetches = min(one.counters["fetches"] for one in manager.statistics().values())
        async with host.engine.begin() as connection:
            await connection.run_sync(models[0].metadata.drop_all)
    return {
        "pipelines": float(len(models)),
        "s until all are done": seconds,
        "MB held": held,
        "fewest fetches": float(fetches),
        "idle CPU %": 100 * idle / idle_s,
        "lost": float(ear.lost),
    }


def _pipeline_of(model: Any) -> Pipeline[Any]:
    settings = {"workers_num": 2, "database_timeout": 60}
    return type(f"{model.__name__}Pipeline", (NoOp,), {"model": model})(**settings)


async def hints(place: Place, scale: Scale) -> Figures:
    """Return what a storm of hints from threads and from the loop costs, and whether the work
    beside it goes on.
    """
    seconds = scale.pick(10, 3)
    over = threading.Event()
    told = [0] * (HINTING_THREADS + 1)

    def storm(number: int) -> None:
        while not over.is_set():
            for _ in range(HINTS_PER_BURST):
                pipeline_hinter.hint_fetch("Job")
            told[number] += HINTS_PER_BURST
            over.wait(0.02)

    async def storm_in_the_loop() -> None:
        while not over.is_set():
            for _ in range(HINTS_PER_BURST):
                pipeline_hinter.hint_fetch("Job")
            told[-1] += HINTS_PER_BURST
            await asyncio.sleep(0.02)

    threads = [threading.Thread(target=storm, args=(number,)) for number in range(HINTING_THREADS)]
    with listening() as ear:
        async with Host.opened(place.url) as host:
            await host.add(2_000)
            gaps = Gaps()
            async with PipelineManager(
                host.session_factory, [NoOp(database_timeout=60)]
            ) as manager:
                before = resident_mb()
                tasks = [
                    asyncio.create_task(gaps.watch()),
                    asyncio.create_task(storm_in_the_loop()),
                ]
                for thread in threads:
                    thread.start()
                await asyncio.sleep(seconds)
                over.set()
                for thread in threads:
                    await asyncio.to_thread(thread.join)
                held = resident_mb() - before
                tasks[0].cancel()
                await until(lambda: ear.applied >= 2_000)
                fetches = manager.statistics()["NoOp"].counters["fetches"]
    return {
        "hints/s": sum(told) / seconds,
        "fetches/s": fetches / seconds,
        "applied": float(ear.applied),
        "MB held": held,
        "longest gap ms": gaps.longest_s * 1000,
    }
