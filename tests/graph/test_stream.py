"""`stream_output`: values as they come, errors as they are, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from rowlock.graph import Graph
from rowlock.graph.ports import OutputPort
from rowlock.graph.scheduling.stream import stream_output
from rowlock.testing import run_virtual, virtual_time

from .nodes import Apply, Feed
from .runs import applied


def open_graph(values: Any, *middle: Apply) -> tuple[Graph, OutputPort[Any]]:
    """Return a graph whose last output is open."""
    graph = Graph()
    graph.add_pipe([Feed(values)])
    for one in middle:
        graph.add_pipe([one])
    return graph, graph.open_outputs()[0]


@pytest.mark.parametrize("place", ["loop", "thread", "task"])
async def test_values_are_read_in_order(place: str) -> None:
    """A consumer would miss values, or wait for the end of the run."""
    graph, output = open_graph(range(20), applied(lambda x: x + 1, place))
    async with stream_output(graph, output) as values:
        assert [value async for value in values] == list(range(1, 21))


@virtual_time
async def test_slow_consumer_slows_the_graph() -> None:
    """Values would gather in memory before a consumer that is slow."""
    made: list[int] = []

    def counted() -> Iterator[int]:
        for value in range(10**6):
            made.append(value)
            yield value

    graph, output = open_graph(counted())
    async with stream_output(graph, output) as values:
        async for value in values:
            await asyncio.sleep(1)
            assert len(made) <= value + graph.items_max
            if value == 10:
                break


@virtual_time
async def test_consumer_that_leaves_ends_the_run() -> None:
    """The run would go on for nothing, and its source stay open."""
    closed: list[bool] = []

    def source() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            closed.append(True)

    graph, output = open_graph(source())
    async with stream_output(graph, output) as values:
        assert await anext(values) == 0
    assert closed == [True]


@virtual_time
async def test_error_is_raised_to_the_consumer() -> None:
    """A stream that failed would look like one that ended."""
    graph, output = open_graph([1, 0], Apply(lambda x: 1 // x))
    async with stream_output(graph, output) as values:
        assert await anext(values) == 1
        with pytest.raises(ZeroDivisionError):
            await anext(values)


@virtual_time
async def test_error_of_the_consumer_ends_the_run() -> None:
    """The consumer's own error would be hidden by the end of the run."""
    graph, output = open_graph(range(10**9))

    async def consume() -> None:
        async with stream_output(graph, output) as values:
            async for _ in values:
                raise LookupError

    with pytest.raises(LookupError):
        await consume()


def test_cancellation_at_each_suspension() -> None:
    """A consumer that is cancelled would leave a task or a timer behind."""
    steps = 0
    while cancel_at_step(steps):
        steps += 1
    assert steps > 20


def cancel_at_step(steps: int) -> bool:
    """Cancel a consumer after so many steps of the loop; return whether it was still reading."""

    async def scene() -> bool:
        async def consume() -> None:
            graph, output = open_graph(range(4), Apply(asyncio.sleep, is_async=True))
            async with stream_output(graph, output) as values:
                async for _ in values:
                    await asyncio.sleep(1)

        task = asyncio.create_task(consume())
        for step in range(1, steps + 1):
            # On this loop no time passes while something is ready.
            await asyncio.sleep(0 if step % 5 else 0.4)
        was_inside = not task.done()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or not was_inside
        assert asyncio.all_tasks() == {asyncio.current_task()}
        loop: Any = asyncio.get_running_loop()
        assert [timer for timer in loop._scheduled if not timer.cancelled()] == []
        return was_inside

    return run_virtual(scene)
