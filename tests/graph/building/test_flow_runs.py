"""What the builder makes, run: in the loop, in threads and in processes."""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from rowlock.errors import GraphDeadlockError
from rowlock.graph.flow import Flow, Graph
from rowlock.graph.run import run_graph
from rowlock.testing import virtual_time


async def ran(build: Callable[[Flow[Any]], Flow[Any]], items: Any) -> list[Any]:
    """Run values through operators, and return what comes out."""
    graph = Graph("test")
    found: list[Any] = []
    build(graph.source(items)).sink(found.append, on="loop")
    await run_graph(graph)
    return found


async def hop(value: Any) -> Any:
    """Come back in a later step of the loop."""
    await asyncio.sleep(0)
    return value


def negated(values: Any) -> list[int]:
    return [-value for value in values]


def merged(flows: list[Flow[Any]]) -> Flow[Any]:
    return flows[0].merge(*flows[1:])


OPERATORS: dict[str, tuple[Callable[[Flow[Any], int], Flow[Any]], Callable[[list[int]], Any]]] = {
    "map": (
        lambda flow, lanes: flow.map(lambda one: one + 1, lanes=lanes),
        lambda all_: [one + 1 for one in all_],
    ),
    "loop": (
        lambda flow, lanes: flow.map(lambda one: one * 2, lanes=lanes, on="loop"),
        lambda all_: [one * 2 for one in all_],
    ),
    "amap": (lambda flow, lanes: flow.amap(hop, lanes=lanes), lambda all_: all_),
    "ordered": (
        lambda flow, lanes: flow.map(lambda one: one, lanes=lanes, keep_order=True),
        lambda all_: all_,
    ),
    "keyed": (
        lambda flow, lanes: flow.amap(hop, lanes=lanes, keep_order=lambda one: one % 3),
        lambda all_: all_,
    ),
    "filter": (
        lambda flow, lanes: flow.filter(lambda one: one % 3, lanes=lanes, keep_order=True),
        lambda all_: [one for one in all_ if one % 3],
    ),
    "flat": (
        lambda flow, lanes: flow.flat_map(lambda one: [one] * (one % 3), lanes=lanes),
        lambda all_: [one for one in all_ for _ in range(one % 3)],
    ),
    "batch": (lambda flow, _lanes: flow.batch(3).unbatch(), lambda all_: all_),
    "batches": (
        lambda flow, lanes: flow.map_batch(
            lambda each: [-one for one in each], size=4, lanes=lanes
        ),
        lambda all_: [-one for one in all_],
    ),
    "buffer": (lambda flow, lanes: flow.buffer(lanes), lambda all_: all_),
    "parts": (
        lambda flow, lanes: flow.fan_out(
            lambda one: range(one % 4), lambda parts: parts.amap(hop, lanes=lanes), groups=lanes
        ).map(lambda found: found[0] + len(found[1]), on="loop"),
        lambda all_: [one + one % 4 for one in all_],
    ),
    "duplicate": (lambda flow, _lanes: merged(flow.duplicate(2)), lambda all_: all_ * 2),
}


@pytest.mark.parametrize("seed", range(60))
async def test_random_chains(seed: int) -> None:
    """A value would be lost, or come twice, where two operators meet."""
    chance = random.Random(seed)
    names = chance.choices(sorted(OPERATORS), k=chance.randint(1, 7))
    count = chance.randint(0, 40)
    expected: list[int] = list(range(count))
    for name in names:
        expected = OPERATORS[name][1](expected)
    if len(expected) > 2000:
        return

    def build(flow: Flow[Any]) -> Flow[Any]:
        for name in names:
            flow = OPERATORS[name][0](flow, chance.randint(1, 4))
        return flow

    assert sorted(await ran(build, range(count))) == sorted(expected), names


@virtual_time
async def test_lanes_go_on_behind_a_slow_value() -> None:
    """One slow value would stop all lanes although only its order is asked for."""
    begun: list[int] = []
    first = asyncio.Event()

    async def call(value: int) -> int:
        begun.append(value)
        if value == 0:
            await first.wait()
        if value == 5:
            first.set()
        return value

    found = await ran(lambda flow: flow.amap(call, lanes=3, keep_order=True), range(9))
    assert found == list(range(9))


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

    found = await ran(lambda flow: flow.amap(call, timeout=2.5, on_error=note), range(5))
    assert (found, late) == ([0, 1, 2], [3, 4])


