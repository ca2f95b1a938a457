"""One value's way through the ports of a graph, as the library takes it, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rowlock.graph import Graph, NodeStatus, Port

from ..graph.one_thread import Sequential


class WayStep(NamedTuple):
    """A node was asked, or its call was made.

    Attributes:
        node: its name.
        answer: of its ``event``; "call" for a call.
        flags: of each edge after it.
    """

    node: str
    answer: str
    flags: tuple[str, ...]


def way_of_a_value() -> list[WayStep]:
    """Run one value through two operators, and return each step."""
    graph = Graph()
    flow = graph.source(["a"], on="loop", name="source").map(str.upper, on="loop", name="upper")
    flow.sink(len, on="loop", name="sink")
    steps: list[WayStep] = []

    def flags() -> tuple[str, ...]:
        return tuple(
            " ".join(
                name
                for name, is_set in (
                    ("NEED", edge.is_needed),
                    ("HAS", edge.target.has_data),
                    ("FINISHED", edge.is_finished),
                )
                if is_set
            )
            or "-"
            for edge in graph.edges
        )

    for node in graph.nodes:
        ask = node.processor.event

        def asked(changed: Sequence[Port], ask: Any = ask, name: str = node.operator) -> NodeStatus:
            status: NodeStatus = ask(changed)
            steps.append(WayStep(name, status.name, flags()))
            return status

        node.processor.event = asked  # type: ignore[method-assign]
    run = Sequential(graph)
    while run.calls:
        steps.append(WayStep(run.calls[0].operator, "call", flags()))
        run.step()
    return steps
