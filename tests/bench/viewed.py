"""What a drain pays for being looked at: pages of the dashboard that are open beside it, each with
a stream of its own, over HTTP; and how long a page takes that is asked for meanwhile.

The dashboard is served by the process that drains, as a host mounts it. Who looks is another
process, which reads what it is sent and draws nothing.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import uvicorn
from drain import drain_once
from measure import Figures, Place, Scale, beside, until

from rowlock import PipelineManager
from rowlock.dashboard import Dashboard, anybody_may_look

VIEWER: Final = Path(__file__).with_name("viewer.py")


async def viewed(place: Place, scale: Scale, *, viewers: int) -> Figures:
    """Return the throughput of a drain beside so many viewers, and its ratio to one that nobody
    sees; the same of processor time, which does not move with what else the machine does.
    """
    once = partial(drain_once, place, rows=scale.rows, workers=100)
    times: list[float] = []
    plain, seen = await beside(
        once,
        lambda: once(watch=partial(looked_at, viewers=viewers, times=times)),
        limit_first=scale.limit_first,
    )
    return {
        "rows/s": seen["rows/s"],
        "unseen rows/s": plain["rows/s"],
        "seen / unseen": seen["rows/s"] / plain["rows/s"],
        "unseen / seen client cpu": plain["client µs/row"] / seen["client µs/row"],
        "page p50 ms": statistics.median(times),
        "page p95 ms": statistics.quantiles(times, n=20)[-1],
    }


@asynccontextmanager
async def looked_at(
    manager: PipelineManager, *, viewers: int, times: list[float]
) -> AsyncIterator[None]:
    """Serve the dashboard, have so many streams open and pages asked for; add how long these took,
    in milliseconds.
    """
    app = Dashboard(manager, authorize=anybody_may_look)
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    [port] = [one.getsockname()[1] for each in server.servers for one in each.sockets]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(VIEWER), str(port), str(viewers), stdin=-1, stdout=-1
    )
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line == b"open\n", "nobody looks"
    try:
        yield
    finally:
        # It ends when its input does, which some versions of Python keep open.
        told, _ = await process.communicate(b"")
        times += json.loads(told)
        server.should_exit = True
        await serving
