"""What a drain pays for being looked at: pages of the dashboard that are open beside it, each with
a stream of its own, over HTTP.

The dashboard is served by the process that drains, as a host mounts it. Who looks is another
process, which reads what it is sent and draws nothing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import uvicorn
from drain import drain_once
from measure import Figures, Place, Scale, beside, until

from rowlock import PipelineManager
from rowlock.dashboard import Dashboard, anybody_may_look

STREAMS: Final = ("pipelines", "replicas")
"""What is looked at, in turns."""
LOOKS: Final = """
import asyncio, sys

async def look(number, port, topics):
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        path = f"/live/{topics[number % len(topics)]}"
        writer.write(f"GET {path} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n".encode())
        status = await reader.readline()
        assert b" 200 " in status, status
        print("open", flush=True)
        while await reader.read(65536):
            pass
        writer.close()

async def main(port, viewers, *topics):
    await asyncio.gather(*(look(number, int(port), topics) for number in range(int(viewers))))

asyncio.run(main(*sys.argv[1:]))
"""


async def viewed(place: Place, scale: Scale, *, viewers: int) -> Figures:
    """Return the throughput of a drain beside so many viewers, and its ratio to one that nobody
    sees; the same of processor time, which does not move with what else the machine does.
    """
    once = partial(drain_once, place, rows=scale.rows, workers=100)
    plain, seen = await beside(
        once, lambda: once(watch=partial(looked_at, viewers=viewers)), limit_first=scale.limit_first
    )
    return {
        "rows/s": seen["rows/s"],
        "unseen rows/s": plain["rows/s"],
        "seen / unseen": seen["rows/s"] / plain["rows/s"],
        "unseen / seen client cpu": plain["client µs/row"] / seen["client µs/row"],
    }


@asynccontextmanager
async def looked_at(manager: PipelineManager, *, viewers: int) -> AsyncIterator[None]:
    """Serve the dashboard, and have so many streams open."""
    app = Dashboard(manager, authorize=anybody_may_look)
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    [port] = [one.getsockname()[1] for each in server.servers for one in each.sockets]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LOOKS, str(port), str(viewers), *STREAMS, stdout=-1
    )
    assert process.stdout is not None
    for _ in range(viewers):
        line = await process.stdout.readline()
        assert line, "nobody looks"
    try:
        yield
    finally:
        process.kill()
        await process.wait()
        server.should_exit = True
        await serving
