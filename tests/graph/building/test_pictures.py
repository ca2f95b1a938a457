"""A graph as a picture: at rest, after a run, and with names that a host may choose freely; and the
report of one that cannot go on.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from rowlock.errors import GraphDeadlockError
from rowlock.graph import Flow, Graph, run_graph
from rowlock.graph import statistics as pictures
from rowlock.graph.statistics import GraphStatistics

HOSTILE = (
    '"]; x[" <b>#1</b> `**a**` \\" --> y\n%% end\x00\x1b[31m',
    "%%{init: {'theme': 'dark'}}%%",
    "$$x^2$$ fa:fa-car &lt; #quot;",
)


def three_operators(name: str = "upper") -> Graph:
    """Return a graph of a source, some lanes and a sink."""
    graph = Graph("words")
    return graph.source("abc").map(str.upper, lanes=2, name=name).sink(print, name="print")


def test_mermaid_at_rest() -> None:
    """A graph could not be looked at before it runs."""
    assert three_operators().mermaid().splitlines() == [
        "flowchart LR",
        '    n0["source"]',
        '    n1("upper (in)")',
        '    n2["upper × 2"]',
        '    n3("print (in)")',
        '    n4["print"]',
        "    n0 --> n1",
        "    n1 --> n2",
        "    n2 --> n3",
        "    n3 --> n4",
    ]


def test_text_at_rest() -> None:
    """A graph could not be shown in a log."""
    assert three_operators().text().splitlines() == [
        "source -> upper (in)",
        "upper (in) -> upper",
        "upper × 2 -> print (in)",
        "print (in) -> print",
        "print",
    ]


async def test_counts_and_the_bottleneck_after_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host would not see where its values are, and which operator to widen."""
    graph = Graph("words")
    graph.source("abc").map(str.upper, name="upper").sink(str, name="end")
    await run_graph(graph)
    monkeypatch.setattr(GraphStatistics, "bottleneck", "upper")
    drawn = graph.mermaid()
    assert '    n1["upper<br/>3 calls<br/>busy ' in drawn
    assert "    n0 -->|3| n1" in drawn
    assert drawn.splitlines()[-1] == "    class n1 bottleneck"
    marked = [line for line in graph.text().splitlines() if line.endswith("<- bottleneck")]
    assert len(marked) == 1
    assert marked[0].startswith("upper -> end  [3 calls; busy ")


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_ends_its_label(name: str) -> None:
    """A name could draw what is not there, or keep the picture from being drawn."""
    graph = three_operators(name)
    harmless = three_operators()
    for draw in (Graph.mermaid, Graph.text):
        assert len(draw(graph).splitlines()) == len(draw(harmless).splitlines())
        assert "\x00" not in draw(graph)
        assert "\x1b" not in draw(graph)
    (line,) = [line for line in graph.mermaid().splitlines() if line.startswith("    n2[")]
    assert re.fullmatch(r'    n2\["[^"<>`$:{}\\]*"\]', line)


def test_long_and_empty_names() -> None:
    """A name could fill the picture, or leave a box without one."""
    graph = Graph()
    graph.source([1]).map(str, name="x" * 1000).map(str, name="\x00").sink(str)
    drawn = graph.mermaid()
    assert f'"{"x" * 59}…"' in drawn
    assert '["?"]' in drawn


def test_large_graphs_are_cut() -> None:
    """A picture would take longer than its graph."""
    graph = Graph()
    flow = graph.source([1])
    for number in range(pictures.OPERATORS_MAX + 5):
        flow = flow.map(str, name=f"operator {number}")
    flow.sink(str)
    for draw in (Graph.mermaid, Graph.text):
        drawn = draw(graph)
        assert "and 7 more operators" in drawn
        assert "operator 500" not in drawn


def itself(value: object) -> object:
    return value


def scattered(flow: Flow[int]) -> Flow[object]:
    """Take each value apart, and put it together again."""
    return flow.fan_out(lambda one: [one] * 3, lambda parts: parts.map(itself), name="pages")


def diamond(slow: Callable[[Flow[int]], Flow[object]]) -> Graph:
    """Return a graph in which one way is to be further ahead than its operators may be."""
    one, other = Graph("diamond").source(range(500)).duplicate(2)
    zipped = slow(one).zip(other.batch(100).unbatch(), ahead=1)
    return zipped.sink(print, on="loop")


def in_order(flow: Flow[int]) -> Flow[object]:
    return flow.map(itself, lanes=2, keep_order=True, on="loop", name="ordered")


def in_order_per_key(flow: Flow[int]) -> Flow[object]:
    """Keep the order of even and of odd numbers, in two lanes."""
    return flow.map(itself, lanes=2, keep_order=lambda one: one % 2, on="loop", name="keyed")


@pytest.mark.parametrize(
    ("graph", "cycle"),
    [
        (lambda: diamond(scattered), ["duplicate", "pages", "pages (gather)", "zip"]),
        (lambda: diamond(in_order), ["duplicate", "ordered (order)", "ordered (ordered)", "zip"]),
        (
            lambda: diamond(in_order_per_key),
            ["duplicate", "keyed (key)", "keyed (order)", "keyed (ordered)", "zip"],
        ),
    ],
    ids=["fan_out", "order", "order per key"],
)
async def test_cycle_is_named(graph: Callable[[], Graph], cycle: list[str]) -> None:
    """A host would learn that its graph cannot go on, and not which operators hold each other."""
    with pytest.raises(GraphDeadlockError) as raised:
        await run_graph(graph())
    assert set(cycle) <= set(raised.value.cycle)
    assert "nothing that is known" not in str(raised.value)


async def test_report_says_what_a_scattering_node_waits_for() -> None:
    """A host would look for a full edge where there is none."""
    with pytest.raises(GraphDeadlockError) as raised:
        await run_graph(diamond(scattered))
    report = str(raised.value)
    assert "pages waits for pages (gather) (2 of 2 groups are open)" in report
