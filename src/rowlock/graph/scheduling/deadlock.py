"""Why a graph cannot go on: the nodes that wait for each other, and the flags of all edges.

Pure. A node that needs data waits for the producers of its empty inputs; one that needs a consumer
waits for the readers of its outputs; and any may wait for what its processor names. In a graph
without cycles, nodes can still wait in a circle, because waiting goes both ways along an edge: a
diamond with too little buffer does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rowlock.errors import GraphDeadlockError
from rowlock.graph.building.topology import Node, Topology, node_of
from rowlock.graph.ports import Edge
from rowlock.graph.processor import NodeStatus, Processor

NODES_SHOWN_MAX: Final = 500
"""How many nodes a report lists."""


def deadlock_of(graph: Topology) -> GraphDeadlockError:
    """Return the error about a graph in which nothing is in flight and a node is not finished."""
    cycle = waiting_cycle(graph)
    waits = cycle or [node for node in graph.nodes if node.status is not NodeStatus.FINISHED]
    reasons = "; ".join(reason_of(node) for node in waits[:5])
    return GraphDeadlockError(
        f"the graph {graph.name!r} cannot go on: {reasons}",
        text=flags_of(graph),
        cycle=tuple(label_of(node) for node in cycle),
    )


def waiting_cycle(graph: Topology) -> list[Node]:
    """Return nodes each of which waits for the next, and the last for the first; or none."""
    done: set[int] = set()
    for start in graph.nodes:
        path: list[Node] = []
        on_path: dict[int, int] = {}
        steps: list[Iterator[Node]] = [iter((start,))]
        while steps:
            node = next(steps[-1], None)
            if node is None:
                steps.pop()
                if path:
                    last = path.pop()
                    del on_path[last.index]
                    done.add(last.index)
            elif node.index in on_path:
                return path[on_path[node.index] :]
            elif node.index not in done:
                on_path[node.index] = len(path)
                path.append(node)
                steps.append(iter(waits_for(node)))
    return []


def waits_for(node: Node) -> list[Node]:
    """Return the nodes that a node waits for, by what it answered and the flags of its edges."""
    processor, found = node.processor, list[Node]()
    if node.status > NodeStatus.NEED_CONSUME:
        return found
    if node.status is NodeStatus.NEED_DATA:
        empty = [port.edge for port in processor.inputs if not port.has_data]
        found = [node_of(edge.source) for edge in empty if edge.is_needed and not edge.is_finished]
    if not found:
        # Also of a node that was never asked: none of its readers wants a value.
        ports = [port for port in processor.outputs if not (port.can_push or port.is_finished)]
        found = [node_of(port.edge.target) for port in ports]
    return found + _nodes_of(processor.awaited())


def _nodes_of(processors: Sequence[Processor]) -> list[Node]:
    return [one.owner for one in processors if isinstance(one.owner, Node)]


def reason_of(node: Node) -> str:
    """Return what a node waits for, in a few words."""
    details = node.processor.details()
    names = dict.fromkeys(label_of(other) for other in waits_for(node))
    is_held = node.status is NodeStatus.NEED_CONSUME and not node.processor.awaited()
    what = "wants its value read by" if is_held else "waits for"
    text = f"{label_of(node)} {what} {' and '.join(names) or 'nothing that is known'}"
    return f"{text} ({details})" if details else text


def label_of(node: Node) -> str:
    """Return the name of a node: that of its operator, with its lane beyond the first."""
    return f"{node.operator}[{node.lane}]" if node.lane else node.operator


def flags_of(graph: Topology) -> str:
    """Return the graph as text: a line for each node, with the flags of the edges it writes."""
    lines = [
        f"{node.index} {label_of(node)}: {node.status.name}"
        + "".join(f" -> {_edge_text(port.edge)}" for port in node.processor.outputs)
        for node in graph.nodes[:NODES_SHOWN_MAX]
    ]
    more = len(graph.nodes) - len(lines)
    return "\n".join([*lines, f"and {more} more"] if more else lines)


def _edge_text(edge: Edge[Any]) -> str:
    flags = [
        name
        for name, is_set in (
            ("HAS", edge.target.has_data),
            ("NEED", edge.is_needed),
            ("FINISHED", edge.is_finished),
        )
        if is_set
    ]
    return f"{node_of(edge.target).index} [{' '.join(flags)}]"
