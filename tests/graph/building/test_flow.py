"""Each operator of the builder gives the values that its name says."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from rowlock.graph.flow import Flow, Graph
from rowlock.graph.stock.carriers import LimitProcessor

from ..one_thread import Sequential


def ran(build: Callable[[Flow[Any]], Flow[Any]], items: Any, *, seed: int = 0) -> list[Any]:
    """Run values through operators, and return what comes out."""
    graph = Graph("test")
    found: list[Any] = []
    build(graph.source(items)).sink(found.append)
    chance = random.Random(seed)
    run = Sequential(graph).run(lambda calls: chance.randrange(len(calls)))
    assert run.is_finished
    return found


async def up_to(value: int) -> AsyncIterator[int]:
    for number in range(value):
        yield number


def test_a_processor_of_the_host_within_a_flow() -> None:
    """A processor of one's own can be used inside a flow, between lanes: `Flow.through`."""

    def build(flow: Flow[int]) -> Flow[str]:
        return flow.map(abs, lanes=2).through(LimitProcessor(9)).map(str, lanes=2)

    assert sorted(ran(build, [-1, -2, -3])) == ["1", "2", "3"]


def test_each_lane_has_its_own_function() -> None:
    """A model that is not made for several calls at once would get them."""
    running: list[int] = []
    most: list[int] = []

    def model(at: int) -> Callable[[int], int]:
        def call(value: int) -> int:
            running.append(at)
            most.append(running.count(at))
            running.remove(at)
            return at

        return call

    found = ran(lambda flow: flow.map([model(0), model(1), model(2)]), range(30))
    assert set(found) == {0, 1, 2}
    assert max(most) == 1


def test_asynchronous_source_and_sink() -> None:
    """A graph of coroutines would need threads."""
    graph, found = Graph(), []

    async def keep(value: int) -> None:
        found.append(value)

    graph.source(up_to(3)).asink(keep)
    Sequential(graph).run()
    assert found == [0, 1, 2]


@pytest.mark.parametrize(
    ("items", "place"),
    [([1], "loop"), (range(3), "loop"), ({1: 2}, "loop"), (iter([1]), "thread"), ("ab", "thread")],
)
def test_where_a_source_is_read(items: Any, place: str) -> None:
    """A list would cost a thread, or a generator block the loop."""
    graph = Graph()
    graph.source(items)
    assert graph.nodes[0].processor.place == place


def test_operators_are_named_after_their_functions() -> None:
    """Pictures and errors would name nothing that a host has written."""
    graph = Graph()
    graph.source([1]).map(str, lanes=2).map(lambda one: one, name="same").sink(print)
    lanes = [name for name in graph.operators if "(" not in name]
    assert lanes == ["source", "str", "same", "print"]
    assert len(graph.operators["str"]) == 2


def test_bound_for_values_in_memory() -> None:
    """A host could not know how much memory a graph needs."""
    graph = Graph()
    graph.source([1]).map(str).sink(print)
    # Two edges, and one value in each node but the source, which reads what is in memory anyway.
    assert graph.items_max == 2 + 2
    graph = Graph()
    graph.source([1]).map(str, lanes=4).buffer(10).sink(print)
    assert graph.items_max == sum((1, 4, 4, 1, 1)) + sum((0, 0, 4, 0, 10, 1))


@pytest.mark.parametrize("seed", range(20))
def test_values_in_memory_stay_below_the_bound(seed: int) -> None:
    """A host would plan its memory by a number that is too low."""
    graph = Graph()
    alive: set[int] = set()
    most = 0

    class Value:
        def __init__(self) -> None:
            nonlocal most
            alive.add(id(self))
            most = max(most, len(alive))

        def __del__(self) -> None:
            alive.discard(id(self))

    def kept(value: Value) -> Value:
        return value

    values = (Value() for _ in range(200))
    flow = graph.source(values).map(kept, lanes=3, keep_order=True, ahead=5).buffer(4)
    flow.map_batch(list, size=3, lanes=2).map(kept, lanes=2, keep_order=id).sink(id)
    chance = random.Random(seed)
    Sequential(graph).run(lambda calls: chance.randrange(len(calls)))
    assert not alive
    assert 10 < most <= graph.items_max
