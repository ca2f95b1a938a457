"""What went wrong in other libraries for streams of values: aiostream, pypeln, SPDL, Morpheus, Ray.

Each test is the report of a user there, written for our graphs.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from rowlock.graph import Graph, GraphRuntime, run_graph, stream_graph
from rowlock.testing import virtual_time


class Events:
    """An endless asynchronous source, and how often it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    async def values(self) -> AsyncIterator[int]:
        try:
            while True:
                await asyncio.sleep(0.5)
                yield 1
        finally:
            self.closed += 1


@virtual_time
async def test_merged_generators_are_closed_at_a_timeout() -> None:
    """aiostream 61: a generator would be closed while it runs, and raise about that instead."""
    events = [Events(), Events()]
    seen = 0

    async def consume() -> None:
        nonlocal seen
        graph = Graph()
        first, second = (graph.source(one.values()) for one in events)
        async with stream_graph(first.merge(second)) as values:
            async for value in values:
                seen += value

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consume(), 3.2)
    assert seen == 12
    assert [one.closed for one in events] == [1, 1]


@virtual_time
async def test_consumer_returns_from_within_a_merged_stream() -> None:
    """aiostream 65: leaving the loop by ``return`` would raise what closing the sources raises."""

    async def consume() -> int | None:
        graph = Graph()
        merged = graph.source([1, 2, 3, 4]).merge(graph.source([4, 5, 6, 7]))
        async with stream_graph(merged) as values:
            async for value in values:
                if value > 5:
                    return value
        return None

    assert await consume() == 6


@virtual_time
async def test_sources_that_fail_at_the_same_time() -> None:
    """aiostream 71: the second error would come as "Task exception was never retrieved"."""
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, told: reported.append(told))

    async def failing(number: int) -> AsyncIterator[int]:
        await asyncio.sleep(1)
        raise LookupError(number)
        yield number

    graph = Graph()
    merged = graph.source(failing(1)).merge(graph.source(failing(2)))

    async def consume() -> None:
        async with stream_graph(merged) as values:
            async for _ in values:
                pass

    with pytest.raises(LookupError):
        await consume()
    gc.collect()
    await asyncio.sleep(1)
    assert reported == []


@virtual_time
async def test_ordered_lanes_go_on_behind_a_slow_head() -> None:
    """aiostream 89: the fifth call would begin only when the first, slow one has ended."""
    loop = asyncio.get_running_loop()
    began: dict[int, float] = {}
    start = loop.time()

    async def slow_first(number: int) -> int:
        began[number] = loop.time() - start
        await asyncio.sleep(max(0, 10 - 4 * number))
        return number

    graph = Graph()
    found: list[int] = []
    flow = graph.source(range(5)).amap(slow_first, lanes=4, keep_order=True)
    flow.sink(found.append, on="loop")
    await run_graph(graph)
    assert found == [0, 1, 2, 3, 4]
    assert began[4] == 0


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_input_that_raises_ends_the_run(place: Any) -> None:
    """pypeln 107: the run would go on, or look complete, after its input has failed."""

    def values() -> Iterator[int]:
        yield from range(7)
        raise LookupError("input")

    graph = Graph()
    found: list[int] = []
    graph.source(values(), on=place).map(abs, lanes=2).sink(found.append, on="loop")
    with pytest.raises(LookupError, match="input"):
        await run_graph(graph)
    assert set(found) <= set(range(7))


def fails_at_ten(number: int) -> int:
    assert number != 10
    return number


async def test_error_behind_a_throttled_input_ends_the_run() -> None:
    """pypeln 110: the feeding thread would wait for ever for room in front of what has failed."""
    graph = Graph()
    numbers = graph.source(iter(range(100)), on="thread")
    numbers.map(fails_at_ten, lanes=2, on="process").sink(id, on="loop")
    with pytest.raises(AssertionError) as raised:
        await run_graph(graph, shows_values=True)
    assert any("with 10" in note for note in raised.value.__notes__)


@virtual_time
async def test_chained_stages_are_throttled_by_the_last() -> None:
    """pypeln 111: the first of two stages would be drained at once, whatever its bound."""
    loaded: list[int] = []
    may_go_on = asyncio.Event()

    def load(number: int) -> int:
        loaded.append(number)
        return number

    async def process(number: int) -> int:
        await may_go_on.wait()
        return number

    graph = Graph()
    found: list[int] = []
    flow = graph.source(range(10)).map(load, on="loop").amap(process)
    flow.sink(found.append, on="loop")
    run = asyncio.create_task(run_graph(graph))
    await asyncio.sleep(1)
    # One is worked on, one is in the edge before it, and one is ready to follow.
    assert len(loaded) <= 3
    may_go_on.set()
    await run
    assert found == list(range(10))


async def test_nested_run_whose_source_waits_for_its_sink() -> None:
    """SPDL 1624: the read of a nested run's source would keep the only thread from its calls."""
    runtime = GraphRuntime(threads_max=1)

    def fused(count: int) -> int:
        stored: SimpleQueue[int] = SimpleQueue()

        def read() -> Iterator[int]:
            for number in range(count):
                yield number
                assert stored.get(timeout=60) == number

        graph = Graph("inner")
        graph.source(read(), on="thread").map(abs).sink(stored.put)
        asyncio.run(run_graph(graph, runtime=runtime))
        return count

    graph = Graph("outer")
    found: list[int] = []
    graph.source([40, 200]).map(fused).sink(found.append, on="loop")
    await run_graph(graph, runtime=runtime)
    runtime.close()
    assert found == [40, 200]


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_source_ends_with_the_stage_that_raises(place: Any) -> None:
    """Morpheus 1525: the source would go on until all its values are read, for a failed run."""
    made: list[int] = []
    closed: list[bool] = []

    def values() -> Iterator[int]:
        try:
            for number in range(10**9):
                made.append(number)
                yield number
        finally:
            closed.append(True)

    def fail(number: int) -> int:
        if number == 1:
            raise LookupError
        return number

    graph = Graph()
    graph.source(values(), on=place).map(fail, on=place).sink(id, on="loop")
    with pytest.raises(LookupError):
        await run_graph(graph)
    assert len(made) <= 2 + graph.items_max
    assert closed == [True]


async def test_stages_in_front_do_not_starve_the_last() -> None:
    """Ray 40753: the first stages would get all threads, and values pile up before the last."""
    lock = threading.Lock()
    inside = most = 0

    def load(number: int) -> int:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        return number

    def store(_number: int) -> None:
        nonlocal inside
        with lock:
            inside -= 1

    graph = Graph()
    loaded = graph.source(iter(range(500)), on="thread").map(load, lanes=8)
    loaded.sink(store)
    await run_graph(graph, threads=1)
    assert inside == 0
    assert most <= graph.items_max
