"""The fix point: who is asked, in which order, and when it stops."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rowlock.graph import Graph
from rowlock.graph.fix_point import Asked, settle, wake
from rowlock.graph.processor import NodeStatus, Port, Processor
from rowlock.graph.topology import Node

from .nodes import Collect, Feed, Watched


class Told(Watched):
    """Answers what it is given, and remembers which ports had changed."""

    def __init__(self, answer: object, *, inputs: int = 0, outputs: int = 0) -> None:
        super().__init__(inputs=inputs, outputs=outputs)
        self.next: object = answer
        self.changes: list[list[Port]] = []

    def answer(self, changed: Sequence[Port]) -> NodeStatus:
        self.changes.append(list(changed))
        return self.next  # type: ignore[return-value]


def asked(graph: Graph, *, asks_max: int = 1000) -> tuple[Asked, list[Node]]:
    """Settle a graph, and return what came of it."""
    calls: list[Node] = []
    return settle(graph.changes, calls, now=0.0, asks_max=asks_max), calls


def pair_of(first: Processor, second: Processor) -> Graph:
    graph = Graph()
    graph.add_pipe([first])
    graph.add_pipe([second])
    return graph


def test_busy_node_is_not_asked() -> None:
    """An event would run while the call of the same node does."""
    sink = Told(NodeStatus.SYNC, inputs=1)
    graph = pair_of(Told(NodeStatus.NEED_CONSUME, outputs=1), sink)
    wake(graph.nodes[1], graph.changes)
    assert asked(graph) == (Asked(0, 1), [graph.nodes[1]])
    wake(graph.nodes[1], graph.changes)
    assert asked(graph) == (Asked(0, 0), [])


def test_changes_during_a_call_are_kept() -> None:
    """A node would never learn of the value that came while its call ran."""
    feed, sink = Feed([1]), Told(NodeStatus.SYNC, inputs=1)
    graph = pair_of(feed, sink)
    source, target = graph.nodes
    wake(target, graph.changes)
    asked(graph)
    feed.next = 1
    wake(source, graph.changes)
    asked(graph)
    graph.changes.asked = source
    feed.outputs[0].push(1)
    graph.changes.asked = None
    asked(graph)
    assert sink.changes == [[]]
    target.is_busy, sink.next = False, NodeStatus.NEED_DATA
    wake(target, graph.changes)
    asked(graph)
    assert sink.changes == [[], [sink.inputs[0]]]


def test_finished_node_closes_its_ports() -> None:
    """A processor that forgets a port would keep its neighbours waiting for ever."""
    graph = Graph()
    sink = Collect()
    graph.add_pipe([Feed([])])
    graph.add_pipe([Told(NodeStatus.FINISHED, inputs=1, outputs=1)])
    graph.add_pipe([sink])
    wake(graph.nodes[1], graph.changes)
    found, _ = asked(graph)
    assert found.finished == 3
    assert [node.status for node in graph.nodes] == [NodeStatus.FINISHED] * 3


def test_newest_change_is_first() -> None:
    """A value would wait at each operator until all others have moved on, as many as there are."""
    graph = Graph()
    feeds = [Told(NodeStatus.NEED_CONSUME, outputs=1) for _ in range(2)]
    order: list[int] = []
    graph.add(feeds)
    for feed in feeds:
        graph.add([sink := Collect()])
        graph.connect(feed.outputs[0], sink.inputs[0])
        sink.answer = lambda _changed, sink=sink: order.append(sink) or NodeStatus.NEED_DATA  # type: ignore[misc, method-assign]
    for node in graph.nodes[:2]:
        graph.changes.asked = node
        node.processor.outputs[0].push(1)
    graph.changes.asked = None
    asked(graph)
    assert order == [graph.nodes[3].processor, graph.nodes[2].processor]


@given(acts=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=30))
def test_one_notification_for_each_changed_port(acts: list[tuple[int, bool]]) -> None:
    """A node would be told of a port twice in one event, or not at all."""
    graph = Graph()
    feeds = [Told(NodeStatus.NEED_CONSUME, outputs=1) for _ in range(3)]
    sink = Told(NodeStatus.NEED_DATA, inputs=3)
    graph.add(feeds)
    graph.add_pipe([sink])
    target, changed = graph.nodes[3], set()
    for index, is_asked in acts:
        graph.changes.asked = graph.nodes[index]
        output = feeds[index].outputs[0]
        if output.has_data or output.is_finished:
            if not output.is_finished:
                changed.add(index)
            output.finish()
        else:
            output.push(1)
            changed.add(index)
        graph.changes.asked = None
        if is_asked:
            before = len(sink.changes)
            asked(graph)
            seen = [sink.inputs.index(port) for port in sink.changes[-1]]  # type: ignore[arg-type]
            if changed:
                assert sorted(seen) == sorted(changed)
            assert len(sink.changes) - before == bool(changed)
            changed = set()
    assert {sink.inputs.index(port) for port in target.changed} == changed  # type: ignore[arg-type]
