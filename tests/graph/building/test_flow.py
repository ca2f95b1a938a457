"""Each operator of the builder gives the values that its name says."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from rowlock.graph import Flow, Graph, run_graph
from rowlock.graph.stock.carriers import LimitProcessor
from rowlock.testing import virtual_time

from ...lengths import at_length
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


@pytest.mark.parametrize("seed", range(at_length(4, 20)))
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


async def looped(build: Callable[[Flow[Any]], Flow[Any]], items: Any) -> list[Any]:
    """Run values through operators, and return what comes out."""
    graph = Graph("test")
    found: list[Any] = []
    build(graph.source(items)).sink(found.append, on="loop")
    await run_graph(graph)
    return found


@virtual_time
async def test_a_timeout_is_of_one_call() -> None:
    """A slow value would keep its lane, or end the run."""

    async def call(value: int) -> int:
        await asyncio.sleep(value)
        return value

    late: list[int] = []

    def note(value: int, error: Exception) -> None:
        assert isinstance(error, TimeoutError)
        late.append(value)

    found = await looped(lambda flow: flow.amap(call, timeout=2.5, on_error=note), range(5))
    assert (found, late) == ([0, 1, 2], [3, 4])


def square(value: int) -> int:
    return value * value


def all_squares(values: list[int]) -> list[int]:
    return [value * value for value in values]


async def test_calls_in_processes() -> None:
    """A function that computes would keep the loop and the threads from all else."""
    expected = [value * value for value in range(6)]
    assert await looped(lambda flow: flow.map(square, on="process"), range(6)) == expected
    found = await looped(lambda flow: flow.map_batch(all_squares, size=4, on="process"), range(6))
    assert found == expected


class Ends(Exception):
    """Ends a run."""


class Watched:
    """A generator that notes its end, and a read during it."""

    def __init__(self, count: int) -> None:
        self.count, self.closed = count, 0
        self.reading = threading.Lock()

    def values(self) -> Iterator[int]:
        try:
            for number in range(self.count):
                with self.reading:
                    pass
                yield number
        finally:
            assert self.reading.acquire(blocking=False)
            self.reading.release()
            self.closed += 1

    async def async_values(self) -> AsyncIterator[int]:
        try:
            for number in range(self.count):
                await asyncio.sleep(0)
                yield number
        finally:
            self.closed += 1


def raising(value: int) -> int:
    if value == 20:
        raise Ends
    return value


def flat(watched: Watched) -> Any:
    return lambda graph: graph.source([1]).flat_map(lambda _one: watched.values())


SOURCES: dict[str, Callable[[Watched], Callable[[Graph], Flow[int]]]] = {
    "thread": lambda watched: lambda graph: graph.source(watched.values()),
    "loop": lambda watched: lambda graph: graph.source(watched.values(), on="loop"),
    "async": lambda watched: lambda graph: graph.source(watched.async_values()),
    "flat": flat,
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("end", ["all", "limit", "error", "interrupt", "time", "cancelled"])
async def test_generators_are_closed_once(source: str, end: str) -> None:
    """A file would stay open, or be closed while it is read."""
    watched = Watched(100 if end == "all" else 10_000)
    graph = Graph()
    flow = SOURCES[source](watched)(graph)
    seen = 0

    def count(_value: int) -> None:
        nonlocal seen
        seen += 1
        if end == "cancelled" and seen == 10:
            task.cancel()

    if end == "all":
        flow = flow.filter(lambda one: one % 10 == 0, on="loop")
    flow = flow.limit(15) if end == "limit" else flow
    flow = flow.map(raising, on="loop") if end == "error" else flow
    flow.sink(count, on="loop")
    task = asyncio.ensure_future(
        run_graph(
            graph,
            keep_going=(lambda: seen < 12) if end == "interrupt" else None,
            time_limit=0.05 if end == "time" else None,
        )
    )
    expected = {"error": Ends, "cancelled": asyncio.CancelledError}
    (result,) = await asyncio.gather(task, return_exceptions=True)
    if end in expected:
        assert isinstance(result, expected[end])
    assert watched.closed == 1
    if end in {"limit", "error"}:
        assert seen <= 20


async def test_dropped_values_are_counted() -> None:
    """A host would not learn how many of its values failed."""
    heard: list[int] = []
    graph = Graph()
    flow = graph.source(range(10)).map(
        lambda one: 1 // (one % 2), lanes=2, name="odd", on_error=lambda one, _: heard.append(one)
    )
    flow.filter(lambda _one: False, name="none").sink(print)
    statistics = {one.name: one for one in (await run_graph(graph)).operators}
    assert sorted(heard) == [0, 2, 4, 6, 8]
    assert (statistics["odd"].failed, statistics["none"].dropped) == (5, 5)
    assert all(one.held == 0 for one in statistics.values())


async def test_small_values_pass_a_large_one() -> None:
    """Open groups are read in turn: thirty small values pass a large one."""
    found: list[int] = []
    graph = Graph()
    flow = graph.source([1000, *range(30)]).fan_out(range, lambda parts: parts.map(abs, on="loop"))
    flow.limit(30).sink(lambda one: found.append(one[0]), on="loop")
    await run_graph(graph)
    assert found == list(range(30))
