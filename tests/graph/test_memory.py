"""What a graph that has ended leaves in memory."""

from __future__ import annotations

import asyncio
import gc
import weakref

from rowlock.graph import Graph
from rowlock.graph.run import run_graph
from rowlock.graph.threads import GraphRuntime


async def test_a_sleeping_thread_keeps_no_graph_alive() -> None:
    """What a host has put into a graph would stay in memory until the next one runs."""
    runtime = GraphRuntime(threads_max=2)

    async def run() -> weakref.ref[Graph]:
        graph = Graph()
        graph.source(range(3)).map(str).sink(str)
        await run_graph(graph, runtime=runtime)
        return weakref.ref(graph)

    graph = await run()
    while len(runtime._sleepers) < runtime.threads:  # noqa: ASYNC110 - it is about to
        await asyncio.sleep(0)
    gc.collect()
    assert graph() is None
    runtime.close()
