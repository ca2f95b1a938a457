"""A graph that cannot go on: the report names the operators that wait for each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rowlock.errors import GraphDeadlockError
from rowlock.graph import Flow, Graph, run_graph


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
