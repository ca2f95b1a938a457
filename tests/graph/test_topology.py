"""`Graph`: numbers, joins, and mistakes that are found before anything starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rowlock.errors import GraphError
from rowlock.graph import Graph
from rowlock.graph.processor import InputPort

from .nodes import Apply, Collect, Copy, Feed, Pair


def line(*, name: str = "graph") -> Graph:
    graph = Graph(name)
    graph.add_pipe([Feed([1])])
    graph.add_pipe([Apply(str, name="text")])
    graph.add_pipe([Collect()])
    return graph


def check(graph: Graph) -> None:
    for _ in graph.checks():
        pass


def test_whole_graph_passes() -> None:
    """No graph could be run."""
    check(line())


def unequal(graph: Graph) -> None:
    graph.add_pipe([Feed([1]), Feed([2])])
    graph.add_pipe([Apply(str, name="text")])


def nothing_open(graph: Graph) -> None:
    graph.add_pipe([Collect(name="end")])


def no_lane(graph: Graph) -> None:
    graph.add_pipe([], name="parse")


def reused(graph: Graph) -> None:
    feed = Feed([1], name="feed")
    graph.add([feed])
    graph.add([feed])


def of_another_graph(graph: Graph) -> None:
    other = Graph()
    feed, sink = Feed([1]), Collect()
    graph.add([feed])
    other.add([sink])
    graph.connect(feed.outputs[0], sink.inputs[0])


def of_no_graph(graph: Graph) -> None:
    feed = Feed([1])
    graph.add([feed])
    graph.connect(feed.outputs[0], InputPort[int]())


def joined_twice(graph: Graph) -> None:
    feed, first, second = Feed([1], name="feed"), Collect(), Collect()
    graph.add([feed])
    graph.add([first, second])
    graph.connect(feed.outputs[0], first.inputs[0])
    graph.connect(feed.outputs[0], second.inputs[0])


def open_output(graph: Graph) -> None:
    graph.add_pipe([Feed([1], name="feed")])
    check(graph)


def open_input(graph: Graph) -> None:
    graph.add([Collect(name="end")])
    check(graph)


def cycle(graph: Graph) -> None:
    feed, pair, copy, sink = Feed([1]), Pair(name="pair"), Copy(2, name="copy"), Collect()
    for one in (feed, pair, copy, sink):
        graph.add([one])
    graph.connect(feed.outputs[0], pair.inputs[0])
    graph.connect(pair.outputs[0], copy.inputs[0])
    graph.connect(copy.outputs[0], pair.inputs[1])
    graph.connect(copy.outputs[1], sink.inputs[0])
    check(graph)


def second_run(graph: Graph) -> None:
    graph.begin_run()
    graph.begin_run()


def added_late(graph: Graph) -> None:
    graph.begin_run()
    graph.add([Feed([1])])


def hooked_late(graph: Graph) -> None:
    graph.begin_run()
    graph.on_end(lambda _error: None)


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (unequal, r"text has 1 inputs, but 2 outputs are open \(Feed\)"),
        (nothing_open, r"end has 1 inputs, but 0 outputs are open \(there are none\)"),
        (no_lane, "parse of 'mine' has no lane"),
        (reused, r"feed 2 \(lane 0\) is in a graph already"),
        (of_another_graph, "the input belongs to no processor of 'mine'"),
        (of_no_graph, "the input belongs to no processor of 'mine'"),
        (joined_twice, "an output of feed is connected already"),
        (open_output, r"output 0 of feed \(lane 0\) is not connected: end each flow with sink"),
        (open_input, r"input 0 of end \(lane 0\) is not connected"),
        (check, "'mine' has no nodes"),
        (cycle, "'mine' has a cycle; it goes through, or feeds: pair, copy"),
        (second_run, "'mine' has run"),
        (added_late, "'mine' has run"),
        (hooked_late, "'mine' has run"),
    ],
)
def test_mistake_is_found(mistake: Callable[[Graph], None], text: str) -> None:
    """A graph that cannot work would hang, or fail far from the line that is wrong."""
    with pytest.raises(GraphError, match=text):
        mistake(Graph("mine"))


def test_full_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop around the builder would fill the memory."""
    monkeypatch.setattr("rowlock.graph.topology.NODES_MAX", 3)
    graph = line()
    with pytest.raises(GraphError, match="more than 3 nodes"):
        graph.add([Feed([1])])


def test_operators_have_different_names() -> None:
    """Statistics and errors would not tell two operators apart."""
    graph = Graph()
    for _ in range(3):
        graph.add([Feed([1], name="read")])
    graph.add([Feed([1]), Feed([2])], name="read 2")
    assert list(graph.operators) == ["read", "read 2", "read 3", "read 2 2"]
    assert [node.lane for node in graph.operators["read 2 2"]] == [0, 1]


def test_items_max_counts_edges_and_holds() -> None:
    """The memory bound would not be known beforehand."""
    graph = line()
    assert graph.items_max == 2 + 3


def test_open_outputs_are_joined_in_order() -> None:
    """A branch that was added later would be read by the wrong consumer."""
    graph = Graph()
    graph.add([Feed([1], name="a")])
    graph.add([Feed([2], name="b")])
    pair = Pair()
    graph.add_pipe([pair])
    assert [port.edge.source for port in pair.inputs] == [
        graph.nodes[0].processor.outputs[0],
        graph.nodes[1].processor.outputs[0],
    ]
