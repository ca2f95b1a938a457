"""Values that lanes hand on without being asked: nothing is lost, and nothing is done that asking
would not have done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rowlock.graph import Graph, NodeStatus, Port, Processor, run_graph
from rowlock.graph.run import GraphRun
from rowlock.graph.stock.carriers import Carrier
from rowlock.graph.stock.lanes import MapProcessor, consume
from rowlock.graph.stock.sources import MemorySource

from .nodes import Feed


async def _twice_late(value: int) -> int:
    for _ in range(value % 3):
        await asyncio.sleep(0)
    return 2 * value


def _itself(value: Any) -> Any:
    return value


async def test_value_goes_on_without_asking() -> None:
    """Each operator would cost a value three questions instead of a step."""
    graph, got = Graph(), list[int]()
    flow = graph.source(range(100))
    for _ in range(5):
        flow = flow.map(_itself, on="loop")
    flow.sink(got.append, on="loop")
    graph.begin_run()
    run = GraphRun(graph)
    await run.to_its_end()
    assert got == list(range(100))
    # At the beginning, at the end, and when a slot was full.
    assert run.scheduler.asks < 60


async def test_collection_in_memory_is_read_without_a_call() -> None:
    """Values of a list would cost a call of the loop each."""
    graph, got = Graph(), list[int]()
    graph.source([1, 2, 3]).sink(got.append, on="loop")
    statistics = await run_graph(graph)
    assert got == [1, 2, 3]
    assert (statistics.operators[0].calls, statistics.operators[0].made) == (0, 3)


async def test_class_of_the_host_is_read_by_calls() -> None:
    """Code of the host would run under the mutex."""

    class Numbers(list[int]):
        pass

    graph, got = Graph(), list[int]()
    graph.source(Numbers([1, 2])).sink(got.append, on="loop")
    statistics = await run_graph(graph)
    assert got == [1, 2]
    assert statistics.operators[0].calls == 3


async def test_collection_may_grow_until_the_run() -> None:
    """A collection that is filled after the graph was built would be an error."""
    graph, got, items = Graph(), list[int](), set[int]()
    graph.source(items).sink(got.append, on="loop")
    items.update(range(5))
    await run_graph(graph)
    assert sorted(got) == [0, 1, 2, 3, 4]


async def test_collection_that_changes_in_the_run_is_named() -> None:
    """The error would not tell which of several sources was changed."""
    graph, items = Graph(), {1, 2, 3}
    graph.source(items, name="numbers").sink(lambda value: items.add(10 + value), on="loop")
    with pytest.raises(RuntimeError, match="changed size") as raised:
        await run_graph(graph)
    assert raised.value.__notes__ == ["in numbers, lane 0"]


def _appender(got: list[int]) -> Any:
    async def append(value: int) -> None:
        await asyncio.sleep(0)
        got.append(value)

    return append


async def test_lane_that_drops_ends_when_its_consumer_has_left() -> None:
    """A filter that lets nothing more through would read an endless source for ever."""
    graph, got = Graph(), list[int]()
    flow = graph.source(range(1000)).map(_itself, on="loop")
    flow.filter(lambda value: value < 2, on="loop").limit(2).sink(got.append, on="loop")
    statistics = await run_graph(graph)
    assert got == [0, 1]
    assert statistics.operators[0].made < 10


class _OneAtATime(Processor):
    """Asks for a value; when it has come, passes it on before it asks again."""

    def __init__(self) -> None:
        super().__init__(inputs=1, outputs=1, name="one at a time")
        self.came_unasked = 0
        self._is_asking = False

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        source, output = self.inputs[0], self.outputs[0]
        self.came_unasked += source.has_data and not self._is_asking
        if source.has_data and output.can_push:
            output.push(source.pull())
            self._is_asking = False
            return NodeStatus.NEED_CONSUME
        if source.is_finished:
            output.finish()
            return NodeStatus.FINISHED
        if output.can_push and not self._is_asking:
            self._is_asking = True
            source.need()
        return NodeStatus.NEED_DATA


async def test_consumer_gets_a_value_only_if_it_asks() -> None:
    """A custom processor would find values before it wants them."""
    graph, one, got = Graph(), _OneAtATime(), list[int]()
    graph.add_pipe([Feed(range(20), place="loop")])
    graph.add_pipe([MapProcessor(_itself, place="loop")])
    graph.add_pipe([one])
    graph.add_pipe([MapProcessor(_appender(got), place=None, use=consume)])
    await run_graph(graph)
    assert got == list(range(20))
    assert one.came_unasked == 0


class _OddOnly(Carrier):
    def is_wanted(self, item: Any) -> bool:
        return bool(item % 2)


async def test_value_that_is_not_wanted_is_not_called_with() -> None:
    """A call would be made for a value whose result will be thrown away."""
    graph, got = Graph(), list[int]()
    graph.add_pipe([Feed(range(10), place="loop")])
    graph.add_pipe([MapProcessor(_itself, place="loop")])
    graph.add_pipe([MapProcessor(got.append, use=consume, place="loop", carrier=_OddOnly())])
    await run_graph(graph)
    assert got == [1, 3, 5, 7, 9]


async def test_value_in_memory_that_is_not_wanted_is_counted() -> None:
    """It would be read for a lane that does not see it, and be missing in the counts."""
    graph, got = Graph(), list[int]()
    graph.add_pipe([MemorySource(range(10))])
    graph.add_pipe([MapProcessor(got.append, use=consume, place="loop", carrier=_OddOnly())])
    statistics = await run_graph(graph)
    assert got == [1, 3, 5, 7, 9]
    assert (statistics.operators[1].dropped, statistics.operators[1].held) == (5, 0)


async def test_no_task_waits_for_a_lane_without_work() -> None:
    """A graph that waits for something else would hold a task for each of its lanes."""
    go_on = asyncio.Event()

    async def values() -> Any:
        yield 1
        await go_on.wait()
        yield 2

    graph, got = Graph(), list[int]()
    graph.source(values()).amap(_twice_late, lanes=4, name="late").asink(_appender(got))
    run = asyncio.ensure_future(run_graph(graph))
    for _ in range(30):
        await asyncio.sleep(0)
    assert got == [2]
    assert not [task for task in asyncio.all_tasks() if "late" in task.get_name()]
    go_on.set()
    await run
    assert got == [2, 4]


async def test_no_task_remains_behind_a_run() -> None:
    """A task of a lane would go on when the runner believes that nothing runs any more."""
    graph, got = Graph(), list[int]()
    names: list[str] = []
    graph.on_end(lambda _error: names.extend(task.get_name() for task in asyncio.all_tasks()))
    graph.source(range(5)).amap(_twice_late, lanes=2, name="late").asink(_appender(got))
    await run_graph(graph)
    assert got
    assert not [name for name in names if "late" in name or "append" in name]
