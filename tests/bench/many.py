"""Many pipelines in one process that have nothing to do: how long they take to start, and what they
cost at rest.

All over one model, which is where each could concern every other, or each over a model of its own.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from crowds import Gaps, listening
from host import Host, NoOp
from measure import Figures, Place, Scale, until
from sqlalchemy import ColumnElement
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import LockColumns, Pipeline, PipelineManager, ScheduleColumns

PIPELINES = 200
IDLE_S = 20.0
REST_S = 20.0
"""So long it takes until all rest for their longest fetch delay."""


def _models(count: int) -> list[Any]:
    class Shelves(DeclarativeBase):
        pass

    def shelf(number: int) -> type:
        columns = {
            "__annotations__": {"id": Mapped[int], "status": Mapped[str]},
            "id": mapped_column(primary_key=True),
            "status": mapped_column(default="idle"),
        }
        parents = (LockColumns, ScheduleColumns, Shelves)
        return type(
            f"Shelf{number}", parents, {"__tablename__": f"bench_shelf_{number}", **columns}
        )

    return [shelf(number) for number in range(count)]


def _pipeline_of(model: Any, number: int) -> Pipeline[Any]:
    def ready(self: Any) -> ColumnElement[bool]:
        wanted: ColumnElement[bool] = model.status == f"state {number}"
        return wanted

    return type(f"Shelf{number}Pipeline", (NoOp,), {"model": model, "ready": ready})()


async def many_pipelines(place: Place, scale: Scale, *, models: int) -> Figures:
    """Return what `PIPELINES` pipelines over so many models cost."""
    count = scale.pick(PIPELINES, 50)
    tables = _models(min(models, count))
    async with Host.opened(place.url) as host:
        async with host.engine.begin() as connection:
            await connection.run_sync(tables[0].metadata.drop_all)
            await connection.run_sync(tables[0].metadata.create_all)
        built = [_pipeline_of(tables[number % len(tables)], number) for number in range(count)]
        figures = await _idle(host, built, scale.pick(IDLE_S, 5.0))
        async with host.engine.begin() as connection:
            await connection.run_sync(tables[0].metadata.drop_all)
    return figures


async def _idle(host: Host, built: list[Pipeline[Any]], idle_s: float) -> Figures:
    with listening() as ear:
        manager = PipelineManager(host.session_factory, built)
        gaps = Gaps()
        watching = asyncio.create_task(gaps.watch())
        await asyncio.sleep(0.1)
        began, cpu = time.perf_counter(), time.process_time()
        async with manager:
            started_s = time.perf_counter() - began

            def counted(name: str) -> list[int]:
                return [one.counters[name] for one in manager.statistics().values()]

            await until(
                lambda: (
                    min(
                        a - b
                        for a, b in zip(counted("fetches"), counted("fetches_failed"), strict=True)
                    )
                    > 0
                )
            )
            fetched_s, fetching_cpu_s = time.perf_counter() - began, time.process_time() - cpu
            longest = gaps.longest_s
            await asyncio.sleep(REST_S)
            before = time.process_time()
            await asyncio.sleep(idle_s)
            idle = time.process_time() - before
            failed, fetches = sum(counted("fetches_failed")), sum(counted("fetches"))
            ending = time.perf_counter()
        watching.cancel()
    return {
        "pipelines": float(len(built)),
        "s in start()": started_s,
        "s until all fetched": fetched_s,
        "CPU s": fetching_cpu_s,
        "longest gap ms": longest * 1000,
        "failed": float(failed),
        "fetches": float(fetches),
        "idle CPU %": 100 * idle / idle_s,
        "s to drain": time.perf_counter() - ending,
        "lost": float(ear.lost),
    }
