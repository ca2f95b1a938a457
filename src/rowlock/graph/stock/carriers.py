"""How values travel: bare, or in what their carrier wraps them; and ports in the order in which
they became ready.

The one idea: an operator is written once, for items. What an item is, who wants it, and where an
error of it goes, is its carrier's to say. A bare value is its own item, and its error ends the run;
parts of a value and values of a caller travel with what they belong to (`parts`, `envelopes`). A
carrier is asked within `event` too, so none of its methods but `fail` may call code of the host.

A caller returns only when no call runs for it, and cancels those that it shares with no other. So
operators whose items have callers begin and end each call.

A node with many ports looks at those that changed, never at all of them, so a value costs the same
among two lanes and among a thousand; and no port waits behind one that became ready later.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextvars import Context
from typing import Any, Final, Literal, Protocol, TypeAlias

from rowlock.graph.processor import InputPort, OutputPort, Port, Processor

# ---------------------------------------------------------------- port queues


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


# ---------------------------------------------------------------- carriers


SyncPlace: TypeAlias = Literal["loop", "thread"]
"""Where a plain function is called."""


class Gone:
    """The type of `GONE`, the place of an item that was dropped or has left."""

    def __repr__(self) -> str:
        return "GONE"


GONE: Final = Gone()
"""What a lane hands on instead of a dropped item where each item must have one result."""


class CallOwner(Protocol):
    """A caller whose values travel."""

    @property
    def is_done(self) -> bool:
        """Whether its result is known; no call is to begin for it."""
        ...

    def begin(self, call: Call) -> bool:
        """Take in that a call begins for it; False if none is to. May call code of the host."""
        ...

    def end(self, call: Call) -> None:
        """Take in that the call has ended."""
        ...


class Call:
    """A call of host code that runs for one or several callers.

    Attributes:
        processor: makes it.
        task: awaits it; None if it is no coroutine.
        owners: the callers.
    """

    __slots__ = ("_is_cancelled", "owners", "processor", "task")

    def __init__(self, processor: Processor, *, is_awaited: bool = False) -> None:
        """Be made by `processor`; in the current task if it is awaited."""
        self.processor = processor
        self.task = asyncio.current_task() if is_awaited else None
        self.owners: dict[CallOwner, None] = {}
        self._is_cancelled = False

    def begin(self, carrier: Carrier, items: Iterable[Any]) -> list[Any]:
        """Begin, and return the items for which the call is to be made: those that are wanted."""
        begun: dict[CallOwner | None, bool] = {None: True}
        wanted = []
        for item in items:
            owner = carrier.owner(item)
            if owner is not None and owner not in begun:
                begun[owner] = owner.begin(self)
                self.owners[owner] = None
            if begun[owner] and carrier.is_wanted(item):
                wanted.append(item)
        return wanted

    @property
    def is_obsolete(self) -> bool:
        """Whether no caller wants its result."""
        return all(owner.is_done for owner in list(self.owners))

    def cancel(self) -> None:
        """Cancel it, in the event loop, unless a caller wants its result."""
        if not self.is_obsolete:
            return
        if self.task is None:
            self.processor.wake()  # it may have something to close
        else:
            self._is_cancelled = True
            self.task.cancel()

    def end(self) -> None:
        """End."""
        if self._is_cancelled and self.task is not None:
            self.task.uncancel()  # it may go on with a call for others
        for owner in list(self.owners):
            owner.end(self)


class Carrier:
    """Values travel bare.

    Attributes:
        has_callers: its items belong to callers, and the graph stays open for more of them.
        is_answered: each item is to have a result, so none may be dropped.
    """

    has_callers = False
    is_answered = False

    def owner(self, item: Any) -> CallOwner | None:
        """Return the caller that `item` belongs to, if there are callers."""
        del item
        return None

    def body(self, item: Any) -> Any:
        """Return the value that a function of the host is called with."""
        return item

    def result(self, item: Any, value: Any) -> Any:
        """Return what travels on after a call for `item` returned `value`; `GONE` if it has
        left.
        """
        del item
        return value

    def fail(self, item: Any, error: BaseException) -> bool:
        """Have a call for `item` fail; False if that is to end the run."""
        del item, error
        return False

    def drop(self, item: Any) -> None:
        """Leave `item` out: a filter or an `on_error` wants no result of it, or it is obsolete."""

    def is_wanted(self, item: Any) -> bool:
        """Return whether a result of `item` is still of use."""
        del item
        return True

    def context(self, item: Any) -> Context | None:
        """Return the context variables of calls for `item`; None for those of the run."""
        del item
        return None


BARE: Final = Carrier()
"""The carrier of values that travel bare."""


def discard(port: InputPort[Any], item: object) -> None:
    """Drop an item within `event`: it is kept until the mutex is free.

    Args:
        port: any input of the node.
        item: the last reference to it may be the caller's.
    """
    port.edge.changes.dropped.append(item)
