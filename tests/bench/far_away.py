"""How fast a backlog is worked off when the database is far away: each round trip takes longer, as
the loopback does not.

The one idea: a proxy in a process of its own (``proxied.py``) answers late. The limit is what the
round trips allow: the driver alone, claiming and settling as many rows at once as there are
workers.

Not here: SQLite, which has no round trips.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from host import Guarded, Host, NoOp, Watch
from limits import raw_pairs
from measure import Figures, Place, Scale, beside
from meter import Meter
from sqlalchemy import make_url, text

from rowlock import PipelineManager, subscribe

WORKERS = 500
ROWS = (10_000, 1_000)
"""How many are drained, and how many in a quick run."""
DRAIN_S_MAX = (60.0, 15.0)
"""A drain that takes longer is ended, and what it did by then is told. **Unit** seconds."""
ROUND_TRIPS = 20


async def far_away(place: Place, scale: Scale, *, latency_ms: float) -> Figures:
    """Return rows per second with plain and with guarded outcomes, beside those of the driver
    alone.
    """
    rows, seconds_max = scale.pick(*ROWS), DRAIN_S_MAX[1 if scale.quick else 0]
    async with proxied(place, latency_ms) as far:

        async def own() -> Figures:
            plain = await drain_for(far, NoOp, rows=rows, seconds_max=seconds_max)
            guarded = await drain_for(far, Guarded, rows=rows, seconds_max=seconds_max)
            return {f"plain: {name}": value for name, value in plain.items()} | {
                f"unless_changed: {name}": value for name, value in guarded.items()
            }

        async def limit() -> Figures:
            async with Host.opened(far.url) as host:
                await host.add(rows)
                return await raw_pairs(host, total=rows, batch=WORKERS)

        raw, figures = await beside(limit, own, limit_first=scale.limit_first)
        return {
            "round trip ms": await round_trip_ms(far),
            **figures,
            "limit rows/s": raw["rows/s"],
            "plain: of the limit": figures["plain: rows/s"] / raw["rows/s"],
            "unless_changed: of the limit": figures["unless_changed: rows/s"] / raw["rows/s"],
        }


async def drain_for(place: Place, kind: type[NoOp], *, rows: int, seconds_max: float) -> Figures:
    """Drain a table made anew, for so long at most, and return rows per second and how many were
    begun in vain.
    """
    async with Host.opened(place.url) as host:
        await host.add(rows)
        meter, watch = await Meter.on(host.engine), Watch(time.perf_counter, until=rows)
        unsubscribe = subscribe(watch)
        # A batch that ends too late is told with its traceback, for each of its rows.
        logging.getLogger("rowlock").setLevel(logging.CRITICAL)
        manager = PipelineManager(host.session_factory, [kind(workers_num=WORKERS)])
        try:
            meter.start()
            manager.start()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds_max):
                    await watch.done.wait()
            meter.stop()
            applied = watch.applied
        finally:
            unsubscribe()
            await manager.drain(0)
    return {
        "rows/s": applied / meter.seconds,
        "rows not drained": rows - applied,
        "statements/row": meter.statements / max(applied, 1),
    }


async def round_trip_ms(place: Place) -> float:
    async with Host.opened(place.url, empty=False) as host, host.engine.connect() as connection:
        await connection.execute(text("SELECT 1"))
        began = time.perf_counter()
        for _ in range(ROUND_TRIPS):
            await connection.execute(text("SELECT 1"))
        return (time.perf_counter() - began) / ROUND_TRIPS * 1000


@asynccontextmanager
async def proxied(place: Place, latency_ms: float) -> AsyncIterator[Place]:
    script = str(Path(__file__).with_name("proxied.py"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, place.url, str(latency_ms / 1000), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        url = make_url(place.url).set(host="127.0.0.1", port=port, query={})
        yield Place(place.name, f"{url.render_as_string(hide_password=False)}?ssl=disable")
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
