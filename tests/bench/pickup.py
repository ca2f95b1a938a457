"""How long a hinted row waits until `process` is called, idle and under a standing backlog.

The backlog is work that was done before and is due again (reconciling); the hinted row is fresh, so it heads the order. The
backlog is topped up as it drains.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import UTC, datetime, timedelta

from host import Host, Job, NoOp, Watch

from rowlock import PipelineManager, pipeline_hinter, subscribe

LONG_AGO = datetime.now(UTC) - timedelta(days=1)
TOP_UP = 500


async def pickup(host: Host, *, samples: int, backlog: int) -> dict[str, float]:
    """Return percentiles in milliseconds from the hint to the start."""
    watch = Watch(time.perf_counter)
    unsubscribe = subscribe(watch)
    waits: list[float] = []
    await host.add([Job(last_processed_at=LONG_AGO) for _ in range(backlog)])
    fed = backlog
    try:
        async with PipelineManager(host.session_factory, [NoOp(workers_num=20)]):
            for _ in range(samples):
                if backlog and fed - watch.applied < backlog - TOP_UP:
                    await host.add([Job(last_processed_at=LONG_AGO) for _ in range(TOP_UP)])
                    fed += TOP_UP
                job = Job()
                await host.add([job])
                hinted = time.perf_counter()
                pipeline_hinter.hint_fetch(Job)
                await watch.wait_for_start(job.id)
                waits.append((watch.started[job.id] - hinted) * 1000)
                await asyncio.sleep(0.01)
    finally:
        unsubscribe()
    cuts = statistics.quantiles(waits, n=100)
    return {"p50 ms": cuts[49], "p99 ms": cuts[98]}
