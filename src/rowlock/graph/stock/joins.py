"""Several flows to one, or to another number of lanes: resize, zip and ordered merge."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rowlock.graph.ports import EMPTY, InputPort, Port
from rowlock.graph.processor import NodeStatus, Processor
from rowlock.graph.stock.carriers import SyncPlace, discard
from rowlock.graph.stock.port_queues import FullInputs, HungryOutputs
from rowlock.graph.unawaited import not_awaited


class ResizeProcessor(Processor):
    """Passes each value of any input to any output that wants one; also the merge of flows.

    Attributes:
        full: the inputs that have a value.
        hungry: the outputs that want one.
    """

    holds_max = 0

    def __init__(self, inputs: int, outputs: int, *, name: str = "resize") -> None:
        """Join so many inputs with so many outputs.

        Args:
            inputs: how many.
            outputs: how many.
            name: of the operator.
        """
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.full = FullInputs(self.inputs)
        self.hungry = HungryOutputs(self.outputs)

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Move what can be moved."""
        self.hungry.update(changed)
        if self.hungry.are_finished:
            self.full.finish()
            return NodeStatus.FINISHED
        self.full.update(changed)
        while self.full and self.hungry:
            self.hungry.push(self.full.pull()[1])
        if self.full.are_used_up:
            self.hungry.finish()
            return NodeStatus.FINISHED
        return NodeStatus.NEED_CONSUME if self.full else NodeStatus.NEED_DATA


class ZipProcessor(Processor):
    """Passes tuples of one value of each input; ends with the input that ends first."""

    def __init__(self, inputs: int, *, ahead: int = 16, name: str = "zip") -> None:
        """Join so many flows.

        Args:
            inputs: how many.
            ahead: how many values one of them may be ahead of the slowest.
            name: of the operator.
        """
        super().__init__(inputs=inputs, outputs=1, name=name)
        self.holds_max = inputs * ahead
        self._ahead = ahead
        self._held: list[deque[Any]] = [deque() for _ in range(inputs)]

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Fill the rows, and hand on one that is whole."""
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
        """Return which inputs it waits for, and which have no room."""
        empty = [str(at) for at, held in enumerate(self._held) if not held]
        full = [str(at) for at, held in enumerate(self._held) if len(held) == self._ahead]
        waits = f"waits for input {', '.join(empty)}" if empty else ""
        return waits + (f"; input {', '.join(full)} is {self._ahead} ahead" if full else "")

    def clear(self) -> None:
        """Forget all values."""
        for held in self._held:
            held.clear()


class OrderedMergeProcessor(Processor):
    """Merges flows that are each in order of a key into one that is."""

    def __init__(
        self,
        inputs: int,
        *,
        key: Callable[[Any], Any] | None = None,
        place: SyncPlace = "loop",
        name: str = "merge_ordered",
    ) -> None:
        """Join so many flows.

        Args:
            inputs: how many.
            key: what their values are in order of; the values themselves by default. It is called
                once for each value.
            place: where it is called, and keys are compared.
            name: of the operator.
        """
        super().__init__(inputs=inputs, outputs=1, name=name)
        self.place = place
        self.holds_max = inputs
        self._key = key
        self._heads: list[Any] = [EMPTY] * inputs
        self._keys: list[Any] = [EMPTY] * inputs
        self._first: int | None = None

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Hand on the first head once each open input has one."""
        del changed
        output = self.outputs[0]
        if output.is_finished:
            return self._end()
        if self._first is not None:
            if not output.can_push:
                return NodeStatus.NEED_CONSUME
            output.push(self._heads[self._first])
            self._heads[self._first] = EMPTY
            self._first = None
        return self._next_first()

    def _next_first(self) -> NodeStatus:
        waits = False
        for at, port in enumerate(self.inputs):
            if self._heads[at] is EMPTY and port.has_data:
                self._heads[at] = port.pull()
            if self._heads[at] is EMPTY and not port.is_finished:
                port.need()
                waits = True
        if waits:
            return NodeStatus.NEED_DATA
        if all(head is EMPTY for head in self._heads):
            self.outputs[0].finish()
            return NodeStatus.FINISHED
        return NodeStatus.SYNC

    def process(self) -> None:
        """Compare the keys of the heads."""
        first: int | None = None
        for at, head in enumerate(self._heads):
            if head is EMPTY:
                continue
            if self._keys[at] is EMPTY:
                self._keys[at] = head if self._key is None else not_awaited(self._key(head))
            if first is None or self._keys[at] < self._keys[first]:
                first = at
        if first is not None:
            self._keys[first] = EMPTY
        self._first = first

    def _end(self) -> NodeStatus:
        for at, port in enumerate(self.inputs):
            for held in (self._heads[at], self._keys[at]):
                if held is not EMPTY:
                    discard(port, held)
            self.dropped += self._heads[at] is not EMPTY
            self._heads[at] = self._keys[at] = EMPTY
            port.finish()
        return NodeStatus.FINISHED

    def clear(self) -> None:
        """Forget all values and their keys."""
        self._heads = [EMPTY] * len(self.inputs)
        self._keys = [EMPTY] * len(self.inputs)
