"""How long an event waits for its step, and what is spent while there is none.

An event is committed by one engine and its step by another; both are in one process, or in two.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from limits import dsn
from measure import Figures, Place, Scale, beside, until
from meter import Meter
from streams.driver_steps import opened_driver
from streams.elsewhere import flow_elsewhere
from streams.event_host import EventHost, payments_of

from rowlock import PipelineManager, pipeline_hinter

APART_S = 0.05
"""Between two samples: more than the least time between two notifications."""
WARM = 3
"""So many samples are left out at the beginning."""
BACKED_OFF_S = 12
"""By then the rests have reached their last step."""

Wait = Callable[[float], Awaitable[float]]
"""Waits for the step of an event that was not appended before a time; returns when it was done."""
_BEGIN = """BEGIN; INSERT INTO rowlock_stream_log (stream, bucket, key, payload)
VALUES ('payments', 0, 'a', '{}')"""


async def latency(place: Place, scale: Scale) -> Figures:
    """Return percentiles in milliseconds from the COMMIT of one event to that of its step, in an
    idle replica of the same process; beside the driver alone.
    """
    samples, figures = scale.pick(200, 20), dict[str, float]()

    async def ours() -> Figures:
        async with EventHost.opened(place, emits=True) as host, host.running():
            meter = await Meter.on(host.engine)
            woken = asyncio.Queue[float]()
            assert host.balances is not None
            pipeline_hinter.attach(host.balances.topic, lambda: woken.put_nowait(time.monotonic()))
            meter.start()
            waits = await _waits(place, lambda _: woken.get(), samples=samples)
            meter.stop()
        figures["statements/event"] = meter.statements / (WARM + samples)
        figures["transactions/event"] = meter.transactions / (WARM + samples)
        figures["client ms/event"] = meter.client_s / (WARM + samples) * 1e3
        return _percentiles(waits)

    async def limit() -> Figures:
        async with EventHost.opened(place) as host:
            async with host.running():
                pass
            driver, upto = await opened_driver(host)

            async def step(_: float) -> float:
                nonlocal upto
                _, upto = await driver.step(upto, 1)
                return time.monotonic()

            try:
                return _percentiles(await _waits(place, step, samples=samples))
            finally:
                await driver.close()

    theirs, own = await beside(limit, ours, limit_first=scale.limit_first)
    compared = {f"limit {name}": value for name, value in theirs.items()}
    return own | figures | compared | {"p50 / limit": own["p50 ms"] / theirs["p50 ms"]}


async def latency_elsewhere(place: Place, scale: Scale) -> Figures:
    """Return the same where the flow runs in another process, which hears of the event by a
    notification.
    """
    samples = scale.pick(200, 20)
    async with EventHost.opened(place, emits=True) as host:
        manager = PipelineManager(host.sessions, notify=True)
        async with manager, flow_elsewhere(place, emits=True) as other:
            await until(lambda: (at := manager.health().notifications) is not None and at.listening)
            waits = await _waits(place, other.step_after, samples=samples)
    return _percentiles(waits)


async def _waits(place: Place, wait: Wait, *, samples: int) -> list[float]:
    waits = []
    async with EventHost.opened(place, empty=False) as service:
        for payment in payments_of(WARM + samples):
            await asyncio.sleep(APART_S)
            begun = time.monotonic()
            await service.append([payment])
            committed = time.monotonic()
            # Another process may write the step before this one hears that its COMMIT was done.
            waits.append((await wait(begun) - committed) * 1e3)
    return waits[WARM:]


def _percentiles(waits: list[float]) -> Figures:
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    return {"p50 ms": cuts[49], "p99 ms": cuts[98]}


async def idle(place: Place, scale: Scale) -> Figures:
    """Return what one replica takes whose flow has nothing to do."""
    window_s = scale.pick(60, 5)
    async with EventHost.opened(place) as host, host.running():
        meter = await Meter.on(host.engine)
        await asyncio.sleep(scale.pick(BACKED_OFF_S, 1))
        meter.start()
        await asyncio.sleep(window_s)
        meter.stop()
    return {
        "statements/s": meter.statements / meter.seconds,
        "transactions/s": meter.transactions / meter.seconds,
        "client CPU %": 100 * meter.client_s / meter.seconds,
    }


async def high_water(place: Place, scale: Scale) -> Figures:
    """Return what a look for the high-water mark costs, alone and beside 24 transactions that add
    rows, beside the last position alone.
    """
    looks, figures = scale.pick(500, 50), dict[str, float]()
    async with EventHost.opened(place) as host:
        await host.append(payments_of(looks * 10))
        for writers in (0, 24) if host.is_postgresql else (0,):
            async with _writing(host, writers):
                found = await _looks(host, looks)
            figures |= {f"{writers} writers: {name}": value for name, value in found.items()}
    return figures


@asynccontextmanager
async def _writing(host: EventHost, writers: int) -> AsyncIterator[None]:
    connections: list[asyncpg.Connection[Any]] = []
    try:
        for _ in range(writers):
            connections.append(await asyncpg.connect(dsn(host.engine.url)))
            await connections[-1].execute(_BEGIN)
        yield
    finally:
        for connection in connections:
            await connection.close()


async def _looks(host: EventHost, count: int) -> Figures:
    watcher, meter, waits_ms = host.log.watcher(), await Meter.on(host.engine), list[float]()
    async with host.engine.connect() as connection:
        await watcher.look(connection, recorded=0)
        meter.start()
        for _ in range(count):
            began = time.perf_counter()
            await watcher.look(connection, recorded=0)
            waits_ms.append((time.perf_counter() - began) * 1e3)
        meter.stop()
    client = {"client µs/look": meter.client_s / count * 1e6}
    server = {"server µs/look": meter.server_s / count * 1e6} if host.is_postgresql else {}
    return _percentiles(waits_ms) | client | server
