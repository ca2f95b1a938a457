"""The two ends of a standing graph: where values of callers come in, and where results go out.

Both are nodes like any other; neither makes a call. A value waits at the inlet until the graph has
room for it, the oldest first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from rowlock.graph.ports import InputPort, OutputPort, Port
from rowlock.graph.processor import NodeStatus, Processor
from rowlock.graph.standing.envelopes import Caller, Envelope
from rowlock.graph.stock.carriers import discard

INLET = "submit"
OUTLET = "result"


class Inlet(Processor):
    """Has no input: values are put in from outside.

    Attributes:
        inside: callers whose value was handed on, and that are not done.
    """

    holds_max = 0

    def __init__(self) -> None:
        """Be empty."""
        super().__init__(outputs=1, name=INLET)
        self.inside: dict[Caller, None] = {}
        # Its methods are atomic, and values are put in while another thread hands them on.
        self._waiting: OrderedDict[Caller, Envelope] = OrderedDict()

    def put(self, caller: Caller, value: object) -> None:
        """Have a value handed on when there is room for it."""
        self._waiting[caller] = Envelope(caller, value)
        self.wake()

    def left(self, caller: Caller) -> None:
        """Take in that a caller is done."""
        self._waiting.pop(caller, None)
        self.inside.pop(caller, None)

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Hand on the oldest value."""
        del changed
        output: OutputPort[Envelope] = self.outputs[0]
        if not output.can_push:
            return NodeStatus.NEED_CONSUME
        try:
            caller, envelope = self._waiting.popitem(last=False)
        except KeyError:
            return NodeStatus.NEED_DATA
        self.inside[caller] = None
        if caller.is_done:
            self.inside.pop(caller, None)
        self.made += 1
        output.push(envelope)
        return NodeStatus.NEED_CONSUME

    def is_open(self) -> bool:
        """Return whether no caller waits for a value inside: more of them may come."""
        return not self.inside

    def details(self) -> str:
        """Return how many values are inside, and how many wait."""
        return f"{len(self.inside)} values inside, {len(self._waiting)} wait"

    def clear(self) -> None:
        """Forget all values."""
        self._waiting.clear()
        self.inside.clear()


class Outlet(Processor):
    """Has no output: each value is its caller's result."""

    holds_max = 0

    def __init__(self) -> None:
        """Wait for results."""
        super().__init__(inputs=1, name=OUTLET)

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Give a caller its result."""
        del changed
        source: InputPort[Envelope] = self.inputs[0]
        if source.has_data:
            envelope = source.pull()
            self.merged += 1
            if not envelope.caller.finish(result=envelope.value):
                discard(source, envelope)
        source.need()
        return NodeStatus.NEED_DATA
