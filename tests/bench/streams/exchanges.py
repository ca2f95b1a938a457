"""What a second stage costs an event, in one replica and in two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from measure import Figures, Place, Scale, beside
from meter import Meter
from sqlalchemy import func, select
from streams.drains import Drained, Load, drained, drained_by_driver, named
from streams.event_host import LOOKS_EVERY_S, EventHost, payments_of

from rowlock import PipelineManager

SHARDS = 16
STEPS = ((5_000, 100_000), (1_000, 50_000))
"""Rows of a step, and events of a round."""
QUICK = 20
"""A quick round has so many times fewer events."""


async def exchange(place: Place, scale: Scale) -> Figures:
    """Return what an event costs that passes two stages of 16 shards: in one replica, and in two of
    one process. Beside them: one stage, and the drivers alone with the reads and writes of a step
    of one stage.
    """
    figures: Figures = {}
    for rows, events in STEPS:
        load = Load(
            events // scale.pick(1, QUICK),
            max(rows // scale.pick(1, 5), 1),
            options={"shards": SHARDS},
        )
        figures |= named(f"{load.rows:,}", await _compared(place, scale, load))
    return figures


async def _compared(place: Place, scale: Scale, load: Load) -> Figures:
    kept: dict[str, Drained] = {}

    async def ours() -> Figures:
        kept["one stage"] = await drained(place, load)
        kept["one replica"] = await _exchanged(place, load, replicas=1)
        kept["two replicas"] = await _exchanged(place, load, replicas=2)
        return {}

    async def limit() -> Figures:
        kept["limit"] = await drained_by_driver(place, load)
        return {}

    await beside(limit, ours, limit_first=scale.limit_first)
    figures: Figures = {}
    each_s = {name: one.cpu_s / one.events for name, one in kept.items()}
    for name, one in kept.items():
        figures |= named(name, one.figures)
        if name != "limit":
            figures[f"{name}: of the limit, by CPU"] = each_s["limit"] / each_s[name]
    for name in ("one replica", "two replicas"):
        figures[f"{name}: of one stage, by CPU"] = each_s["one stage"] / each_s[name]
    return figures


async def _exchanged(place: Place, load: Load, *, replicas: int) -> Drained:
    async with EventHost.opened(
        place, exchanges=True, step_rows_max=load.rows, **load.options
    ) as host:
        meter = await Meter.on(host.engine)
        payments = payments_of(load.events, keys=load.keys, zipf=load.zipf)
        async with host.running(), _further_replicas(host, replicas - 1):
            for part in (payments[: load.warm], payments[load.warm :]):
                await host.append_behind_pause(part)
                await host.work_off(meter)
    return Drained.of(meter, load.events - load.warm)


@asynccontextmanager
async def _further_replicas(host: EventHost, count: int) -> AsyncIterator[None]:
    """Run replicas beside the first one, until they share the shards."""
    if not count:
        yield
        return
    async with PipelineManager(host.sessions, host.streams.pipelines()):
        shards = host.streams.tables.shards
        shared = select(func.count(shards.c.replica.distinct()))
        while True:
            async with host.sessions() as session:
                if await session.scalar(shared) == count + 1:
                    break
            await asyncio.sleep(LOOKS_EVERY_S)
        yield
