"""What one hop costs: five plain operators that do next to nothing, one by one and in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from graphs.costs import Cost, Way, costs_of, cpu_ratios, expect, per_value
from graphs.lines import (
    Function,
    through_aiostream,
    through_anyio,
    through_executor,
    through_graph,
    through_one_operator,
    through_queues,
)
from measure import Figures, Place, Scale

BLOCK = 100


def same(value: Any) -> Any:
    return value


def counted(values: list[int]) -> list[int]:
    return [value + 1 for value in values]


async def hops(place: Place, scale: Scale) -> Figures:
    """Return what a value costs on its way through five operators, one by one."""
    del place
    count = scale.pick(10_000, 1_000)
    costs = await _costs(range(count), same, scale)
    return per_value(costs, count) | _ratios(costs)


async def blocks(place: Place, scale: Scale) -> Figures:
    del place
    count = scale.pick(2_000, 200)
    values = [list(range(BLOCK)) for _ in range(count)]
    costs = await _costs(values, counted, scale)
    return per_value(costs, count * BLOCK) | _ratios(costs)


async def _costs(values: Sequence[Any], function: Function, scale: Scale) -> dict[str, Cost]:
    ways = {
        "graph": partial(through_graph, values, function, on="loop"),
        "graph, 2 threads": partial(through_graph, values, function, on="thread"),
        "graph, one operator": partial(through_one_operator, values, function),
        "Queue(16)": partial(through_queues, values, function, size=16),
        "Queue(1)": partial(through_queues, values, function, size=1),
        "anyio(16)": partial(through_anyio, values, function, size=16),
        "aiostream": partial(through_aiostream, values, function),
        "executor": partial(through_executor, values, function),
    }
    return await costs_of(
        {name: _checked(name, way, len(values)) for name, way in ways.items()}, scale
    )


def _checked(name: str, way: Way, count: int) -> Way:
    async def run() -> None:
        expect(name, await way(), count)

    return run


def _ratios(costs: dict[str, Cost]) -> Figures:
    rivals = ("Queue(16)", "Queue(1)", "anyio(16)", "aiostream")
    pairs = [("graph", rival) for rival in rivals]
    pairs += [("graph, one operator", "Queue(16)"), ("graph, 2 threads", "executor")]
    return cpu_ratios(costs, pairs)
