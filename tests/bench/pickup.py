"""How long a hinted row waits until `process` is called, idle and under a standing backlog; beside
a bare loop.

The backlog is work that was done before and is due again (reconciling); the hinted row is fresh, so
it heads the order. The backlog is topped up as it drains.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import UTC, datetime, timedelta

from host import Host, Job, NoOp, Watch
from limits import bare_pickup
from measure import Figures, Place, Scale, beside

from rowlock import PipelineManager, pipeline_hinter, subscribe

LONG_AGO = datetime.now(UTC) - timedelta(days=1)
TOP_UP = 500


async def pickup(place: Place, scale: Scale, *, backlog: int) -> Figures:
    """Return percentiles in milliseconds from the hint to the start."""
    samples = scale.pick(200 if not backlog else 100, 30)

    async def own() -> Figures:
        return _percentiles(await _waits(place, samples=samples, backlog=backlog))

    async def limit() -> Figures:
        async with Host.opened(place.url) as host:
            await host.add(backlog, last_processed_at=LONG_AGO)
            return _percentiles(await bare_pickup(host, samples=samples))

    bare, figures = await beside(limit, own, limit_first=scale.limit_first)
    ratio = {"p50 × bare loop": figures["p50 ms"] / bare["p50 ms"]}
    return figures | {f"bare loop {name}": value for name, value in bare.items()} | ratio


async def _waits(place: Place, *, samples: int, backlog: int) -> list[float]:
    waits: list[float] = []
    async with Host.opened(place.url) as host:
        await host.add(backlog, last_processed_at=LONG_AGO)
        watch = Watch(time.perf_counter)
        unsubscribe = subscribe(watch)
        fed = backlog
        try:
            async with PipelineManager(host.session_factory, [NoOp(workers_num=20)]):
                for _ in range(samples):
                    if backlog and fed - watch.applied < backlog - TOP_UP:
                        await host.add(TOP_UP, last_processed_at=LONG_AGO)
                        fed += TOP_UP
                    key = await host.add_one(Job)
                    hinted = time.perf_counter()
                    pipeline_hinter.hint_fetch(Job)
                    await watch.wait_for_start(key)
                    waits.append((watch.started[key] - hinted) * 1000)
                    await asyncio.sleep(0.01)
        finally:
            unsubscribe()
    return waits


def _percentiles(waits: list[float]) -> Figures:
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    return {"p50 ms": cuts[49], "p99 ms": cuts[98]}