@virtual_time
async def test_a_batch_waits_no_longer_than_it_may() -> None:
    """The first value of a batch would wait for others that do not come."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    seen: list[tuple[float, list[int]]] = []

    async def slow() -> AsyncIterator[int]:
        for number in range(5):
            yield number
            await asyncio.sleep(4)

    graph = Graph()
    batches = graph.source(slow()).batch(3, within=6)
    batches.sink(lambda batch: seen.append((loop.time() - begin, batch)), on="loop")
    await run_graph(graph)
    assert seen == [(6, [0, 1]), (14, [2, 3]), (20, [4])]


def square(value: int) -> int:
    return value * value


def all_squares(values: list[int]) -> list[int]:
    return [value * value for value in values]


async def test_calls_in_processes() -> None:
    """A function that computes would keep the loop and the threads from all else."""
    expected = [value * value for value in range(6)]
    assert sorted(await ran(lambda flow: flow.map(square, lanes=2, on="process"), range(6))) == (
        expected
    )
    found = await ran(lambda flow: flow.map_batch(all_squares, size=4, on="process"), range(6))
    assert found == expected


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


async def test_calls_have_the_context_of_the_run() -> None:
    """A request's own variables would be missing where its values are worked on."""
    VARIABLE.set("of the run")

    async def read(_value: int) -> str:
        return VARIABLE.get()

    assert await ran(lambda flow: flow.map(lambda _one: VARIABLE.get()), [1]) == ["of the run"]
    on_loop = await ran(lambda flow: flow.map(lambda _one: VARIABLE.get(), on="loop"), [1])
    assert on_loop == ["of the run"]
    assert await ran(lambda flow: flow.amap(read), [1]) == ["of the run"]


class Ends(Exception):
    """Ends a run."""


class Watched:
    """A generator that notes its end, and a read during it."""

    def __init__(self) -> None:
        self.closed = 0
        self.reading = threading.Lock()

    def values(self) -> Iterator[int]:
        try:
            for number in range(10_000):
                with self.reading:
                    pass
                yield number
        finally:
            assert self.reading.acquire(blocking=False)
            self.reading.release()
            self.closed += 1

    async def async_values(self) -> AsyncIterator[int]:
        try:
            for number in range(10_000):
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
    watched = Watched()
    graph = Graph()
    flow = SOURCES[source](watched)(graph)
    seen = 0

    def count(_value: int) -> None:
        nonlocal seen
        seen += 1
        if end == "cancelled" and seen == 10:
            task.cancel()

    if end == "all":
        flow = flow.filter(lambda one: one % 1000 == 0, on="loop")
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


async def test_a_limit_ends_upstream() -> None:
    """A source would be read to its end although enough values came through."""
    read = 0

    def endless() -> Iterator[int]:
        nonlocal read
        for number in range(10**9):
            read += 1
            yield number

    graph = Graph()
    found: list[int] = []
    flow = graph.source(endless()).map(math.sqrt, lanes=3, keep_order=True).limit(5)
    flow.sink(found.append)
    await run_graph(graph)
    assert found == [math.sqrt(number) for number in range(5)]
    assert read <= 5 + graph.items_max


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
    """Open groups are read in turn: a hundred small values pass a large one."""
    found: list[int] = []
    graph = Graph()
    flow = graph.source([10_000, *range(100)]).fan_out(
        range, lambda parts: parts.map(abs, on="loop")
    )
    flow.limit(100).sink(lambda one: found.append(one[0]), on="loop")
    await run_graph(graph)
    assert found == list(range(100))


async def test_a_diamond_without_room_is_reported() -> None:
    """A graph would wait for ever, and a host guess where."""
    graph = Graph()
    one, other = graph.source(range(500)).duplicate(2)
    one.zip(other.batch(100).unbatch(), ahead=16).sink(print)
    with pytest.raises(GraphDeadlockError) as raised:
        await run_graph(graph)
    assert {"zip", "batch", "duplicate"} <= set(raised.value.cycle)
    graph = Graph()
    found: list[Any] = []
    one, other = graph.source(range(500)).duplicate(2)
    one.zip(other.batch(100).unbatch(), ahead=101).sink(found.append, on="loop")
    await run_graph(graph)
    assert found == [(number, number) for number in range(500)]


async def test_keyed_values_run_one_at_a_time() -> None:
    """Two updates of one account would run at once."""
    running: defaultdict[str, int] = defaultdict(int)
    order: defaultdict[str, list[int]] = defaultdict(list)
    lock = threading.Lock()

    def update(value: tuple[str, int]) -> tuple[str, int]:
        with lock:
            running[value[0]] += 1
            assert running[value[0]] == 1
            order[value[0]].append(value[1])
        with lock:
            running[value[0]] -= 1
        return value

    values = [(random.Random(number).choice("abc"), number) for number in range(300)]
    found = await ran(lambda flow: flow.map(update, lanes=4, keep_order=lambda one: one[0]), values)
    assert len(found) == 300
    for key, numbers in order.items():
        assert numbers == [number for name, number in values if name == key]
        assert [number for name, number in found if name == key] == numbers
