"""Three coroutines one after the other, each of which yields to the loop once, in one lane each and
in eight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from graphs.costs import Way, costs_of, cpu_ratios, expect, per_value
from graphs.stages import Stage, through_aiostream, through_anyio, through_queues
from measure import Figures, Place, Scale

from rowlock.graph import Graph, run_graph

STEPS = 3
LANES = (1, 8)


async def step(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def coroutines(place: Place, scale: Scale) -> Figures:
    """Return what a value costs on its way through three coroutines."""
    del place
    count = scale.pick(4_000, 400)
    runs: dict[str, Callable[..., Awaitable[list[int]]]] = {
        "graph": _through_graph,
        "Queue(16)": partial(through_queues, size=16),
        "anyio(16)": partial(through_anyio, size=16),
        "aiostream": through_aiostream,
    }
    ways: dict[str, Way] = {
        f"{name}, {lanes} lanes": partial(_checked, name, run, count, lanes)
        for lanes in LANES
        for name, run in runs.items()
    }
    costs = await costs_of(ways, scale)
    pairs = [
        (f"graph, {lanes} lanes", f"{rival}, {lanes} lanes")
        for lanes in LANES
        for rival in list(runs)[1:]
    ]
    return per_value(costs, count) | cpu_ratios(costs, pairs)


async def _checked(
    name: str, run: Callable[..., Awaitable[list[int]]], count: int, lanes: int
) -> None:
    got = await run(range(count), [Stage(step, lanes)] * STEPS)
    expect(name, sorted(got), list(range(count)))


async def _through_graph(values: range, stages: list[Stage]) -> list[int]:
    graph, got = Graph(), list[int]()
    flow = graph.source(values)
    for stage in stages:
        flow = flow.amap(stage.step, lanes=stage.places)
    flow.sink(got.append, on="loop")
    await run_graph(graph)
    return got
