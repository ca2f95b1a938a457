"""Processors for tests: as plain as the ports allow, and with what a test has to see."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

from rowlock.graph.processor import EMPTY, NodeStatus, Place, Port, Processor


class Overlap(AssertionError):
    """Two calls of one node, or a call and an event, ran at the same time."""


class TooMuch(AssertionError):
    """A node holds more values than it says, or less than none."""


class Watched(Processor):
    """A processor that fails if its event and its calls overlap, or if it holds too much."""

    def __init__(
        self, *, inputs: int = 0, outputs: int = 0, name: str = "", place: Place = "thread"
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.place = place
        self._busy = threading.Lock()

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        with _Alone(self._busy):
            status = self.answer(changed)
            if not 0 <= self.held() <= self.holds_max:
                raise TooMuch(self.name, self.held())
            return status

    def held(self) -> int:
        """Return how many values are inside, by what came and went."""
        came = sum(port.edge.passed - port.has_data - port.edge.unread for port in self.inputs)
        went = sum(port.edge.passed for port in self.outputs)
        return came + self.made - went - self.merged - self.failed - self.dropped

    def process(self) -> None:
        with _Alone(self._busy):
            self.act()

    async def async_process(self) -> None:
        with _Alone(self._busy):
            await self.async_act()

    def answer(self, changed: Sequence[Port]) -> NodeStatus:
        """Do what `event` does."""
        raise NotImplementedError

    def act(self) -> None:
        """Do what `process` does."""

    async def async_act(self) -> None:
        """Do what `async_process` does."""


class _Alone:
    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise Overlap

    def __exit__(self, *_exc: object) -> None:
        self._lock.release()


class Feed(Watched):
    """A source: pushes the values of an iterable, and is closed with it."""

    def __init__(self, values: Iterable[Any], *, name: str = "", place: Place = "loop") -> None:
        super().__init__(outputs=1, name=name, place=place)
        self.values: Iterator[Any] = iter(values)
        self.next: Any = EMPTY
        self.is_over = self.is_closed = False
        self.times_closed = 0

    def answer(self, changed: Sequence[Port]) -> NodeStatus:
        output = self.outputs[0]
        if output.is_finished or (self.is_over and self.next is EMPTY):
            return NodeStatus.FINISHED
        if self.next is not EMPTY:
            if not output.can_push:
                return NodeStatus.NEED_CONSUME
            output.push(self.next)
            self.next = EMPTY
        return NodeStatus.SYNC if output.can_push else NodeStatus.NEED_CONSUME

    def act(self) -> None:
        try:
            self.next = next(self.values)
            self.made += 1
        except StopIteration:
            self.is_over = True

    def closing(self) -> NodeStatus | None:
        return NodeStatus.SYNC if hasattr(self.values, "close") else None

    def close(self) -> None:
        with _Alone(self._busy):
            self.times_closed += 1
            self.values.close()  # type: ignore[attr-defined]

    def clear(self) -> None:
        self.next = EMPTY


class Apply(Watched):
    """Calls a function, or awaits a coroutine, for each value."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        name: str = "",
        place: Place = "loop",
        is_async: bool = False,
    ) -> None:
        super().__init__(inputs=1, outputs=1, name=name, place=place)
        self.function: Callable[[Any], Any | Awaitable[Any]] = function
        self.is_async = is_async
        self.given: Any = EMPTY
        self.result: Any = EMPTY

    def answer(self, changed: Sequence[Port]) -> NodeStatus:
        input_, output = self.inputs[0], self.outputs[0]
        if output.is_finished:
            self.dropped += self.result is not EMPTY
            return NodeStatus.FINISHED
        if self.result is not EMPTY:
            if not output.can_push:
                return NodeStatus.NEED_CONSUME
            output.push(self.result)
            self.result = EMPTY
        if input_.has_data:
            self.given = input_.pull()
            return NodeStatus.ASYNC if self.is_async else NodeStatus.SYNC
        if input_.is_finished:
            return NodeStatus.FINISHED
        if not output.can_push:
            return NodeStatus.NEED_CONSUME
        input_.need()
        return NodeStatus.NEED_DATA

    def act(self) -> None:
        self.result = self.function(self.given)
        self.given = EMPTY

    async def async_act(self) -> None:
        self.result = await self.function(self.given)
        self.given = EMPTY

    def subject(self) -> object:
        return self.given

    def clear(self) -> None:
        self.given = self.result = EMPTY


class Collect(Watched):
    """A sink: keeps what it gets; done after `most` values."""

    def __init__(
        self, *, inputs: int = 1, name: str = "", place: Place = "loop", most: int | None = None
    ) -> None:
        super().__init__(inputs=inputs, name=name, place=place)
        self.got: list[Any] = []
        self.most = most

    def answer(self, changed: Sequence[Port]) -> NodeStatus:
        for input_ in self.inputs:
            if input_.has_data:
                self.got.append(input_.pull())
                self.merged += 1
            if self.most is not None and len(self.got) >= self.most:
                return NodeStatus.FINISHED
            input_.need()
        if all(input_.is_finished for input_ in self.inputs):
            return NodeStatus.FINISHED
        return NodeStatus.NEED_DATA


class Spread(Watched):
    """Joins many inputs to many outputs: each value goes to one output that wants it."""

    holds_max = 0

    def __init__(self, inputs: int, outputs: int, *, name: str = "") -> None:
        super().__init__(inputs=inputs, outputs=outputs, name=name)

    def answer(self, changed: Sequence[Port]) -> NodeStatus:
        if all(output.is_finished for output in self.outputs):
            return NodeStatus.FINISHED
        free = [output for output in self.outputs if output.can_push]
        for input_ in self.inputs:
            if input_.has_data and free:
                free.pop().push(input_.pull())
        if all(input_.is_finished for input_ in self.inputs):
            return NodeStatus.FINISHED
        for input_ in self.inputs:
            if free and not input_.has_data:
                input_.need()
        return NodeStatus.NEED_DATA if free else NodeStatus.NEED_CONSUME


class Copy(Watched):
    """Gives each value to all outputs; it waits until all of them want one."""

    def __init__(self, outputs: int, *, name: str = "") -> None:
        super().__init__(inputs=1, outputs=outputs, name=name)

    def answer(self, changed: Sequence[Port]) -> NodeStatus:
        input_ = self.inputs[0]
        open_ = [output for output in self.outputs if not output.is_finished]
        if not open_ or input_.is_finished:
            return NodeStatus.FINISHED
        if not all(output.can_push for output in open_):
            return NodeStatus.NEED_CONSUME
        if not input_.has_data:
            input_.need()
            return NodeStatus.NEED_DATA
        value = input_.pull()
        self.made += len(open_) - 1
        for output in open_:
            output.push(value)
        return NodeStatus.NEED_CONSUME


class Pair(Watched):
    """Gives one tuple for a value of each input."""

    def __init__(self, inputs: int = 2, *, name: str = "") -> None:
        super().__init__(inputs=inputs, outputs=1, name=name)

    def answer(self, changed: Sequence[Port]) -> NodeStatus:
        output = self.outputs[0]
        if output.is_finished or any(one.is_finished for one in self.inputs):
            return NodeStatus.FINISHED
        for input_ in self.inputs:
            if not input_.has_data:
                input_.need()
        if not output.can_push:
            return NodeStatus.NEED_CONSUME
        if not all(input_.has_data for input_ in self.inputs):
            return NodeStatus.NEED_DATA
        self.merged += len(self.inputs) - 1
        output.push(tuple(input_.pull() for input_ in self.inputs))
        return NodeStatus.NEED_CONSUME
