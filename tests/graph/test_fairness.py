"""What a graph leaves to others: the event loop, the processor, and the lane that is free first."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from rowlock.graph import Graph, run_graph
from rowlock.graph.event_loop import ASKS_MAX
from rowlock.graph.processor import NodeStatus, Port
from rowlock.graph.run import GraphRun
from rowlock.graph.stock.carriers import LimitProcessor
from rowlock.graph.stock.lanes import MapProcessor, consume
from rowlock.testing import virtual_time

from .nodes import Apply, Collect, Feed, Spread
from .runs import applied, got, line_of


@virtual_time
async def test_one_iteration_asks_a_bounded_number_of_nodes() -> None:
    """The host's other tasks would wait while a long chain is asked."""
    graph = line_of(*(applied(lambda x: x, "loop") for _ in range(3000)), values=[1])
    graph.begin_run()
    run = GraphRun(graph)
    most = 0

    async def watch() -> None:
        nonlocal most
        before = 0
        while True:
            await asyncio.sleep(0)
            before, asked = run.scheduler.asks, run.scheduler.asks - before
            most = max(most, asked)

    watcher = asyncio.create_task(watch())
    await run.to_its_end()
    watcher.cancel()
    assert got(graph) == [1]
    assert 100 < most <= ASKS_MAX


class WakesItself(LimitProcessor):
    """Is asked again because it was asked, very often."""

    left = 100 * ASKS_MAX

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        if self.left:
            self.left -= 1
            self.wake()
            return NodeStatus.NEED_DATA
        return super().event(changed)


@virtual_time
async def test_a_node_that_wakes_itself_does_not_keep_the_loop() -> None:
    """A processor of the host's would stop its whole service, and could not even be cancelled."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    watcher = asyncio.create_task(others())
    graph = line_of(WakesItself(1), values=[1])
    await run_graph(graph)
    watcher.cancel()
    assert got(graph) == [1]
    assert turns > 50


@virtual_time
async def test_end_of_a_coroutine_asks_a_bounded_number_of_nodes() -> None:
    """The host's other tasks would wait while the end of a long chain is passed on."""

    async def itself(value: int) -> int:
        return value

    graph, last, asked = Graph(), list[int](), list[int]()
    graph.add_pipe([Feed(range(3000), place="loop")])
    for _ in range(1000):
        graph.add_pipe([applied(lambda x: x, "loop")])
    graph.add_pipe([MapProcessor(itself, place=None)])
    graph.add_pipe([LimitProcessor(1)])
    graph.add_pipe([MapProcessor(last.append, use=consume, place="loop")])
    graph.begin_run()
    run = GraphRun(graph)

    async def watch() -> None:
        before = 0
        while True:
            await asyncio.sleep(0)
            asked.append(run.scheduler.asks - before)
            before = run.scheduler.asks

    watcher = asyncio.create_task(watch())
    await run.to_its_end()
    watcher.cancel()
    assert last == [0]
    assert 100 < max(asked) <= ASKS_MAX


async def test_one_iteration_begins_no_call_after_its_time() -> None:
    """The host's other tasks would wait for all calls that are ready."""
    ran: list[int] = []
    iterations = [0]

    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    def work(value: int) -> int:
        clock.now += 0.0015
        ran.append(iterations[0])
        return value

    graph = Graph()
    graph.add_pipe([Feed([number]) for number in range(6)])
    graph.add_pipe([Apply(work) for _ in range(6)])
    graph.add_pipe([Collect(inputs=6)])
    graph.begin_run()
    clock = Clock()
    graph.stopwatch = clock
    run = GraphRun(graph)

    async def count() -> None:
        while True:
            await asyncio.sleep(0)
            iterations[0] += 1

    counter = asyncio.create_task(count())
    await run.to_its_end()
    counter.cancel()
    assert max(ran.count(iteration) for iteration in ran) == 2


async def test_wakes_are_coalesced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand calls of ``wake`` are one callback of the event loop."""
    loop = asyncio.get_running_loop()
    schedule, callbacks = loop.call_soon_threadsafe, list[object]()

    def counted(callback: Any, *args: Any) -> asyncio.Handle:
        callbacks.append(callback)
        return schedule(callback, *args)

    async def wake(value: int) -> int:
        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        for _ in range(100_000):
            lane.wake()
        monkeypatch.undo()
        return value

    lane = Apply(wake, is_async=True)
    graph = line_of(lane, values=[1])
    await run_graph(graph)
    assert (got(graph), len(callbacks)) == ([1], 1)


@virtual_time(max_iterations=200)
async def test_waiting_needs_no_polling() -> None:
    """A graph that waits for an hour would keep a processor busy."""

    async def wait(value: int) -> int:
        await asyncio.sleep(3600)
        return value

    graph = line_of(Apply(wait, is_async=True), values=[1])
    await run_graph(graph)
    assert got(graph) == [1]


@pytest.mark.parametrize("seed", range(10))
def test_value_goes_to_the_lane_that_is_free(seed: int) -> None:
    """A value would wait behind a slow one while other lanes are idle."""
    random = Random(seed)
    durations = [random.choice((0.1, 0.2, 5.0)) for _ in range(60)]
    lanes = random.randint(2, 6)

    @virtual_time
    async def scene() -> float:
        graph = Graph()
        graph.add_pipe([Feed(durations)])
        graph.add_pipe([Spread(1, lanes)])
        graph.add_pipe([Apply(asyncio.sleep, is_async=True) for _ in range(lanes)])
        graph.add_pipe([Collect(inputs=lanes)])
        loop = asyncio.get_running_loop()
        began = loop.time()
        await run_graph(graph)
        return loop.time() - began

    free = [0.0] * lanes
    for seconds in durations:
        heapq.heapreplace(free, free[0] + seconds)
    assert scene() <= 1.1 * max(free)
