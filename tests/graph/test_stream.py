"""`stream_output`: values as they come, errors as they are, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rowlock.errors import GraphClosed, GraphDeadlockError, GraphError
from rowlock.graph import Graph, stream_graph
from rowlock.graph.processor import OutputPort, connect
from rowlock.graph.run import StreamSink, StreamValues, stream_output
from rowlock.testing import run_virtual, virtual_time

from .nodes import Apply, Feed
from .runs import applied, count_references


def open_graph(values: Any, *middle: Apply) -> tuple[Graph, OutputPort[Any]]:
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


async def second_later(value: int) -> int:
    await asyncio.sleep(1)
    return value


@pytest.mark.parametrize("pause_s", [0.5, 1, 3])
@pytest.mark.parametrize(
    "build",
    [
        lambda flow: flow.amap(second_later),
        lambda flow: flow.amap(second_later, lanes=3, keep_order=True),
        lambda flow: flow.amap(second_later, lanes=3),
        lambda flow: flow.batch(2, within=1).unbatch(),
    ],
)
@virtual_time
async def test_calls_that_end_while_the_consumer_works(build: Any, pause_s: float) -> None:
    """A stream with a slow consumer would be taken for a deadlock when a call ends meanwhile."""
    found: list[int] = []
    async with stream_graph(build(Graph().source(range(8)))) as values:
        async for value in values:
            found.append(value)
            await asyncio.sleep(pause_s)
    assert sorted(found) == list(range(8))


async def test_value_that_was_taken_is_held_until_its_node_is_asked() -> None:
    """A call that ends in a thread just then would find that nothing can go on."""
    sink, output = StreamSink[int](), OutputPort[int]()
    connect(output, sink.inputs[0])
    sink.event(())
    output.push(1)
    sink.event(())
    values = StreamValues("pages", sink, asyncio.create_task(asyncio.sleep(0)))
    assert await anext(values) == 1
    assert sink.is_open()
    assert not output.can_push
    sink.event(())
    assert not sink.is_open()
    assert output.can_push


@virtual_time
async def test_deadlock_is_found_while_the_consumer_works() -> None:
    """A graph that cannot go on would seem to wait for its consumer, and that for the graph."""
    whole, gathered = Graph().source(range(100)).duplicate(2)
    async with stream_graph(whole.zip(gathered.batch(50).unbatch())) as values:
        with pytest.raises(GraphDeadlockError):
            await anext(values)


@virtual_time
async def test_consumer_may_give_up_waiting() -> None:
    """A stream would be at its end after a timeout of its reader, and look complete."""
    found: list[int] = []
    timeouts = 0
    async with stream_graph(Graph().source(range(4)).amap(second_later)) as values:
        while len(found) < 4:
            try:
                found.append(await asyncio.wait_for(anext(values), 0.4))
            except TimeoutError:
                timeouts += 1
        with pytest.raises(StopAsyncIteration):
            await anext(values)
    assert found == [0, 1, 2, 3]
    assert timeouts == 8


@virtual_time
async def test_several_tasks_read_one_stream() -> None:
    """A second reader would get an error of Python's, or a value twice."""
    found: list[int] = []

    async def read(values: AsyncIterator[int]) -> None:
        async for value in values:
            found.append(value)
            await asyncio.sleep(value % 3)

    async with stream_graph(Graph().source(range(50)).amap(second_later, lanes=4)) as values:
        await asyncio.gather(*(read(values) for _ in range(5)))
    assert sorted(found) == list(range(50))


@virtual_time
async def test_reader_of_a_stream_that_was_left() -> None:
    """A task that still reads would seem to be cancelled, or to have read everything."""
    async with stream_graph(Graph("pages").source(range(4)).amap(second_later)) as values:
        reader = asyncio.create_task(anext(values))  # type: ignore[arg-type]  # it is a coroutine
        await asyncio.sleep(0.5)
    with pytest.raises(GraphClosed, match="'pages'"):
        await reader
    with pytest.raises(GraphClosed, match="'pages'"):
        await anext(values)


@virtual_time
async def test_last_value_of_a_stream_that_was_left() -> None:
    """A reader would take a stream for complete whose last value was thrown away."""
    async with stream_graph(Graph().source([1]).amap(second_later)) as values:
        await asyncio.sleep(2)
    with pytest.raises(GraphClosed):
        await anext(values)


@virtual_time
async def test_error_is_raised_each_time() -> None:
    """A stream that failed would look complete to whoever asks again."""
    async with stream_graph(Graph().source([0]).map(lambda x: 1 // x)) as values:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await anext(values)


class Body:
    """A value that a test looks for."""


async def test_no_value_outlives_the_stream() -> None:
    """A service would keep what its failed streams had in memory until the collector comes."""
    seen: list[weakref.ref[Body]] = []

    def fail(body: Body) -> Body:
        if len(seen) == 3:
            raise LookupError
        return body

    def bodies() -> Iterator[Body]:
        for _ in range(9):
            body = Body()
            seen.append(weakref.ref(body))
            yield body

    async def read() -> None:
        async with stream_graph(Graph().source(bodies(), on="loop").map(fail)) as values:
            async for _ in values:
                pass

    gc.disable()
    try:
        with pytest.raises(LookupError):
            await read()
        count_references()
        assert [one() for one in seen] == [None] * 3
    finally:
        gc.enable()


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


async def test_a_flow_is_streamed_once() -> None:
    """Two readers would share the values by chance."""
    flow = Graph().source([1, 2])
    async with stream_graph(flow) as values:
        assert [value async for value in values] == [1, 2]
    with pytest.raises(GraphError, match="has a reader"):
        stream_graph(flow)
