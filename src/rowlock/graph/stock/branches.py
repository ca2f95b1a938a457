"""One flow to several, several to one, and what holds a flow back: copies, resize, zip, limits and
buffers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from rowlock.graph.processor import InputPort, NodeStatus, Port, Processor, Waker
from rowlock.graph.stock.carriers import FullInputs, HungryOutputs, discard


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
        if self.full.are_used_up:
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
