"""Ports: which flags an act sets, what the other side sees of it, and who may use one. And the fix
point: who is asked, in which order, and when it stops.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.errors import InternalError
from rowlock.graph import Graph
from rowlock.graph.fix_point import Asked, settle, wake
from rowlock.graph.processor import (
    Changes,
    Edge,
    InputPort,
    NodeStatus,
    OutputPort,
    Port,
    PortOwner,
    Processor,
    connect,
)
from rowlock.graph.topology import Node

from .nodes import Collect, Feed, Watched


def joined() -> tuple[OutputPort[int], InputPort[int], Edge[int]]:
    """Return two ports that no graph owns, and their edge."""
    output, input_ = OutputPort[int](), InputPort[int]()
    return output, input_, connect(output, input_)


def owned() -> tuple[OutputPort[int], InputPort[int], Changes]:
    """Return the ports of two nodes, of which the producer is asked."""
    output, input_, changes = OutputPort[int](), InputPort[int](), Changes()
    connect(output, input_, changes)
    output.owner, input_.owner = PortOwner(), PortOwner()
    changes.asked = output.owner
    return output, input_, changes


def test_value_is_pushed_when_needed() -> None:
    """A producer would fill slots that no consumer reads, and back pressure would begin one value
    late at each node.
    """
    output, input_, _ = joined()
    assert not output.can_push
    input_.need()
    assert output.can_push
    output.push(1)
    assert (output.can_push, output.has_data, input_.has_data) == (False, True, True)
    assert input_.pull() == 1
    assert (output.can_push, output.has_data, input_.has_data) == (False, False, False)


def test_value_before_the_end_is_read() -> None:
    """The last value of a stream would be lost."""
    output, input_, _ = joined()
    output.push(1)
    output.finish()
    assert (input_.is_finished, output.is_finished) == (False, True)
    assert input_.pull() == 1
    assert input_.is_finished
    input_.need()
    assert input_.is_finished


def test_consumer_that_is_done_drops_the_value() -> None:
    """A value would stay in a slot that is never read again, and be kept alive there."""
    output, input_, edge = joined()
    output.push(1)
    input_.finish()
    assert (input_.is_finished, output.is_finished, output.has_data) == (True, True, False)
    assert (edge.passed, edge.unread, edge.changes.dropped) == (1, 1, [1])


def test_finish_is_idempotent() -> None:
    """A node that is asked again after its end would report changes for ever."""
    output, input_, changes = owned()
    output.finish()
    assert input_.owner is not None
    changes.owners.clear()
    input_.is_changed = False
    output.finish()
    assert not changes.owners


@pytest.mark.parametrize("value", [None, 0, ValueError("x")])
def test_any_value_passes(value: object) -> None:
    """None, what is false, or an error as data would be taken for an empty slot."""
    output, input_ = OutputPort[object](), InputPort[object]()
    connect(output, input_)
    output.push(value)
    assert input_.has_data
    assert input_.pull() is value


def test_pull_needs_a_value() -> None:
    """A mistake of a processor would look like a value."""
    _, input_, _ = joined()
    with pytest.raises(InternalError, match="has_data"):
        input_.pull()


def test_pull_alone_asks_no_producer() -> None:
    """Each value would cost one more event, in which its producer can do nothing."""
    output, input_, changes = owned()
    output.push(1)
    changes.owners.clear()
    changes.asked = input_.owner
    assert input_.pull() == 1
    assert not changes.owners
    input_.need()
    assert changes.owners == [output.owner]


def test_full_slot_is_not_overwritten() -> None:
    """A value would be lost without a trace."""
    output, input_, _ = joined()
    output.push(1)
    with pytest.raises(InternalError, match="can_push"):
        output.push(2)
    assert input_.pull() == 1


def test_finished_edge_accepts_nothing() -> None:
    """A value would be kept by an edge that is never read."""
    output, input_, _ = joined()
    input_.need()
    input_.finish()
    assert not output.can_push
    with pytest.raises(InternalError, match="can_push"):
        output.push(1)


@pytest.mark.parametrize("act", ["push", "finish"])
def test_port_outside_of_its_event_is_refused(act: str) -> None:
    """A call would change an edge while another thread schedules."""
    output, _, changes = owned()
    changes.asked = None
    with pytest.raises(InternalError, match=r"event\(\)"):
        getattr(output, act)(*[1] * (act == "push"))


@pytest.mark.parametrize("act", ["need", "pull", "finish"])
def test_port_of_another_node_is_refused(act: str) -> None:
    """A node could read what belongs to another, which would never learn of it."""
    output, input_, _ = owned()
    output.push(1)
    with pytest.raises(InternalError, match=r"event\(\)"):
        getattr(input_, act)()


def test_unconnected_port_is_refused() -> None:
    """A processor that was not added to a graph would fail with an AttributeError."""
    output, input_ = OutputPort[int](), InputPort[int]()
    assert not output.is_connected
    flags = (output.can_push, output.has_data, input_.has_data, input_.is_finished)
    assert not any(flags)
    for act in (input_.need, input_.finish, output.finish):
        with pytest.raises(InternalError, match="not connected"):
            act()


def test_port_is_connected_once() -> None:
    """One of two consumers would silently get nothing."""
    output, input_, _ = joined()
    with pytest.raises(InternalError, match="once"):
        connect(output, InputPort[int]())
    with pytest.raises(InternalError, match="once"):
        connect(OutputPort[int](), input_)


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
