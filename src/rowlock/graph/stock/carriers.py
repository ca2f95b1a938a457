"""How values travel: bare, or in what their carrier wraps them; and one flow to several, several to
one, and what holds a flow back: copies, resize, zip, limits and buffers.

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
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from contextvars import Context
from typing import Any, Final, Generic, Protocol, TypeVar

from rowlock.graph.processor import InputPort, NodeStatus, OutputPort, Port, Processor, Waker

PortT = TypeVar("PortT", bound=Port)


class ReadyPorts(Generic[PortT]):
    """Ports of one side that are ready, in the order in which they became so."""

    __slots__ = ("_is_new", "_open", "_ports", "_ready")

    def __init__(self, ports: Sequence[PortT]) -> None:
        self._ports = ports
        self._ready: OrderedDict[PortT, None] = OrderedDict()
        self._open = set(ports)
        self._is_new = True

    def __bool__(self) -> bool:
        return bool(self._ready)

    @property
    def are_finished(self) -> bool:
        return not self._open

    def first(self) -> PortT:
        """The port that has been ready for longest."""
        return next(iter(self._ready))

    def add(self, port: PortT) -> None:
        self._ready[port] = None

    def remove(self, port: PortT) -> None:
        del self._ready[port]

    def finish(self) -> None:
        for port in self._ports:
            port.finish()
        self._ready.clear()
        self._open.clear()


class FullInputs(ReadyPorts[InputPort[Any]]):
    __slots__ = ()

    def update(self, changed: Sequence[Port]) -> None:
        """Look at the ports that changed; the first time at all, which are asked for a value."""
        if self._is_new:
            self._is_new = False
            changed = self._ports
            for each in self._ports:
                each.need()
        for port in changed:
            if isinstance(port, InputPort):
                if port.has_data:
                    self._ready[port] = None
                elif port.is_finished:
                    self._open.discard(port)

    def pull(self) -> tuple[InputPort[Any], Any]:
        """The port that is full for longest and its value; its next one is asked for."""
        port = self._ready.popitem(last=False)[0]
        value = port.pull()
        if port.is_finished:
            self._open.discard(port)
        else:
            port.need()
        return port, value


class HungryOutputs(ReadyPorts[OutputPort[Any]]):
    __slots__ = ()

    def update(self, changed: Sequence[Port]) -> None:
        if self._is_new:
            self._is_new = False
            changed = self._ports
        for port in changed:
            if isinstance(port, OutputPort):
                if port.is_finished:
                    self._ready.pop(port, None)
                    self._open.discard(port)
                elif port.can_push:
                    self._ready[port] = None

    def push(self, value: Any) -> OutputPort[Any]:
        """Pass a value to the port that wants one for longest, and return that port."""
        port = self._ready.popitem(last=False)[0]
        port.push(value)
        return port


def ask_again(processor: Processor) -> None:
    """Have `processor` asked in this fix point; only from another node's `event`."""
    port = processor.inputs[0]
    port.notify(port.edge.changes)


class Gone:
    def __repr__(self) -> str:
        return "GONE"


GONE: Final = Gone()
"""What a lane hands on instead of a dropped item where each item must have one result."""


class CallOwner(Protocol):
    @property
    def is_done(self) -> bool: ...

    def begin(self, call: Call) -> bool:
        """Take in that a call begins; False if none is to. May call code of the host."""
        ...

    def end(self, call: Call) -> None: ...


class Call:
    """A call of host code that runs for one or several callers."""

    # `task` is None if it is no coroutine.

    __slots__ = ("_is_cancelled", "owners", "processor", "task")

    def __init__(self, processor: Processor, *, is_awaited: bool = False) -> None:
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
        if self._is_cancelled and self.task is not None:
            self.task.uncancel()  # it may go on with a call for others
        for owner in list(self.owners):
            owner.end(self)


class Carrier:
    """Values travel bare."""

    has_callers = False  # its items belong to callers, and the graph stays open for more of them
    is_answered = False  # each item is to have a result, so none may be dropped

    def owner(self, item: Any) -> CallOwner | None:
        del item
        return None

    def body(self, item: Any) -> Any:
        """The value that a function of the host is called with."""
        return item

    def result(self, item: Any, value: Any) -> Any:
        """What travels on after a call for `item` returned `value`; `GONE` if it has left."""
        del item
        return value

    def fail(self, item: Any, error: BaseException) -> bool:
        """Have a call for `item` fail; False if that is to end the run."""
        del item, error
        return False

    def drop(self, item: Any) -> None:
        """Leave `item` out: a filter or an `on_error` wants no result of it, or it is obsolete."""

    def is_wanted(self, item: Any) -> bool:
        del item
        return True

    def context(self, item: Any) -> Context | None:
        """The context variables of calls for `item`; None for those of the run."""
        del item
        return None


BARE: Final = Carrier()
"""The carrier of values that travel bare."""


def discard(port: InputPort[Any], item: object) -> None:
    """Drop an item within `event`: it is kept until the mutex is free."""
    # `port` is any input of the node.
    port.edge.changes.dropped.append(item)


# ---------------------------------------------------------------- several flows, limits and buffers


