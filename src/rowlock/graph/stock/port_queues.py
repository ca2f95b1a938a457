"""Ports in the order in which they became ready: inputs with a value, outputs that want one.

The one idea: a node with many ports looks at those that changed, never at all of them, so a value
costs the same among two lanes and among a thousand. And no port waits behind one that became ready
later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from rowlock.graph.ports import InputPort, OutputPort, Port
from rowlock.graph.processor import Processor


class FullInputs:
    """The inputs of a node, and which of them have a value."""

    __slots__ = ("_full", "_is_new", "_open", "_ports")

    def __init__(self, ports: Sequence[InputPort[Any]]) -> None:
        self._ports = ports
        self._full: OrderedDict[InputPort[Any], None] = OrderedDict()
        self._open = set(ports)
        self._is_new = True

    def __bool__(self) -> bool:
        """Return whether there is a value."""
        return bool(self._full)

    @property
    def are_used_up(self) -> bool:
        """Whether no value is there, and none will come."""
        return not self._open

    def update(self, changed: Sequence[Port]) -> None:
        """Look at the ports that changed; the first time at all of them, which are asked for a
        value.
        """
        if self._is_new:
            self._is_new = False
            changed = self._ports
            for each in self._ports:
                each.need()
        for port in changed:
            if isinstance(port, InputPort):
                if port.has_data:
                    self._full[port] = None
                elif port.is_finished:
                    self._open.discard(port)

    def first(self) -> InputPort[Any]:
        """Return the port that is full for longest."""
        return next(iter(self._full))

    def remove(self, port: InputPort[Any]) -> None:
        """Forget a port whose value was taken."""
        del self._full[port]

    def pull(self) -> tuple[InputPort[Any], Any]:
        """Return the port that is full for longest and its value; its next one is asked for."""
        port = self._full.popitem(last=False)[0]
        value = port.pull()
        if port.is_finished:
            self._open.discard(port)
        else:
            port.need()
        return port, value

    def finish(self) -> None:
        """Want no more values from any of them."""
        for port in self._ports:
            port.finish()
        self._full.clear()
        self._open.clear()


class HungryOutputs:
    """The outputs of a node, and which of them want a value."""

    __slots__ = ("_hungry", "_is_new", "_open", "_ports")

    def __init__(self, ports: Sequence[OutputPort[Any]]) -> None:
        self._ports = ports
        self._hungry: OrderedDict[OutputPort[Any], None] = OrderedDict()
        self._open = set(ports)
        self._is_new = True

    def __bool__(self) -> bool:
        """Return whether one of them wants a value."""
        return bool(self._hungry)

    @property
    def are_finished(self) -> bool:
        """Whether none of them will want a value any more."""
        return not self._open

    def update(self, changed: Sequence[Port]) -> None:
        """Look at the ports that changed; the first time at all of them."""
        if self._is_new:
            self._is_new = False
            changed = self._ports
        for port in changed:
            if isinstance(port, OutputPort):
                if port.is_finished:
                    self._hungry.pop(port, None)
                    self._open.discard(port)
                elif port.can_push:
                    self._hungry[port] = None

    def first(self) -> OutputPort[Any]:
        """Return the port that wants a value for longest."""
        return next(iter(self._hungry))

    def add(self, port: OutputPort[Any]) -> None:
        """Note that a port wants a value."""
        self._hungry[port] = None

    def remove(self, port: OutputPort[Any]) -> None:
        """Forget a port that was given a value."""
        del self._hungry[port]

    def push(self, value: Any) -> OutputPort[Any]:
        """Pass a value to the port that wants one for longest, and return that port."""
        port = self._hungry.popitem(last=False)[0]
        port.push(value)
        return port

    def finish(self) -> None:
        """Have no more values for any of them."""
        for port in self._ports:
            port.finish()
        self._hungry.clear()
        self._open.clear()


def ask_again(processor: Processor) -> None:
    """Have the node of `processor` asked in this very fix point; only from the `event` of another
    node of its graph, which has changed something that no port shows.
    """
    port = processor.inputs[0]
    port.notify(port.edge.changes)
