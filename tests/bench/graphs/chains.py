"""A chain of 100,000 nodes: one value through it, and for how long it keeps the event loop from the
host's other tasks.

A graph of that size is rare; it shows what looks at all nodes: checks, the beginning and the end of
a run. Beside it the same number of tasks, with a queue before each.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from graphs.costs import cost_of, expect
from graphs.hops import same
from measure import Figures, Place, Scale, beside

from rowlock.errors import GraphTimeLimit
from rowlock.graph import Graph, run_graph

NODES, NODES_IN_QUICK = 100_000, 5_000
LIMIT_S = 0.2
TICK_S = 0.001


def chain_of(nodes: int, got: list[Any], *, values: int = 1) -> Graph:
    """Return a graph of so many functions in the loop, one behind the other."""
    graph = Graph("chain")
    flow = graph.source(range(values))
    for _ in range(nodes):
        flow = flow.map(same, on="loop")
    return flow.sink(got.append, on="loop")


async def depth(place: Place, scale: Scale) -> Figures:
    """Return the seconds of one value through the chain, and of a run that is ended."""
    del place
    nodes = scale.pick(NODES, NODES_IN_QUICK)

    async def ours() -> Figures:
        began, got = time.perf_counter(), list[Any]()
        graph = chain_of(nodes, got)
        built_s = time.perf_counter() - began
        cost = await cost_of(lambda: run_graph(graph))
        expect("values", got, [0])
        return {
            "graph: built, s": built_s,
            "graph: run, s": cost.wall_s,
            "graph: CPU µs/node": cost.cpu_s / nodes * 1e6,
            f"graph: run with a limit of {LIMIT_S} s, s": await _limited(nodes),
        }

    async def tasks() -> Figures:
        cost = await cost_of(lambda: _tasks(nodes))
        return {"tasks: run, s": cost.wall_s, "tasks: CPU µs/node": cost.cpu_s / nodes * 1e6}

    theirs, figures = await beside(tasks, ours, limit_first=scale.limit_first)
    return figures | theirs


async def lag(place: Place, scale: Scale) -> Figures:
    """Return for how long the loop was kept from another task at most, in milliseconds."""
    del place
    nodes = scale.pick(NODES, NODES_IN_QUICK)

    async def ours() -> Figures:
        graph, got = _built(nodes)
        beside_it = await _lags("graph", run_graph(graph))
        expect("values", got, [0])
        with _no_collector():
            graph, got = _built(nodes)
            return beside_it | await _lags("graph, collector off", run_graph(graph))

    async def others() -> Figures:
        idle = await _lags("nothing", asyncio.sleep(1))
        return idle | await _lags("tasks", _tasks(nodes))

    theirs, figures = await beside(others, ours, limit_first=scale.limit_first)
    return figures | theirs


def _built(nodes: int) -> tuple[Graph, list[Any]]:
    got: list[Any] = []
    return chain_of(nodes, got), got


async def _limited(nodes: int) -> float:
    graph = chain_of(nodes, [], values=1_000_000)
    began = time.perf_counter()
    try:
        await run_graph(graph, time_limit=LIMIT_S)
    except GraphTimeLimit:
        return time.perf_counter() - began
    msg = "the run has ended before its limit"
    raise AssertionError(msg)


async def _tasks(nodes: int) -> None:
    """Pass one value through as many tasks, each with a queue before it."""
    queues = [asyncio.Queue[int](1) for _ in range(nodes + 1)]

    async def work(number: int) -> None:
        await queues[number + 1].put(same(await queues[number].get()))

    async with asyncio.TaskGroup() as group:
        for number in range(nodes):
            group.create_task(work(number))
        await queues[0].put(0)
        expect("value", await queues[-1].get(), 0)


async def _lags(name: str, work: Awaitable[object]) -> Figures:
    """Return what `work` does to a task that asks for a turn every millisecond.

    Processor time between two turns is what the loop spent on `work`; the rest of a lag is the
    machine's.
    """
    lags: list[float] = []
    spent: list[float] = []

    async def tick() -> None:
        while True:
            began, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK_S)
            lags.append((time.perf_counter() - began - TICK_S) * 1e3)
            spent.append((time.thread_time() - cpu) * 1e3)

    gc.collect()
    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    try:
        result = await work
        await asyncio.sleep(2 * TICK_S)
    finally:
        ticking.cancel()
    del result  # 100,000 rows of statistics, which are dropped at once
    lags.sort()
    return {
        f"{name}: p99, ms": lags[len(lags) * 99 // 100],
        f"{name}: most, ms": lags[-1],
        f"{name}: most, CPU ms": max(spent),
    }


@contextmanager
def _no_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
