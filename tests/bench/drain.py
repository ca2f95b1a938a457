"""How fast a backlog is worked off, beside the drivers alone on the same table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from host import Counting, Host, Job, ScheduledCounting, ScheduledJob
from limits import raw_pairs
from measure import Figures, Place, Scale, beside
from meter import Meter
from row_versions import row_versions

from rowlock import PipelineManager

LOOKS_EVERY_S = 0.001


async def drain(place: Place, scale: Scale, *, workers: int, scheduled: bool = False) -> Figures:
    """Return rows per second from the start of the manager until the last outcome is committed,
    and what a row costs.
    """

    async def own() -> Figures:
        return await drain_once(place, rows=scale.rows, workers=workers, scheduled=scheduled)

    async def limit() -> Figures:
        async with Host.opened(place.url) as host:
            await host.add(scale.rows)
            return await raw_pairs(host, total=scale.rows)

    raw, figures = await beside(limit, own, limit_first=scale.limit_first)
    return figures | {
        "limit rows/s": raw["rows/s"],
        "of the limit": figures["rows/s"] / raw["rows/s"],
        "limit client µs/row": raw["client µs/row"],
    }


Watch = Callable[[PipelineManager], AbstractAsyncContextManager[object]]
"""What is open beside a manager while it drains."""


def unwatched(_manager: PipelineManager) -> AbstractAsyncContextManager[object]:
    return nullcontext()


async def drain_once(
    place: Place,
    *,
    rows: int,
    workers: int,
    scheduled: bool = False,
    surround: Sequence[Any] = (),
    watch: Watch = unwatched,
) -> Figures:
    """Drain a table made anew. Nobody listens to events: the pipeline counts, as the handlers of
    others do; unless `surround` and `watch` do.
    """
    model = ScheduledJob if scheduled else Job
    async with Host.opened(place.url) as host:
        await host.add(rows, model)
        pipeline = (ScheduledCounting if scheduled else Counting)(rows, workers_num=workers)
        meter = await Meter.on(host.engine)
        meter.start()
        manager = PipelineManager(host.session_factory, [pipeline], surround=surround)
        async with manager, watch(manager):
            await pipeline.begun.wait()
            while pipeline.statistics().counters["applied"] < rows:  # noqa: ASYNC110 - to be told of each row would be measured, too
                await asyncio.sleep(LOOKS_EVERY_S)
            meter.stop()
    return {
        "rows/s": rows / meter.seconds,
        **meter.cpu_per(rows),
        "statements/row": meter.statements / rows,
        "transactions/row": meter.transactions / rows,
        **await row_versions(place, model.__tablename__, rows=rows),
    }
