"""Random graphs whose calls wait for other calls, on few threads: a lost wake-up would hang one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random

import pytest

from rowlock.graph import Flow, Graph, GraphRuntime, run_graph

from ...lengths import at_length


def itself(value: int) -> int:
    return value


async def awaited(value: int) -> int:
    await asyncio.sleep(0)
    return value


def widened(flow: Flow[int], random: Random) -> Flow[int]:
    lanes = random.randint(1, 4)
    match random.randrange(5):
        case 0:
            return flow.map(itself, lanes=lanes)
        case 1:
            return flow.map(itself, lanes=lanes, keep_order=True)
        case 2:
            return flow.map(itself, lanes=lanes, keep_order=lambda one: one % 3)
        case 3:
            return flow.amap(awaited, lanes=lanes)
        case _:
            return flow.batch(random.randint(1, 9)).unbatch()


class Waits:
    """Graphs of one seed: sources that block a thread, and runs within calls of runs."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.seed = seed
        self.runtime = GraphRuntime(threads_max=random.choice((1, 1, 2)))
        self.depth = random.randint(0, 2)

    def graph(self, level: int, value: int = 0) -> tuple[Graph, list[int], int]:
        """Return a graph, the list that its sink fills, and how many values are to come."""
        random = Random(1000 * self.seed + 10 * level + value)
        graph, found = Graph(f"level {level}"), list[int]()
        count, width = random.randint(1, at_length(50, 150)), random.randint(1, 3)
        numbers: list[Iterable[int]] = [iter(range(count)) for _ in range(width)]
        flow, *others = [graph.source(one, on="thread") for one in numbers]
        flow = flow.merge(*others)
        for _ in range(random.randint(1, 3)):
            flow = widened(flow, random)
        if level < self.depth:
            flow = flow.map(lambda value: self.nested(value, level + 1), lanes=2)
        flow.sink(found.append)
        return graph, found, count * width

    def nested(self, value: int, level: int) -> int:
        """Run a graph within this call, for the first values."""
        if value < 2:
            graph, found, count = self.graph(level, value)
            asyncio.run(run_graph(graph, runtime=self.runtime))
            assert len(found) == count
        return value


@pytest.mark.parametrize("seed", range(at_length(4, 16)))
async def test_calls_that_wait_for_calls(seed: int) -> None:
    """A run would hang: its next call waits for a thread, and all threads wait or sleep."""
    waits = Waits(seed)
    graph, found, count = waits.graph(0)
    await run_graph(graph, runtime=waits.runtime)
    waits.runtime.close()
    assert len(found) == count
