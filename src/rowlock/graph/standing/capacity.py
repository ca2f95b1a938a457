"""How many submitted values a standing graph holds: in its edges and its nodes, but not as parts.

A value whose parts are inside counts once, however many parts it has.
"""

from __future__ import annotations

from rowlock.graph.building.topology import Node, Topology, node_of, targets_of
from rowlock.graph.stock.parts import GatherProcessor, ScatterProcessor


def capacity_of(graph: Topology) -> int:
    """Return how many submitted values are inside at most."""
    of_parts = _nodes_of_parts(graph)
    edges = sum(
        1
        for edge in graph.edges
        if (source := node_of(edge.source)).index not in of_parts
        and not isinstance(source.processor, ScatterProcessor)
    )
    held = sum(_held_by(node) for node in graph.nodes if node.index not in of_parts)
    return edges + held


def _held_by(node: Node) -> int:
    processor = node.processor
    if isinstance(processor, ScatterProcessor):
        return processor.groups
    return 0 if isinstance(processor, GatherProcessor) else processor.holds_max


def _nodes_of_parts(graph: Topology) -> set[int]:
    """Return the numbers of the nodes between a scattering node and its gathering one."""
    found: set[int] = set()
    for node in graph.nodes:
        if not isinstance(node.processor, ScatterProcessor):
            continue
        gather = node.processor.gather
        waiting = targets_of(node)
        while waiting:
            one = waiting.pop()
            if one.processor is not gather and one.index not in found:
                found.add(one.index)
                waiting += targets_of(one)
    return found
