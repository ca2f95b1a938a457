"""One flow to several, several to one, and what holds a flow back: copies and routes; resize, zip
and ordered merge; limits and buffers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rowlock.graph.host_code import not_awaited
from rowlock.graph.processor import EMPTY, InputPort, NodeStatus, Port, Processor, Waker
from rowlock.graph.stock.carriers import (
    BARE,
    Call,
    Carrier,
    FullInputs,
    HungryOutputs,
    SyncPlace,
    discard,
)
from rowlock.graph.topology import add_place


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

    def __init__(
        self, outputs: int, *, finishes_together: bool = False, name: str = "duplicate"
    ) -> None:
        """With `finishes_together`, one output that wants no more ends all of them."""
        super().__init__(inputs=1, outputs=outputs, name=name)
        self._finishes_together = finishes_together

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        source = self.inputs[0]
        enough = any if self._finishes_together else all
        if enough(output.is_finished for output in self.outputs):
            source.finish()
        if source.is_finished:
            for output in self.outputs:
                output.finish()
            return NodeStatus.FINISHED
        if any(not (output.is_finished or output.can_push) for output in self.outputs):
            return NodeStatus.NEED_CONSUME
        if source.has_data:
            self._pass_on(source.pull())
            return NodeStatus.NEED_CONSUME
        source.need()
        return NodeStatus.NEED_DATA

    def _pass_on(self, value: Any) -> None:
        hungry = [output for output in self.outputs if not output.is_finished]
        for output in hungry:
            output.push(value)
        self.made += len(hungry) - 1


class RouteProcessor(Processor):
    """Passes each value to the one output that a function of the host chooses."""

    def __init__(
        self,
        outputs: int,
        choose: Callable[[Any], int],
        *,
        place: SyncPlace = "loop",
        name: str = "partition",
        carrier: Carrier = BARE,
    ) -> None:
        super().__init__(inputs=1, outputs=outputs, name=name)
        self.place = place
        self._choose = choose
        self._carrier = carrier
        self._item: Any = EMPTY
        self._chosen: int | None = None

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        source = self.inputs[0]
        if all(output.is_finished for output in self.outputs):
            self._discard_item()
            source.finish()
            return NodeStatus.FINISHED
        if self._chosen is not None and not self._hand_on(self._chosen):
            return NodeStatus.NEED_CONSUME
        if self._item is EMPTY and source.has_data:
            self._item = source.pull()
            self.context = self._carrier.context(self._item)
        if self._item is not EMPTY:
            return NodeStatus.SYNC
        if source.is_finished:
            for output in self.outputs:
                output.finish()
            return NodeStatus.FINISHED
        source.need()
        return NodeStatus.NEED_DATA

    def _hand_on(self, chosen: int) -> bool:
        output = self.outputs[chosen]
        if self._item is EMPTY or output.is_finished:
            self._discard_item()
        elif output.can_push:
            output.push(self._item)
            self._item = EMPTY
        else:
            return False
        self._chosen = None
        return True

    def _discard_item(self) -> None:
        if self._item is not EMPTY:
            self.dropped += 1
            discard(self.inputs[0], self._item)
            self._item = EMPTY

    def process(self) -> None:
        item, call = self._item, None
        if self._carrier.has_callers:
            call = Call(self)
            if not call.begin(self._carrier, (item,)):
                self._leave_out(call)
                return
        try:
            self._chosen = range(len(self.outputs))[self._choose(self._carrier.body(item))]
        except BaseException as error:  # of any kind: it fails its value, or ends the run
            if call is not None:
                add_place(error, self)
            if not self._carrier.fail(item, error):
                raise
            self.failed += 1
            self._item = EMPTY
        if call is not None:
            self._end(call)

    def _leave_out(self, call: Call) -> None:
        self.dropped += 1
        self._carrier.drop(self._item)
        self._item = EMPTY
        self._end(call)

    def _end(self, call: Call) -> None:
        self.context = None
        call.end()

    def subject(self) -> object:
        return EMPTY if self._item is EMPTY else self._carrier.body(self._item)

    def details(self) -> str:
        return "" if self._chosen is None else f"waits for output {self._chosen}"

    def clear(self) -> None:
        self._item = EMPTY


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
        """`key` is called once for each value."""
        super().__init__(inputs=inputs, outputs=1, name=name)
        self.place = place
        self.holds_max = inputs
        self._key = key
        self._heads: list[Any] = [EMPTY] * inputs
        self._keys: list[Any] = [EMPTY] * inputs
        self._first: int | None = None

    def event(self, changed: Sequence[Port]) -> NodeStatus:
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
        self._heads = [EMPTY] * len(self.inputs)
        self._keys = [EMPTY] * len(self.inputs)
