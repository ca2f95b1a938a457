"""What went wrong in the executors of databases that have ports as ours: ClickHouse, Databend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from rowlock.errors import GraphDeadlockError
from rowlock.graph import Graph, InputPort, NodeStatus, OutputPort, Port, Processor, run_graph
from rowlock.graph.processor import connect
from rowlock.graph.stock.branches import ResizeProcessor
from rowlock.testing import virtual_time

from ..nodes import Collect


def test_resize_forgets_readers_that_have_left() -> None:
    """ClickHouse 98340: a value would go to a reader that asked and then left, and the run stop."""
    resize = ResizeProcessor(1, 2)
    writer, readers = OutputPort[int](), [InputPort[int](), InputPort[int]()]
    connect(writer, resize.inputs[0])
    for output, reader in zip(resize.outputs, readers, strict=True):
        connect(output, reader)
        reader.need()
        resize.event([output])
    readers[0].finish()
    writer.push(7)
    assert resize.event([resize.inputs[0], resize.outputs[0]]) is not NodeStatus.FINISHED
    assert readers[1].pull() == 7
    readers[1].need()
    resize.event([resize.outputs[1]])
    assert writer.can_push


class Concat(Processor):
    """Passes all values of its first input on, then those of the next one."""

    holds_max = 0

    def __init__(self, inputs: int) -> None:
        super().__init__(inputs=inputs, outputs=1, name="concat")

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Pass a value on, of the first input that has not ended."""
        output = self.outputs[0]
        for input_ in self.inputs:
            if input_.is_finished:
                continue
            if not output.can_push:
                return NodeStatus.NEED_CONSUME
            if input_.has_data:
                output.push(input_.pull())
                return NodeStatus.NEED_CONSUME
            input_.need()
            return NodeStatus.NEED_DATA
        return NodeStatus.FINISHED


def concatenated(room: int) -> tuple[Graph, Collect]:
    """Return a graph whose values go two ways that are read one after the other."""
    graph = Graph("union")
    for flow in graph.source(range(10)).duplicate(2):
        if room:
            flow.buffer(room)
        else:
            flow.map(abs, on="loop")
    graph.add_pipe([Concat(2)])
    graph.add_pipe([sink := Collect()])
    return graph, sink


@pytest.mark.parametrize("room", [0, 3])
async def test_branches_read_one_after_the_other(room: int) -> None:
    """ClickHouse 106237: what fans out and what reads branch by branch would wait for each other
    for ever.
    """
    graph, _ = concatenated(room)
    with pytest.raises(GraphDeadlockError) as raised:
        await run_graph(graph)
    assert {"duplicate", "concat"} <= set(raised.value.cycle)


async def test_room_for_branches_read_one_after_the_other() -> None:
    """ClickHouse 106237: room in front of a branch that is read later would not be used."""
    # One more: the end of the source is known only when a further value is wanted.
    graph, sink = concatenated(room=11)
    await run_graph(graph)
    assert sink.got == [*range(10), *range(10)]


@pytest.mark.parametrize("place", ["loop", "thread", "task"])
async def test_error_while_others_wait(place: str) -> None:
    """Databend 7374: one processor that fails would leave the others waiting for its values."""

    def fail(number: int) -> int:
        if number == 7:
            raise LookupError
        return number

    async def afail(number: int) -> int:
        await asyncio.sleep(0)
        return fail(number)

    graph = Graph()
    numbers = graph.source(range(100))
    where: Any = place
    checked = (
        numbers.amap(afail, lanes=3) if place == "task" else numbers.map(fail, lanes=3, on=where)
    )
    checked.batch(1000).sink(id, on="loop")
    with pytest.raises(LookupError):
        await run_graph(graph)


async def test_limit_does_not_wait_for_the_rest_of_its_sources() -> None:
    """Databend 7509: a limit that is reached would wait until all sources are read to their end."""
    read: list[int] = []

    def table(part: int) -> Iterator[int]:
        for _ in range(10**9):
            read.append(part)
            yield part

    graph = Graph()
    first, *others = [graph.source(table(part)) for part in range(6)]
    found: list[int] = []
    first.merge(*others).limit(5).sink(found.append, on="loop")
    await run_graph(graph)
    assert len(found) == 5
    assert len(read) <= 5 + graph.items_max


@pytest.mark.parametrize("reads", ["all", "some"])
@pytest.mark.parametrize("threads", [1, 4])
async def test_every_node_is_finished_at_the_end(threads: int, reads: str) -> None:
    """Databend 16668: a run would end, without an error, while some of its nodes are not done."""
    graph = Graph()
    flow = graph.source(iter(range(300))).map(abs, lanes=4)
    flow = flow.limit(100) if reads == "some" else flow
    flow.batch(7).unbatch().map(str, lanes=3, keep_order=True).sink(id, lanes=2)
    await run_graph(graph, threads=threads)
    assert {node.status for node in graph.nodes} == {NodeStatus.FINISHED}


@virtual_time
async def test_diamond_that_needs_more_room() -> None:
    """Databend 18655: two readers of one flow, one of which waits for the whole, would hang."""

    async def slow() -> AsyncIterator[int]:
        for number in range(100):
            await asyncio.sleep(1)
            yield number

    graph = Graph("diamond")
    one, other = graph.source(slow()).duplicate(2)
    one.zip(other.batch(50).unbatch(), ahead=16).sink(print, on="loop")
    began = asyncio.get_running_loop().time()
    with pytest.raises(GraphDeadlockError) as raised:
        await run_graph(graph)
    assert {"duplicate", "batch", "zip"} <= set(raised.value.cycle)
    # At once: when no more value can move, and long before the source is read to its end.
    assert asyncio.get_running_loop().time() - began < 30
