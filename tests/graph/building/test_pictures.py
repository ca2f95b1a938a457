"""A graph as a picture: at rest, after a run, and with names that a host may choose freely."""

from __future__ import annotations

import re

import pytest

from rowlock.graph import statistics as pictures
from rowlock.graph.flow import Graph
from rowlock.graph.run import run_graph
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
