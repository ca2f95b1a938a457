"""How soon a run ends at its time limit, and what it costs to wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from graphs.costs import cost_of
from measure import Figures, Place, Scale

from rowlock.errors import GraphTimeLimit
from rowlock.graph import Flow, Graph, StandingGraph, run_graph
from rowlock.graph.threads import GraphRuntime

LIMIT_S = 0.2
WAITS_S = 1.0
BEGINS_S = 0.5
LANES = 100


async def limits(place: Place, scale: Scale) -> Figures:
    """Return by how many milliseconds a run outlasts its limit, by where its calls are."""
    del place
    runs: dict[str, Callable[[], Awaitable[object]]] = {
        "100 coroutines": lambda: run_graph(_of_coroutines(), time_limit=LIMIT_S),
        "functions in the loop": lambda: run_graph(_of_functions(on_loop=True), time_limit=LIMIT_S),
        "functions in threads": lambda: run_graph(_of_functions(on_loop=False), time_limit=LIMIT_S),
        "two child processes": lambda: run_graph(_of_processes(), time_limit=LIMIT_S),
        "100 plain tasks": _plain_tasks,
    }
    names = list(reversed(runs)) if scale.limit_first else list(runs)
    found = {name: await _over_s(runs[name]) for name in names}
    return {f"{name}: late by ms": found[name] * 1e3 for name in runs}


async def waiting(place: Place, scale: Scale) -> Figures:
    """Return the processor time of a second in which a graph waits, in milliseconds."""
    del place, scale

    async def nothing() -> None:
        await asyncio.sleep(WAITS_S)

    async def run() -> None:
        graph = Graph()
        flow = graph.source(range(LANES)).amap(_sleep, lanes=LANES).map(_same, lanes=4)
        await run_graph(flow.sink(_same))

    found = {"nothing": await cost_of(nothing)}
    running = asyncio.create_task(run())
    await asyncio.sleep(BEGINS_S)
    found["a run"] = await cost_of(nothing)
    await running
    async with StandingGraph(_with_threads, runtime=GraphRuntime()) as standing:
        await standing.submit(0)
        found["a standing graph"] = await cost_of(nothing)
    return {f"{name}: CPU ms": cost.cpu_s * 1e3 for name, cost in found.items()}


def _with_threads(flow: Flow[int]) -> Flow[int]:
    return flow.map(_same, lanes=4).amap(_at_once, lanes=LANES)


def _of_coroutines() -> Graph:
    graph = Graph()
    return graph.source(range(1_000)).amap(_sleep_long, lanes=LANES).asink(_at_once)


def _of_functions(*, on_loop: bool) -> Graph:
    graph, on = Graph(), "loop" if on_loop else "thread"
    flow = graph.source(iter(int, 1), on=on)
    for _ in range(5):
        flow = flow.map(_work, on=on)
    return flow.sink(_same, on=on)


def _of_processes() -> Graph:
    graph = Graph()
    return graph.source([60] * 10).map(time.sleep, on="process", lanes=2).sink(_same)


def _same(value: int) -> int:
    return value


def _work(value: int) -> int:
    return value + sum(range(1_000))


async def _at_once(value: int) -> int:
    return value


async def _sleep(value: int) -> int:
    await asyncio.sleep(BEGINS_S + 2 * WAITS_S)
    return value


async def _sleep_long(value: int) -> int:
    await asyncio.sleep(60)
    return value


async def _plain_tasks() -> None:
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        for value in range(LANES):
            group.create_task(_sleep_long(value))


async def _over_s(run: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    try:
        await run()
    except (GraphTimeLimit, TimeoutError):
        return time.perf_counter() - began - LIMIT_S
    msg = "it has ended before its limit"
    raise AssertionError(msg)
