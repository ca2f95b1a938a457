"""How long a row that is hinted in one process waits until `process` is called in another; beside a
bare loop of the driver.

The hinting process runs no pipelines, as a web server that leaves the work to others. The backlog
is that of ``pickup.py``. Between two samples lies more than the least time between two
notifications about one model, which a lone hint never waits for.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
from elsewhere import CHANNEL
from host import Host, Job
from limits import dsn
from measure import Figures, Place, Scale, beside, until
from pickup import LONG_AGO, TOP_UP

from rowlock import PipelineManager

ELSEWHERE = Path(__file__).with_name("elsewhere.py")
APART_S = 0.05
ANSWER_S_MAX = 20.0
"""How long a sample may take; the polls of a replica are closer than that, so that a lost hint
is a slow sample.
"""

Hint = Callable[[], Awaitable[None]]


async def pickup_elsewhere(place: Place, scale: Scale, *, backlog: int) -> Figures:
    """Return percentiles in milliseconds from the hint to the start in the other process."""
    samples = scale.pick(200 if not backlog else 100, 30)

    async def own() -> Figures:
        async with Host.opened(place.url) as host, _hinting(host) as hint:
            return await _measured(host, hint, "library", samples=samples, backlog=backlog)

    async def limit() -> Figures:
        async with Host.opened(place.url) as host, _notifying(host) as hint:
            return await _measured(host, hint, "bare", samples=samples, backlog=backlog)

    raw, figures = await beside(limit, own, limit_first=scale.limit_first)
    ratio = {"p50 × bare loop": figures["p50 ms"] / raw["p50 ms"]}
    return figures | {f"bare loop {name}": value for name, value in raw.items()} | ratio


async def _measured(host: Host, hint: Hint, way: str, *, samples: int, backlog: int) -> Figures:
    await host.add(backlog, last_processed_at=LONG_AGO)
    waits_ms, fed = [], backlog
    async with _elsewhere(host, way) as process:
        for number in range(samples):
            key = await host.add_one(Job)
            hinted = time.monotonic()
            await hint()
            started, applied = await _start_of(process, key)
            waits_ms.append((started - hinted) * 1000)
            # Of what was applied, all but the samples before this one was backlog. The bare loop
            # leaves it as it is.
            missing = backlog - fed + applied - number
            if missing >= TOP_UP:
                await host.add(missing, last_processed_at=LONG_AGO)
                fed += missing
            await asyncio.sleep(APART_S)
    cuts = statistics.quantiles(waits_ms, n=100, method="inclusive")
    return {"p50 ms": cuts[49], "p99 ms": cuts[98]}


async def _start_of(process: asyncio.subprocess.Process, key: int) -> tuple[float, int]:
    assert process.stdout is not None
    async with asyncio.timeout(ANSWER_S_MAX):
        told, at, applied = (await process.stdout.readline()).split()
    assert int(told) == key
    return float(at), int(applied)


@asynccontextmanager
async def _elsewhere(host: Host, way: str) -> AsyncIterator[asyncio.subprocess.Process]:
    url = host.engine.url.render_as_string(hide_password=False)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ELSEWHERE),
        url,
        way,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield process
        process.stdin.close()
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def _hinting(host: Host) -> AsyncIterator[Hint]:
    manager = PipelineManager(host.session_factory, notify=True)

    async def hint() -> None:
        manager.hinter.hint_fetch(Job)

    async with manager:
        await until(lambda: (line := manager.health().notifications) is not None and line.listening)
        yield hint


@asynccontextmanager
async def _notifying(host: Host) -> AsyncIterator[Hint]:
    connection = await asyncpg.connect(dsn(host.engine.url))

    async def hint() -> None:
        await connection.execute(f"NOTIFY {CHANNEL}")

    try:
        yield hint
    finally:
        await connection.close()
