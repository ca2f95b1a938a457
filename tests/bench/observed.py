"""What it costs a drain to be seen: an Observer that beats and is scraped, or metrics by
OpenTelemetry; and what a scrape of many pipelines costs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from drain import Watch, drain_once
from host import Host, NoOp, ScheduledJob
from measure import Figures, Place, Scale, beside
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from rowlock import PipelineManager
from rowlock.insight import Observer, insight_tables
from rowlock.telemetry.otel import instrument
from rowlock.telemetry.prometheus import exposition, register

TABLES = insight_tables(ScheduledJob.metadata, controls=False)
SCRAPED_EVERY_S = 1.0
"""Fifteen times as often as by a Prometheus, since a drain lasts seconds."""
PIPELINES = 50


@asynccontextmanager
async def observer(manager: PipelineManager) -> AsyncIterator[None]:
    async def scraped(seen: Observer) -> None:
        while True:
            exposition(seen)
            await asyncio.sleep(SCRAPED_EVERY_S)

    async with Observer(manager, tables=TABLES) as seen:
        task = asyncio.create_task(scraped(seen))
        yield
        task.cancel()


@asynccontextmanager
async def otel(manager: PipelineManager) -> AsyncIterator[None]:
    """Record for OpenTelemetry, and collect as often as a Prometheus scrapes."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    stop = instrument(manager, meter_provider=provider)

    async def collected() -> None:
        while True:
            reader.get_metrics_data()
            await asyncio.sleep(SCRAPED_EVERY_S)

    task = asyncio.create_task(collected())
    yield
    task.cancel()
    stop()
    provider.shutdown()


async def observed(place: Place, scale: Scale, *, watch: Watch) -> Figures:
    """Return the throughput of a drain that is seen, and its ratio to one that is not."""
    once = partial(drain_once, place, rows=scale.rows, workers=100)
    plain, seen = await beside(once, lambda: once(watch=watch), limit_first=scale.limit_first)
    return {
        "rows/s": seen["rows/s"],
        "unseen rows/s": plain["rows/s"],
        "seen / unseen": seen["rows/s"] / plain["rows/s"],
        # The same of processor time, which does not move with what else the machine does.
        "unseen / seen client cpu": plain["client µs/row"] / seen["client µs/row"],
    }


async def scrape(place: Place, scale: Scale) -> Figures:
    """Return what a scrape of `PIPELINES` pipelines costs, of CPU alone."""
    async with Host.opened(place.url) as host:
        kinds = [type(f"P{number}Pipeline", (NoOp,), {}) for number in range(PIPELINES)]
        manager = PipelineManager(host.session_factory, [kind() for kind in kinds])
        registry = CollectorRegistry()
        register(manager, registry=registry)
        rounds = scale.pick(50, 5)
        return {
            "exposition cpu ms": _cpu_ms(lambda: exposition(manager), rounds),
            "generate_latest cpu ms": _cpu_ms(lambda: generate_latest(registry), rounds),
        }


def _cpu_ms(act: Callable[[], object], rounds: int) -> float:
    spent = []
    for _ in range(rounds):
        begun = time.process_time()
        act()
        spent.append(time.process_time() - begun)
    return sorted(spent)[len(spent) // 2] * 1000
