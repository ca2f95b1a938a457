"""The fix point: nodes are asked until none of them changes anything, and the next calls are known;
a short cut to it; and why a graph cannot go on.

Pure: no thread, no lock and no clock; the time is a number that is passed in. Only idle nodes are
asked: one whose call is in flight keeps its changes until the call has ended. The newest change is
reacted to first, so that a value goes on to the next node before another value is begun.

The short cut: a lane whose call has ended hands its result on and takes its next value, and no node
is asked, since what the nodes would do is known. A lane that is the only reader of its producer
keeps asking while its call runs, so that the slot is filled meanwhile; behind a node that chooses
among lanes it does not: there a value is bound to a lane only when that is idle. Whatever is not
plain is asked as ever: the end of a flow, and values that are not wanted any more.

A deadlock is a circle of nodes that wait for each other. Waiting goes both ways along an edge, so a
graph without cycles has such circles, too: a diamond with too little buffer does.

Source: ``schedule_queue`` of Databend's executing graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

from rowlock.errors import GraphDeadlockError, InternalError
from rowlock.graph.processor import EMPTY, Changes, Edge, NodeStatus
from rowlock.graph.stock.carriers import BARE, GONE, ResizeProcessor
from rowlock.graph.stock.lanes import Lane, MapProcessor
from rowlock.graph.stock.sources import MemorySource
from rowlock.graph.topology import Node, Topology, node_of

# ---------------------------------------------------------------- deadlock


NODES_SHOWN_MAX: Final = 500
"""How many nodes a report lists."""


def deadlock_of(graph: Topology) -> GraphDeadlockError:
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
    return found + [one.owner for one in processor.awaited() if isinstance(one.owner, Node)]


def reason_of(node: Node) -> str:
    details = node.processor.details()
    names = dict.fromkeys(label_of(other) for other in waits_for(node))
    is_held = node.status is NodeStatus.NEED_CONSUME and not node.processor.awaited()
    what = "wants its value read by" if is_held else "waits for"
    text = f"{label_of(node)} {what} {' and '.join(names) or 'nothing that is known'}"
    return f"{text} ({details})" if details else text


def label_of(node: Node) -> str:
    return f"{node.operator}[{node.lane}]" if node.lane else node.operator


def flags_of(graph: Topology) -> str:
    """The graph as text: a line for each node, with the flags of the edges that it writes."""
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


# ---------------------------------------------------------------- fix point


NEED_CONSUME = NodeStatus.NEED_CONSUME
FINISHED = NodeStatus.FINISHED


class Asked(NamedTuple):
    finished: int
    asked: int


def wake(node: Node, changes: Changes) -> None:
    node.is_woken = True
    changes.owners.append(node)


def settle(changes: Changes, calls: list[Node], *, now: float, asks_max: int) -> Asked:
    """Ask nodes until nothing changes, or `asks_max` were asked; the rest stays in `changes`."""
    # The nodes that want a call are added to `calls`, in the order of their answers, those before
    # an error as well; `Changes.asked` is the node whose `event` raised.
    finished = asked = 0
    owners = cast("list[Node]", changes.owners)
    while owners and asked < asks_max:
        node = owners.pop()
        changed = node.changed
        if node.is_busy or not (changed or node.is_woken):
            continue
        asked += 1
        for port in changed:
            port.is_changed = False
        node.is_woken = False
        changes.asked = node
        status = node.processor.event(changed)
        changed.clear()
        if status is not node.status:
            if status.__class__ is not NodeStatus:
                # Not its `repr`, which is code of the host: the mutex is held.
                kind = type(status).__name__
                msg = f"event() of {node.operator} returned a {kind}, not a NodeStatus"
                raise InternalError(msg)
            node.spent_s[node.status] += now - node.since
            node.status, node.since = status, now
        if status > NEED_CONSUME:
            node.is_busy = True
            if status is FINISHED:
                finished += 1
                _finish_ports(node)
            else:
                calls.append(node)
        changes.asked = None
    return Asked(finished, asked)


def _finish_ports(node: Node) -> None:
    # A port that is left open would keep its neighbours waiting for ever.
    for input_ in node.processor.inputs:
        input_.finish()
    for output in node.processor.outputs:
        output.finish()


# ---------------------------------------------------------------- handing on


NEED_DATA = NodeStatus.NEED_DATA


class Hand:
    """What one lane hands on by: its neighbours."""

    __slots__ = (
        "follower",
        "is_only_reader",
        "is_prompt",
        "lane",
        "memory",
        "node",
        "producer",
        "resize",
        "source",
        "spread",
        "target",
    )

    def __init__(self, node: Node, lane: Lane, spreads: dict[Node, Spread | None]) -> None:
        self.node = node
        self.lane = lane
        self.source: Edge[Any] = lane.inputs[0].edge
        # None at the end of a flow
        self.target: Edge[Any] | None = lane.outputs[0].edge if lane.outputs else None
        self.producer = node_of(self.source.source)
        # The producer has no other output
        self.is_only_reader = len(self.producer.processor.outputs) == 1
        producer = self.producer.processor
        # The producer, if it reads a collection in memory for this lane alone
        self.memory = producer if type(producer) is MemorySource else None
        if lane.carrier is not BARE:
            self.memory = None  # its values may be unwanted, which is for the lane to see
        # The producer, if it spreads values over lanes only
        self.resize = None if self.is_only_reader else _spread_of(self.producer, spreads)
        reader = None if self.target is None else node_of(self.target.target)
        # The lane that reads what this one writes, if it is one
        self.follower = reader if reader is not None and is_plain(reader) else None
        # What reads that instead, if it spreads values over lanes only
        self.spread = None if reader is None else _spread_of(reader, spreads)
        is_resized = isinstance(producer, ResizeProcessor)
        # Values pass a resize on one of its sides
        self.is_prompt = is_resized or self.spread is not None

    def goes_to(self, other: Node) -> bool:
        """Whether `other` reads what this lane writes, maybe through a resize."""
        if self.spread is None:
            return other is self.follower
        return other.hand is not None and other.hand.producer is self.spread.node

    def after_call(self, calls: list[Node], now: float) -> bool:
        """Do what the lane does when its call has ended; False if it is to be asked instead."""
        for port in self.node.changed:
            port.is_changed = False
        self.node.changed.clear()
        lane, target = self.lane, self.target
        if target is not None and target.is_finished:
            return False
        if lane.result is GONE:
            if lane.marks_gone:
                return False
        elif target is not None:
            if not target.is_needed or target.value is not EMPTY:
                _rest(self.node, NEED_CONSUME, now)
                return True
            self._hand_on(target, calls, now)
        lane.result = EMPTY
        if self.resize is not None:
            return self.resize.serve(self, calls, now)
        return self._take_next(calls, now)

    def begin(self, value: object, calls: list[Node], now: float) -> bool:
        """Have the lane called with `value` next; False if that is not wanted any more."""
        lane = self.lane
        if lane.carrier is not BARE:
            if not lane.carrier.is_wanted(value):
                return False
            lane.context = lane.carrier.context(value)
        lane.item = value
        node = self.node
        _rest(node, lane.status, now)
        node.is_busy = True
        node.ticket.append(None)
        if not self.is_only_reader:
            self.source.is_needed = False
        calls.append(node)
        return True

    def _hand_on(self, target: Edge[Any], calls: list[Node], now: float) -> None:
        """Give the result to a lane that is idle, or put it into the slot."""
        result = self.lane.result
        target.passed += 1
        if self.follower is not None:
            follower: Hand = self.follower.hand
            if self.follower.status is NEED_DATA and follower.begin(result, calls, now):
                return
        elif self.spread is not None and self.spread.gives(result, calls, now):
            return
        target.value = result
        target.target.notify(target.changes)

    def _take_next(self, calls: list[Node], now: float) -> bool:
        source, value = self.source, self.source.value
        if value is EMPTY:
            if source.is_finished:
                return False
            if self.memory is not None:
                value = self.memory.next_value()
                if value is not EMPTY:
                    source.passed += 1
                    return self.begin(value, calls, now)
            if not source.is_needed:
                source.is_needed = True
                source.source.notify(source.changes)
            _rest(self.node, NEED_DATA, now)
            return True
        if not self.begin(value, calls, now):
            return False
        source.value = EMPTY
        _ask_for_more(source)
        return True


class Spread:
    __slots__ = ("_full", "_hungry", "node")

    def __init__(self, node: Node, resize: ResizeProcessor) -> None:
        self.node = node
        self._full = resize.full
        self._hungry = resize.hungry

    def gives(self, result: object, calls: list[Node], now: float) -> bool:
        """Pass a result to the lane that waits longest; False if it is to go through the slot."""
        if self._full or not self._hungry:
            return False
        port = self._hungry.first()
        node = node_of(port.edge.target)
        hand: Hand = node.hand
        if node.status is not NEED_DATA or not hand.begin(result, calls, now):
            return False
        port.edge.passed += 1
        if not hand.is_only_reader:
            self._hungry.remove(port)
        return True

    def serve(self, hand: Hand, calls: list[Node], now: float) -> bool:
        """Give a lane the longest waiting value, or note its wish; False: ask it instead."""
        source = hand.source
        if source.is_finished:
            return False
        if not self._full:
            source.is_needed = True
            self._hungry.add(source.source)
            _rest(hand.node, NEED_DATA, now)
            return True
        port = self._full.first()
        edge = port.edge
        if edge.is_finished or not hand.begin(edge.value, calls, now):
            return False
        self._full.remove(port)
        edge.value = EMPTY
        source.passed += 1
        _ask_for_more(edge)
        if not self._full:
            _rest(self.node, NEED_DATA, now)
        return True


def hand_of(node: Node, spreads: dict[Node, Spread | None]) -> Hand | None:
    """What a node of a checked graph hands on by; None if it is always asked."""
    lane = node.processor
    return Hand(node, lane, spreads) if isinstance(lane, Lane) and is_plain(node) else None


def is_plain(node: Node) -> bool:
    """Whether it is a lane that does nothing else after a call; no class derived from it is."""
    return type(node.processor) is MapProcessor


def _spread_of(node: Node, spreads: dict[Node, Spread | None]) -> Spread | None:
    if node not in spreads:
        resize = node.processor
        readers = [node_of(port.edge.target) for port in resize.outputs]
        is_spread = type(resize) is ResizeProcessor and all(map(is_plain, readers))
        spreads[node] = Spread(node, resize) if is_spread else None  # type: ignore[arg-type]
    return spreads[node]


def _rest(node: Node, status: NodeStatus, now: float) -> None:
    node.spent_s[node.status] += now - node.since
    node.status, node.since = status, now


def _ask_for_more(edge: Edge[Any]) -> None:
    """Have the producer asked, unless it is a lane that has no result yet."""
    producer = node_of(edge.source)
    is_waiting = producer.hand is None or producer.status is NEED_CONSUME
    if is_waiting and not edge.is_finished:
        edge.source.notify(edge.changes)
