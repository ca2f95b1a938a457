"""Two of three formulas of sizing against what happens.

Throughput = workers / seconds of work; wait = rows before / throughput. The third, memory, is
counted in ``memory.py``.
"""

from __future__ import annotations

import time

from host import Host, ScheduledJob, Timed, Watch
from measure import Figures, Place, Scale

from rowlock import PipelineManager, pipeline_hinter, subscribe

WORK_S = (0.005, 0.02, 0.1)
QUEUED = 1_000


async def throughput(place: Place, scale: Scale, *, workers: int) -> Figures:
    """Return the measured share of workers / seconds of work, for work of several lengths."""
    figures: Figures = {}
    for work_s in WORK_S:
        seconds = scale.pick(4, 2)
        rows = max(workers, int(seconds * workers / work_s))
        async with Host.opened(place.url) as host:
            await host.add(rows, ScheduledJob)
            watch = Watch(time.perf_counter, until=rows)
            unsubscribe = subscribe(watch)
            began = time.perf_counter()
            try:
                async with PipelineManager(
                    host.session_factory, [Timed(work_s, workers_num=workers)]
                ):
                    await watch.done.wait()
                    took_s = time.perf_counter() - began
            finally:
                unsubscribe()
        figures[f"{work_s * 1000:g} ms: rows/s"] = rows / took_s
        figures[f"{work_s * 1000:g} ms: of the formula"] = rows / took_s / (workers / work_s)
    return figures


async def wait(place: Place, scale: Scale) -> Figures:
    """Return how long a row waits behind 1,000 that are due earlier, beside rows before it /
    throughput.
    """
    workers, work_s, queued = 10, 0.02, scale.pick(QUEUED, 200)
    async with Host.opened(place.url) as host:
        await host.add(queued, ScheduledJob)
        watch = Watch(time.perf_counter)
        unsubscribe = subscribe(watch)
        try:
            key = await host.add_one(ScheduledJob)
            began = time.perf_counter()
            async with PipelineManager(host.session_factory, [Timed(work_s, workers_num=workers)]):
                pipeline_hinter.hint_fetch(ScheduledJob)
                await watch.wait_for_start(key)
                waited_s = watch.started[key] - began
        finally:
            unsubscribe()
    return {"waited s": waited_s, "formula s": queued * work_s / workers}
