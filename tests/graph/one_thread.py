"""Runs a graph in one thread, call by call: what processors do can be read off without lanes.

Calls are made in the order in which they were asked for, or in one that a test chooses. Timers are
set by hand: `Sequential.pass_time`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from rowlock.graph.fix_point import settle, wake
from rowlock.graph.processor import InputPort, NodeStatus, OutputPort, Processor
from rowlock.graph.stock.lanes import MapProcessor, consume
from rowlock.graph.stock.sources import IterableSource
from rowlock.graph.topology import Node, Topology


class Sequential:
    """A run of one graph.

    Attributes:
        calls: nodes that want a call, the oldest first.
        timers: when each node with a timer is due.
        now: in seconds.
    """

    def __init__(self, graph: Topology) -> None:
        for _ in graph.checks():
            pass
        self.graph = graph
        self.calls: list[Node] = []
        self.timers: dict[Processor, float] = {}
        self.now = 0.0
        for node in graph.nodes:
            node.processor.attach(self)
        for node in reversed(graph.nodes):
            if not node.processor.outputs:
                wake(node, graph.changes)
        self.settle()

    def wake(self, processor: Processor) -> None:
        assert isinstance(processor.owner, Node)
        wake(processor.owner, self.graph.changes)

    def wake_after(self, processor: Processor, seconds: float | None) -> None:
        self.timers.pop(processor, None)
        if seconds is not None:
            self.timers[processor] = self.now + seconds

    def settle(self) -> None:
        settle(self.graph.changes, self.calls, now=self.now, asks_max=1_000_000)
        self.graph.changes.dropped.clear()
        for node in self.graph.nodes:
            held = held_by(node.processor)
            assert 0 <= held <= node.processor.holds_max, f"{node.operator} holds {held}"

    def step(self, chosen: int = 0) -> Node:
        node = self.calls.pop(chosen)
        processor = node.processor
        if node.status is NodeStatus.SYNC:
            processor.process()
        else:
            run_at_once(processor.async_process())
        node.status, node.is_busy = NodeStatus.NEED_DATA, False
        wake(node, self.graph.changes)
        self.settle()
        return node

    def run(self, choose: Callable[[list[Node]], int] = lambda _calls: 0) -> Sequential:
        """Make all calls; timers are due when nothing else can be done."""
        while self.calls or self.timers:
            if self.calls:
                self.step(choose(self.calls))
            else:
                self.pass_time(min(self.timers.values()) - self.now)
        return self

    def pass_time(self, seconds: float) -> None:
        """Have the timers fire that are due in that time."""
        self.now += seconds
        for processor in [one for one, due in self.timers.items() if due <= self.now]:
            del self.timers[processor]
            processor.is_due = True
            self.wake(processor)
        self.settle()

    @property
    def is_finished(self) -> bool:
        return all(node.status is NodeStatus.FINISHED for node in self.graph.nodes)


def held_by(processor: Processor) -> int:
    """Return how many values a processor holds, by what came and went."""
    came = sum(port.edge.passed - port.has_data - port.edge.unread for port in processor.inputs)
    went = sum(port.edge.passed for port in processor.outputs)
    gone = processor.merged + processor.failed + processor.dropped
    return came + processor.made - went - gone


def run_at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing; a loop of its own would close what it leaves open."""
    try:
        work.send(None)
    except StopIteration:
        return
    msg = "a coroutine that waits needs an event loop"
    raise AssertionError(msg)


class Wiring:
    """Builds a graph from processors, with a list as each source and as each sink."""

    def __init__(self) -> None:
        self.graph = Topology("test")
        self.read: list[Any] = []

    def source(self, items: Iterable[Any]) -> OutputPort[Any]:
        """Add a source that notes what was read of it."""
        source = IterableSource(self._noting(items), name="source")
        self.graph.add([source])
        return source.outputs[0]

    def _noting(self, items: Iterable[Any]) -> Iterable[Any]:
        for item in items:
            self.read.append(item)
            yield item

    def through(self, processor: Processor, *inputs: OutputPort[Any]) -> list[OutputPort[Any]]:
        """Add a processor behind outputs, and return its own."""
        self.graph.add([processor])
        for output, port in zip(inputs, processor.inputs, strict=True):
            self.connect(output, port)
        return list(processor.outputs)

    def connect(self, output: OutputPort[Any], port: InputPort[Any]) -> None:
        self.graph.connect(output, port)

    def sink(self, output: OutputPort[Any]) -> list[Any]:
        """Add a sink, and return the list that it fills."""
        found: list[Any] = []
        sink = MapProcessor(found.append, use=consume, name="sink")
        self.through(sink, output)
        return found
