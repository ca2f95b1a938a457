"""Work of unlike nature: 5 ms of waiting, SHA-256 of 1 MB, zlib over 256 KB of it, 2 ms of waiting.

Every way has twenty places for the first wait, two for each computation and eight for the last; the
plain workers do all four steps of a value, twenty at once, and so do the threads. Bodies are
counted: how many of them are alive at most.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from graphs.costs import Way, costs_of, expect, per_value, rate_ratios, rates
from graphs.stages import Stage, through_aiostream, through_anyio, through_queues
from measure import Figures, Place, Scale

from rowlock.graph import Graph, run_graph

DOWNLOADS, THREADS, UPLOADS = 20, 2, 8
DOWNLOAD_S, UPLOAD_S = 0.005, 0.002
BODY = bytes(range(256)) * 4_096
COMPRESSED = 256 * 1_024


class Body:
    """A megabyte, or what became of it; how many there are is counted."""

    alive = most = 0
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.data = bytes(bytearray(BODY))
        self.digest = b""
        with Body._lock:
            Body.alive += 1
            Body.most = max(Body.most, Body.alive)

    def __del__(self) -> None:
        with Body._lock:
            Body.alive -= 1


async def download(_number: int) -> Body:
    await asyncio.sleep(DOWNLOAD_S)
    return Body()


def hashed(body: Body) -> Body:
    body.digest = hashlib.sha256(body.data).digest()
    return body


def compressed(body: Body) -> Body:
    body.data = zlib.compress(body.data[:COMPRESSED])
    return body


async def upload(body: Body) -> bytes:
    await asyncio.sleep(UPLOAD_S)
    return body.digest


async def realistic(place: Place, scale: Scale) -> Figures:
    """Return values per second, processor time per value, and bodies in memory."""
    del place
    count = scale.pick(600, 100)
    most: dict[str, int] = {}
    graph, _ = _graph(count)
    runs: dict[str, Callable[[int], Awaitable[list[bytes]]]] = {
        "graph": _through_graph,
        "Queue(1)": lambda count: through_queues(range(count), _stages(), size=1),
        "anyio(1)": lambda count: through_anyio(range(count), _stages(), size=1),
        "aiostream": lambda count: through_aiostream(range(count), _stages()),
        "20 plain workers": _plain_workers,
        "20 threads": _threads,
    }
    ways: dict[str, Way] = {
        name: partial(_counted, name, run, count, most) for name, run in runs.items()
    }
    costs = await costs_of(ways, scale)
    figures = rates(costs, count) | per_value(costs, count)
    figures |= {f"{name}, bodies": float(most[name]) for name in runs}
    figures |= rate_ratios(costs, [("graph", name) for name in list(runs)[1:]])
    return figures | {"graph, items_max": float(graph.items_max)}


async def _counted(
    name: str, run: Callable[[int], Awaitable[list[bytes]]], count: int, most: dict[str, int]
) -> None:
    Body.most = Body.alive
    got = await run(count)
    expect(name, (len(got), set(got)), (count, {hashlib.sha256(BODY).digest()}))
    del got
    most[name] = Body.most


def _graph(count: int) -> tuple[Graph, list[bytes]]:
    graph, got = Graph(), list[bytes]()
    flow = graph.source(range(count)).amap(download, lanes=DOWNLOADS)
    flow = flow.map(hashed, lanes=THREADS).map(compressed, lanes=THREADS)
    flow.amap(upload, lanes=UPLOADS).sink(got.append, on="loop")
    return graph, got


async def _through_graph(count: int) -> list[bytes]:
    graph, got = _graph(count)
    await run_graph(graph)
    return got


def _stages() -> list[Stage]:
    """Return what is awaited for a value, and how many of each at once."""
    return [
        Stage(download, DOWNLOADS),
        Stage(partial(asyncio.to_thread, hashed), THREADS),
        Stage(partial(asyncio.to_thread, compressed), THREADS),
        Stage(upload, UPLOADS),
    ]


async def _plain_workers(count: int) -> list[bytes]:
    got: list[bytes] = []
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            body = await download(number)
            body = await asyncio.to_thread(hashed, body)
            body = await asyncio.to_thread(compressed, body)
            got.append(await upload(body))
            del body

    async with asyncio.TaskGroup() as group:
        for _ in range(DOWNLOADS):
            group.create_task(work())
    return got


async def _threads(count: int) -> list[bytes]:
    def work(_number: int) -> bytes:
        time.sleep(DOWNLOAD_S)
        body = compressed(hashed(Body()))
        time.sleep(UPLOAD_S)
        return body.digest

    def run() -> list[bytes]:
        with ThreadPoolExecutor(DOWNLOADS) as pool:
            return list(pool.map(work, range(count)))

    return await asyncio.to_thread(run)
