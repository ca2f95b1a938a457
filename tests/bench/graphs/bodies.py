"""What a graph keeps in memory: bodies of a megabyte beside the bound that it names, and nodes."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

from graphs.chains import chain_of
from measure import Figures, Place, Scale

from rowlock.graph import Graph, run_graph

BODY_BYTES = 1_000_000
NODES = 20_000


async def memory(place: Place, scale: Scale) -> Figures:
    """Return the peak beside `Graph.items_max`, in bodies, and bytes per node."""
    del place
    graph = _graph(scale.pick(300, 60))
    tracemalloc.start()
    try:
        before = _traced()
        tracemalloc.reset_peak()
        await run_graph(graph)
        peak = (tracemalloc.get_traced_memory()[1] - before) / BODY_BYTES
        left = (_traced() - before) / BODY_BYTES
        node, node_in_run = await _bytes_per_node(scale.pick(NODES, 2_000))
    finally:
        tracemalloc.stop()
    return {
        "bodies at the peak": peak,
        "items_max": float(graph.items_max),
        "peak / items_max": peak / graph.items_max,
        "bodies after the run": left,
        "B/node of a graph": node,
        "B/node after its run": node_in_run,
    }


def _graph(count: int) -> Graph:
    graph = Graph()
    flow = graph.source((bytes(BODY_BYTES) for _ in range(count)), on="thread")
    flow = flow.map(_copied, lanes=2).amap(_waited, lanes=8).map(_copied, lanes=4)
    return flow.sink(len)


def _copied(body: bytes) -> bytes:
    # The item and the result of a call are two values while it runs.
    return bytes(bytearray(body)[:BODY_BYTES])


async def _waited(body: bytes) -> bytes:
    return body


async def _bytes_per_node(nodes: int) -> tuple[float, float]:
    before, got = _traced(), list[Any]()
    graph = chain_of(nodes, got)
    built = _traced() - before
    await run_graph(graph)
    return built / nodes, (_traced() - before) / nodes


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