class LimitProcessor(Processor):
    """Passes the first values and ends the flow on both sides, without reading one more."""

    holds_max = 0

    def __init__(self, count: int, *, name: str = "limit") -> None:
        super().__init__(inputs=1, outputs=1, name=name)
        self._left = count

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        source, output = self.inputs[0], self.outputs[0]
        if output.is_finished or self._left == 0:
            return self._end()
        if not output.can_push:
            return NodeStatus.NEED_CONSUME
        if source.has_data:
            output.push(source.pull())
            self._left -= 1
            return self._end() if self._left == 0 else NodeStatus.NEED_CONSUME
        if source.is_finished:
            return self._end()
        source.need()
        return NodeStatus.NEED_DATA

    def _end(self) -> NodeStatus:
        self.inputs[0].finish()
        self.outputs[0].finish()
        return NodeStatus.FINISHED

    def details(self) -> str:
        return f"passes {self._left} more"


class BufferProcessor(Processor):
    """Lets a flow be further ahead than its edges: a queue between two operators."""

    def __init__(self, size: int, *, name: str = "buffer") -> None:
        super().__init__(inputs=1, outputs=1, name=name)
        self.holds_max = size
        self._held: deque[Any] = deque()

    def attach(self, waker: Waker | None) -> None:
        """Be asked at the start of a run: values are held before a reader wants the first one."""
        super().attach(waker)
        self.wake()

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        source, output = self.inputs[0], self.outputs[0]
        if output.is_finished:
            return self._end()
        if self._held and output.can_push:
            output.push(self._held.popleft())
        if source.has_data and len(self._held) < self.holds_max:
            self._held.append(source.pull())
            if output.can_push:
                output.push(self._held.popleft())
        if source.is_finished and not self._held:
            return self._end()
        if len(self._held) == self.holds_max:
            return NodeStatus.NEED_CONSUME
        source.need()
        return NodeStatus.NEED_CONSUME if self._held else NodeStatus.NEED_DATA

    def _end(self) -> NodeStatus:
        source = self.inputs[0]
        self.dropped += len(self._held)
        while self._held:
            discard(source, self._held.popleft())
        source.finish()
        self.outputs[0].finish()
        return NodeStatus.FINISHED

    def details(self) -> str:
        return f"holds {len(self._held)} of {self.holds_max}"

    def clear(self) -> None:
        self._held.clear()


class DuplicateProcessor(Processor):
    """Passes each value, the same object, to all outputs at the pace of the slowest."""

    holds_max = 0

    def __init__(self, outputs: int, *, name: str = "duplicate") -> None:
        super().__init__(inputs=1, outputs=outputs, name=name)

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        source = self.inputs[0]
        if all(output.is_finished for output in self.outputs):
            source.finish()
        if source.is_finished:
            for output in self.outputs:
                output.finish()
            return NodeStatus.FINISHED
        if any(not (output.is_finished or output.can_push) for output in self.outputs):
            return NodeStatus.NEED_CONSUME
        if source.has_data:
            value = source.pull()
            hungry = [output for output in self.outputs if not output.is_finished]
            for output in hungry:
                output.push(value)
            self.made += len(hungry) - 1
            return NodeStatus.NEED_CONSUME
        source.need()
        return NodeStatus.NEED_DATA


class ResizeProcessor(Processor):
    """Passes each value of any input to any output that wants one; also the merge of flows."""

    holds_max = 0

    def __init__(self, inputs: int, outputs: int, *, name: str = "resize") -> None:
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.full = FullInputs(self.inputs)
        self.hungry = HungryOutputs(self.outputs)

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        self.hungry.update(changed)
        if self.hungry.are_finished:
            self.full.finish()
            return NodeStatus.FINISHED
        self.full.update(changed)
        while self.full and self.hungry:
            self.hungry.push(self.full.pull()[1])
        if self.full.are_finished:
            self.hungry.finish()
            return NodeStatus.FINISHED
        return NodeStatus.NEED_CONSUME if self.full else NodeStatus.NEED_DATA


class ZipProcessor(Processor):
    """Passes tuples of one value of each input; ends with the input that ends first."""

    def __init__(self, inputs: int, *, ahead: int = 16, name: str = "zip") -> None:
        """One input may be `ahead` values ahead of the slowest."""
        super().__init__(inputs=inputs, outputs=1, name=name)
        self.holds_max = inputs * ahead
        self._ahead = ahead
        self._held: list[deque[Any]] = [deque() for _ in range(inputs)]

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        output = self.outputs[0]
        if output.is_finished:
            return self._end()
        for port, held in zip(self.inputs, self._held, strict=True):
            self._fill(port, held)
        if output.can_push and all(self._held):
            output.push(tuple(held.popleft() for held in self._held))
            self.merged += len(self.inputs) - 1
            for port, held in zip(self.inputs, self._held, strict=True):
                self._fill(port, held)
        if any(
            not held and port.is_finished
            for port, held in zip(self.inputs, self._held, strict=True)
        ):
            return self._end()
        return NodeStatus.NEED_CONSUME if all(self._held) else NodeStatus.NEED_DATA

    def _fill(self, port: InputPort[Any], held: deque[Any]) -> None:
        if port.has_data and len(held) < self._ahead:
            held.append(port.pull())
        if len(held) < self._ahead:
            port.need()

    def _end(self) -> NodeStatus:
        for port, held in zip(self.inputs, self._held, strict=True):
            self.dropped += len(held)
            while held:
                discard(port, held.popleft())
            port.finish()
        self.outputs[0].finish()
        return NodeStatus.FINISHED

    def details(self) -> str:
        empty = [str(at) for at, held in enumerate(self._held) if not held]
        full = [str(at) for at, held in enumerate(self._held) if len(held) == self._ahead]
        waits = f"waits for input {', '.join(empty)}" if empty else ""
        return waits + (f"; input {', '.join(full)} is {self._ahead} ahead" if full else "")

    def clear(self) -> None:
        for held in self._held:
            held.clear()
