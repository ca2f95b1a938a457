"""Databend's ``executor_graph.rs``: how pipelines are joined, and which calls follow each other.

Theirs differ in one thing: in a resized pipeline some calls follow one schedule later, because
their resize serves only the port that caused the event. Their points and epochs, by which
queries share an executor, have no counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rowlock.graph import Graph
from rowlock.graph.fix_point import settle, wake
from rowlock.graph.processor import EMPTY, NodeStatus, Port, Processor
from rowlock.graph.topology import node_of

from ..nodes import Spread


class Source(Processor):
    """Makes its values in one call, then pushes them; as their ``BlocksSource``."""

    def __init__(self, count: int = 1) -> None:
        super().__init__(outputs=1)
        self.values = list(range(count))
        self.is_started = False

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        output = self.outputs[0]
        if not self.is_started:
            return NodeStatus.SYNC if output.can_push else NodeStatus.NEED_CONSUME
        if not self.values:
            return NodeStatus.FINISHED
        if output.can_push:
            output.push(self.values.pop())
        return NodeStatus.NEED_CONSUME

    def process(self) -> None:
        self.is_started = True


class Transform(Processor):
    """Is called once before its first value, as their ``TransformDummy``."""

    def __init__(self) -> None:
        super().__init__(inputs=1, outputs=1)
        self.is_started = False
        self.value: object = EMPTY

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        input_, output = self.inputs[0], self.outputs[0]
        if not self.is_started:
            return NodeStatus.SYNC if output.can_push else NodeStatus.NEED_CONSUME
        if self.value is not EMPTY and output.can_push:
            output.push(self.value)
            self.value = EMPTY
        if input_.has_data:
            self.value = input_.pull()
            return NodeStatus.SYNC
        if input_.is_finished:
            return NodeStatus.FINISHED
        if output.can_push:
            input_.need()
        return NodeStatus.NEED_DATA

    def process(self) -> None:
        self.is_started = True


class Sink(Processor):
    """Is called once before its first value, as their ``SyncSenderSink``."""

    def __init__(self) -> None:
        super().__init__(inputs=1)
        self.is_started = False

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        input_ = self.inputs[0]
        if not self.is_started:
            return NodeStatus.SYNC
        if input_.has_data:
            input_.pull()
            return NodeStatus.SYNC
        if input_.is_finished:
            return NodeStatus.FINISHED
        input_.need()
        return NodeStatus.NEED_DATA

    def process(self) -> None:
        self.is_started = True


class Steps:
    """A graph whose calls are made by hand."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def first(self) -> list[int]:
        """Ask the nodes without outputs, and return the first calls."""
        for node in reversed(self.graph.nodes):
            if not node.processor.outputs:
                wake(node, self.graph.changes)
        return self._settle()

    def schedule(self, index: int) -> list[int]:
        """Ask a node, and return the calls that follow."""
        wake(self.graph.nodes[index], self.graph.changes)
        return self._settle()

    def process(self, index: int) -> None:
        node = self.graph.nodes[index]
        assert node.status is NodeStatus.SYNC
        node.processor.process()
        node.is_busy = False

    def _settle(self) -> list[int]:
        calls: list = []
        settle(self.graph.changes, calls, now=0.0, asks_max=1000)
        return [node.index for node in calls]


def simple(lanes: int = 1) -> Graph:
    graph = Graph()
    graph.add_pipe([Source() for _ in range(lanes)])
    graph.add_pipe([Transform() for _ in range(lanes)])
    graph.add_pipe([Sink() for _ in range(lanes)])
    return graph


def resized() -> Graph:
    """Return 1 source, 2 transforms, 1 transform and 2 sinks, with what joins them."""
    graph = Graph()
    graph.add_pipe([Source(2)])
    graph.add_pipe([Spread(1, 2)])
    graph.add_pipe([Transform(), Transform()])
    graph.add_pipe([Spread(2, 1)])
    graph.add_pipe([Transform()])
    graph.add_pipe([Spread(1, 2)])
    graph.add_pipe([Sink(), Sink()])
    return graph


def joins(graph: Graph) -> list[str]:
    """Return the edges as ``"0->1"``, ordered by their sources."""
    found = [
        (node.index, node_of(port.edge.target).index)
        for node in graph.nodes
        for port in node.processor.outputs
    ]
    return [f"{source}->{target}" for source, target in sorted(found)]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (simple(), "0->1 1->2"),
        (simple(2), "0->2 1->3 2->4 3->5"),
        (resized(), "0->1 1->2 1->3 2->4 3->4 4->5 5->6 6->7 6->8"),
    ],
)
def test_create_pipeline(graph: Graph, expected: str) -> None:
    """Lanes would be joined to others than those in the same place."""
    assert joins(graph) == expected.split()


@pytest.mark.parametrize(
    ("graph", "expected"), [(simple(), [2]), (simple(2), [4, 5]), (resized(), [7, 8])]
)
def test_init_queue(graph: Graph, expected: list[int]) -> None:
    """A run would begin with sources, for which no consumer has asked."""
    assert Steps(graph).first() == expected


@pytest.mark.parametrize(
    ("graph", "asked", "expected"),
    [
        (simple(), [2, 1, 0, 1, 2], [[1], [0], [1], [2], []]),
        (
            simple(2),
            [4, 5, 2, 3, 0, 1, 2, 3, 4, 5],
            [[2], [3], [0], [1], [2], [3], [4], [5], [], []],
        ),
        (
            resized(),
            [7, 8, 5, 2, 3, 0, 2, 3, 5],
            [[5], [], [2, 3], [0], [], [2, 3], [5], [], [5, 8]],
        ),
    ],
    ids=["simple", "parallel", "resize"],
)
def test_schedule_queue(graph: Graph, asked: list[int], expected: list[list[int]]) -> None:
    """Calls would not follow the values: upstream for a need, downstream for a value."""
    steps = Steps(graph)
    for index in steps.first():
        steps.process(index)
    found = []
    for index in asked:
        found.append(steps.schedule(index))
        for called in found[-1]:
            steps.process(called)
    assert [sorted(calls) for calls in found] == expected


def test_schedule_queue_twice_without_processing() -> None:
    """A node would be called twice at the same time."""
    steps = Steps(simple())
    steps.first()
    steps.process(2)
    assert steps.schedule(2) == [1]
    assert steps.schedule(2) == []
    assert steps.schedule(1) == []
