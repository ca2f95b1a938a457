"""How many values pass, and how many wait: limit and buffer."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from rowlock.graph.ports import Port
from rowlock.graph.processor import NodeStatus, Processor, Waker
from rowlock.graph.stock.carriers import discard


class LimitProcessor(Processor):
    """Passes the first values and ends the flow on both sides, without reading one more."""

    holds_max = 0

    def __init__(self, count: int, *, name: str = "limit") -> None:
        """Pass so many values.

        Args:
            count: how many; 0 is allowed.
            name: of the operator.
        """
        super().__init__(inputs=1, outputs=1, name=name)
        self._left = count

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Pass a value that is wanted."""
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
        """Return how many values may pass yet."""
        return f"passes {self._left} more"


class BufferProcessor(Processor):
    """Lets a flow be further ahead than its edges: a queue between two operators."""

    def __init__(self, size: int, *, name: str = "buffer") -> None:
        """Hold so many values.

        Args:
            size: how many, at most.
            name: of the operator.
        """
        super().__init__(inputs=1, outputs=1, name=name)
        self.holds_max = size
        self._held: deque[Any] = deque()

    def attach(self, waker: Waker | None) -> None:
        """Be asked at the start of a run: values are held before a reader wants the first one."""
        super().attach(waker)
        self.wake()

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Get values while there is room, and hand on those that are wanted."""
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
        """Return how full it is."""
        return f"holds {len(self._held)} of {self.holds_max}"

    def clear(self) -> None:
        """Forget all values."""
        self._held.clear()
