"""One operator with 1 to 1,000 lanes between two with one lane: a value costs the same."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from graphs.costs import Way, costs_of, cpu_ratios, expect, per_value
from graphs.hops import same
from measure import Figures, Place, Scale

from rowlock.graph import Graph, run_graph

WIDTHS = (1, 2, 10, 100, 1_000)
_END = object()


async def width(place: Place, scale: Scale) -> Figures:
    """Return what a value costs on its way from one lane to many, and back to one."""
    del place
    count = scale.pick(10_000, 2_000)
    ways: dict[str, Way] = {f"{lanes} lanes": partial(_spread, count, lanes) for lanes in WIDTHS}
    for lanes in (WIDTHS[1], WIDTHS[-1]):
        ways[f"Queue(16), {lanes} workers"] = partial(_workers, count, lanes)
    costs = await costs_of(ways, scale)
    few, many = f"{WIDTHS[1]} lanes", f"{WIDTHS[-1]} lanes"
    return per_value(costs, count) | cpu_ratios(costs, [(many, few)])


async def _spread(count: int, lanes: int) -> None:
    graph, got = Graph(), list[int]()
    flow = graph.source(range(count)).map(same, on="loop").map(same, on="loop", lanes=lanes)
    flow.sink(got.append, on="loop")
    await run_graph(graph)
    expect("values", sorted(got), list(range(count)))


async def _workers(count: int, workers: int) -> None:
    source, target = asyncio.Queue[Any](16), asyncio.Queue[Any](16)
    got: list[int] = []

    async def feed() -> None:
        for value in range(count):
            await source.put(same(value))
        for _ in range(workers):
            await source.put(_END)

    async def work() -> None:
        while (value := await source.get()) is not _END:
            await target.put(same(value))

    async with asyncio.TaskGroup() as group:
        group.create_task(feed())
        for _ in range(workers):
            group.create_task(work())
        got += [await target.get() for _ in range(count)]
    expect("values", sorted(got), list(range(count)))
