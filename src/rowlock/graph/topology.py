"""`Topology`: processors, joined by edges, checked before they run.

Nodes are numbered in the order of adding, and open outputs are joined to new inputs in order, so
that a pipeline is written top to bottom: sources, what transforms, sinks. A mistake is a
`GraphError` in the line that makes it, where that line can know; the rest is found before a run
starts anything.

Source: ``Pipeline::add_pipe`` and the executing graph of Databend.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from rowlock.clock import stopwatch
from rowlock.errors import GraphError, shorten
from rowlock.graph.host_code import check_name, shown
from rowlock.graph.processor import (
    EMPTY,
    Changes,
    Edge,
    InputPort,
    NodeStatus,
    OutputPort,
    PortOwner,
    Processor,
    connect,
)

NODES_MAX: Final = 1_000_000
"""How many nodes a graph may have."""

CHECKED_AT_ONCE: Final = 1000
"""How many nodes are checked before the event loop may do something else."""

VALUE_CHARS_MAX: Final = 200
"""How much of a value stands in the note on an error, where values are shown at all."""

NOTES_MAX: Final = 16
"""An error that has so many notes gets no more."""

StartHook: TypeAlias = Callable[[], Awaitable[object] | object]
EndHook: TypeAlias = Callable[[BaseException | None], Awaitable[object] | object]


@dataclass(slots=True, eq=False, repr=False)
class Node(PortOwner):
    graph: Topology
    processor: Processor
    index: int
    operator: str
    lane: int
    status: NodeStatus = NodeStatus.NEED_DATA  # what it answered last
    is_busy: bool = False  # a call is in flight, or it is finished: it is not asked
    is_woken: bool = False  # it is to be asked even if none of its ports changed
    is_closing: bool = False  # the call in flight closes what it reads from
    is_abandoned: bool = False  # its call ignored the end of the run, and is not waited for
    # One entry while a call was handed out and not begun; the one who pops it may begin
    ticket: deque[None] = field(default_factory=deque)
    error: BaseException | None = None
    hand: Any = None  # what it hands on by, during a run (`fix_point`); None if it is asked
    started_at: float = 0.0
    ended_at: float = 0.0
    since: float = 0.0
    timer: int = 0
    has_timer: bool = False
    has_wake: bool = False  # it was woken, and the scheduler has not taken that in
    # Seconds in each status, by `NodeStatus`
    spent_s: list[float] = field(default_factory=lambda: [0.0] * len(NodeStatus))
    calls: int = 0
    busy_s: float = 0.0
    slowest_s: float = 0.0

    def __repr__(self) -> str:
        return f"<node {self.index}: {self.operator}, lane {self.lane}>"


class RaisedLater(NamedTuple):
    """An error after the one that ended a run."""

    operator: str
    error: BaseException


class Topology:
    """Processors joined by edges; built, checked, and run once.

    Attributes:
        has_run: a run has begun, so nothing can be added.
        shows_values: notes on errors quote the values of calls.
        later_errors: what was raised after the error that ended the run; the first ones.
        stopwatch: the time of its run, in seconds, in any thread.
    """

    def __init__(self, name: str = "graph") -> None:
        check_name(name)
        self.name = name
        self.nodes: list[Node] = []
        self.edges: list[Edge[Any]] = []
        self.operators: dict[str, list[Node]] = {}
        self.changes = Changes()
        self.start_hooks: list[StartHook] = []
        self.has_run = False
        self.shows_values = False
        self.later_errors: list[RaisedLater] = []
        self.stopwatch = stopwatch()
        self.started_at: float | None = None
        self.ended_at: float | None = None
        # In the order of their calls, and whether they are called even after one that failed
        self.end_hooks: list[tuple[EndHook, bool]] = []
        self._nodes_of: dict[int, Node] = {}
        self._open_outputs: dict[int, OutputPort[Any]] = {}
        self._numbers: dict[str, int] = {}

    @property
    def items_max(self) -> int:
        """How many values the graph holds: one in each edge, and `holds_max` of each node."""
        return len(self.edges) + sum(node.processor.holds_max for node in self.nodes)

    def add(self, processors: Sequence[Processor], *, name: str = "") -> None:
        """Add the lanes of one operator without joining them to others.

        Args:
            processors: one for each lane.
            name: of the operator; by default that of the first. A number is added to one that is in
                use.

        Raises:
            GraphError: there is none, one is in a graph already, the graph is full, or it has run.
        """
        self._check_open()
        if not processors:
            msg = f"{name or 'an operator'} of {self.name!r} has no lane"
            raise GraphError(msg)
        if len(self.nodes) + len(processors) > NODES_MAX:
            msg = f"{self.name!r} would have more than {NODES_MAX:,} nodes"
            raise GraphError(msg)
        check_name(name)
        operator = self._unused_name(name or processors[0].name)
        for lane, processor in enumerate(processors):
            self._add_node(processor, operator, lane)

    def add_pipe(self, processors: Sequence[Processor], *, name: str = "") -> None:
        """Add the lanes of one operator, and join all open outputs to their inputs in order.

        Args:
            processors: one for each lane.
            name: as in `add`.

        Raises:
            GraphError: there are not as many open outputs as inputs, or as in `add`.
        """
        inputs = [port for processor in processors for port in processor.inputs]
        outputs = self.open_outputs() if inputs else []
        if len(outputs) != len(inputs):
            found = [self._nodes_of[id(port)].operator for port in outputs]
            msg = (
                f"{name or (processors[0].name if processors else 'a pipe')} has {len(inputs)}"
                f" inputs, but {len(outputs)} outputs are open"
                f" ({', '.join(dict.fromkeys(found)) or 'there are none'})"
            )
            raise GraphError(msg)
        self.add(processors, name=name)
        for output, input_ in zip(outputs, inputs, strict=True):
            self.connect(output, input_)

    def connect(self, output: OutputPort[Any], input_: InputPort[Any]) -> None:
        """Join two ports of this graph.

        Raises:
            GraphError: a port is of another graph, or is joined already; or the graph has run.
        """
        self._check_open()
        for port, kind in ((output, "output"), (input_, "input")):
            node = self._nodes_of.get(id(port))
            if node is None:
                msg = f"the {kind} belongs to no processor of {self.name!r}"
                raise GraphError(msg)
            if port.is_connected:
                msg = f"an {kind} of {node.operator} is connected already"
                raise GraphError(msg)
        self.edges.append(connect(output, input_, self.changes))
        del self._open_outputs[id(output)]

    def open_outputs(self) -> list[OutputPort[Any]]:
        """Return the outputs without an edge, in the order of their nodes."""
        return list(self._open_outputs.values())

    def on_start(self, hook: StartHook) -> None:
        """Have `hook` called before the first call of a run; a coroutine is awaited. In order."""
        self._check_open()
        _check_hook(hook)
        self.start_hooks.append(hook)

    def on_end(self, hook: EndHook, *, always: bool = False) -> None:
        """Have `hook` called once when a run ends, however it ends; a coroutine is awaited.

        Hooks are called in order, with the error of the run or None. One that fails keeps the
        following ones from being called, except those for `always`, which come last.
        """
        self._check_open()
        _check_hook(hook)
        self.end_hooks.append((hook, bool(always)))
        self.end_hooks.sort(key=itemgetter(1))

    def checks(self) -> Iterator[None]:
        """Check the graph before a run, step by step.

        Raises:
            GraphError: it is empty, has a port without an edge, or a cycle.
        """
        if not self.nodes:
            msg = f"{self.name!r} has no nodes"
            raise GraphError(msg)
        waiting: dict[int, int] = {}
        ready: list[Node] = []
        for node in self.nodes:
            self._check_connected(node)
            waiting[node.index] = len(node.processor.inputs)
            if not node.processor.inputs:
                ready.append(node)
            if not node.index % CHECKED_AT_ONCE:
                yield
        while ready:
            node = ready.pop()
            del waiting[node.index]
            for target in targets_of(node):
                waiting[target.index] -= 1
                if not waiting[target.index]:
                    ready.append(target)
            if not node.index % CHECKED_AT_ONCE:
                yield
        if waiting:
            names = dict.fromkeys(self.nodes[index].operator for index in waiting)
            msg = f"{self.name!r} has a cycle; it goes through, or feeds: {', '.join(names)}"
            raise GraphError(msg)

    def begin_run(self) -> None:
        self._check_open()
        self.has_run = True
        self.stopwatch = stopwatch()
        self.started_at = self.stopwatch()

    def _check_open(self) -> None:
        if self.has_run:
            msg = f"{self.name!r} has run: build a new graph"
            raise GraphError(msg)

    def _check_connected(self, node: Node) -> None:
        kinds = (("input", node.processor.inputs), ("output", node.processor.outputs))
        for kind, ports in kinds:
            for number, port in enumerate(ports):
                if not port.is_connected:
                    msg = f"{kind} {number} of {node.operator} (lane {node.lane}) is not connected"
                    if kind == "output":
                        msg = f"{msg}: end each flow with sink() or asink()"
                    raise GraphError(msg)

    def _unused_name(self, name: str) -> str:
        found, number = name, self._numbers.get(name, 1)
        while found in self.operators:
            number += 1
            found = f"{name} {number}"
        self._numbers[name] = number
        return found

    def _add_node(self, processor: Processor, operator: str, lane: int) -> None:
        ports = [*processor.inputs, *processor.outputs]
        if processor.owner is not None:
            msg = f"{operator} (lane {lane}) is in a graph already: a processor is used once"
            raise GraphError(msg)
        node = Node(self, processor, index=len(self.nodes), operator=operator, lane=lane)
        processor.owner = node
        for port in ports:
            port.owner = node
            self._nodes_of[id(port)] = node
        for output in processor.outputs:
            self._open_outputs[id(output)] = output
        self.nodes.append(node)
        self.operators.setdefault(operator, []).append(node)


def node_of(part: InputPort[Any] | OutputPort[Any] | Processor) -> Node:
    owner = part.owner
    assert isinstance(owner, Node)
    return owner


def _check_hook(hook: object) -> None:
    if not callable(hook):
        msg = f"a hook is called: {shown(hook)} cannot be"
        raise GraphError(msg)


def add_place(error: BaseException, processor: Processor) -> None:
    """Note on `error` where it was raised; with the value if the host asked for that."""
    # The one way in which values of a graph get into errors, and so into logs.
    with suppress(Exception):  # an error of the host may refuse notes
        known, place = getattr(error, "__notes__", ()), _place_of(processor)
        # One object may be raised for each of a million values.
        if place not in known and len(known) < NOTES_MAX:
            error.add_note(place)


def _place_of(processor: Processor) -> str:
    node = processor.owner
    if not isinstance(node, Node):
        return f"in {processor.name}"
    place = f"in {node.operator}, lane {node.lane}"
    if not node.graph.shows_values or (value := processor.subject()) is EMPTY:
        return place
    try:
        text = shorten(repr(value), chars_max=VALUE_CHARS_MAX)
    except Exception:  # noqa: BLE001  # a value that cannot be shown must not hide the error
        text = f"a {type(value).__name__}"
    return f"{place}, with {text}"


def targets_of(node: Node) -> list[Node]:
    return [node_of(port.edge.target) for port in node.processor.outputs]
