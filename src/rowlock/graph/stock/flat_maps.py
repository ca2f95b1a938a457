"""One value to any number of values: a function that returns an iterable, read as it is wanted.

A lane reads the next value only when its consumer wants it, so an endless iterable is no trouble. A
generator is closed exactly once: used up, when no more values are wanted, or by the run that ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from typing import Any

from rowlock.graph.ports import EMPTY, Port
from rowlock.graph.processor import NodeStatus
from rowlock.graph.stock.carriers import GONE, SyncPlace
from rowlock.graph.stock.lanes import Lane, OnError
from rowlock.graph.stock.readers import AsyncReader, Reader
from rowlock.graph.unawaited import not_awaited


class _FlatLane(Lane):
    """A lane that reads what its function returned."""

    def __init__(
        self, function: Any, *, place: SyncPlace, name: str, on_error: OnError | None
    ) -> None:
        super().__init__(name=name, place=place, on_error=on_error)
        self._function = function
        self._reader: Any = None
        self._read = 0

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Hand on the value that was read, then read the next one if it is wanted."""
        output = self.outputs[0]
        if output.is_finished and self._reader is not None:
            return self.status
        if self._reader is None or output.is_finished:
            return super().event(changed)
        if self.result is not EMPTY:
            output.push(self.result)
            self.result = EMPTY
        return self.status if output.can_push else NodeStatus.NEED_CONSUME

    def closing(self) -> NodeStatus | None:
        """Return how to close what it reads; nothing if it reads nothing."""
        return None if self._reader is None else self.status

    def _got(self, value: Any) -> None:
        self.result = value
        self._read += 1
        self.made += self._read > 1

    def _used_up(self) -> None:
        self.merged += self._read == 0
        self._forget()

    def _forget(self) -> None:
        self._reader = None
        self.keeps_task = False
        self.item = EMPTY
        self._read = 0

    def _failed(self, error: BaseException) -> bool:
        """Return whether the run goes on; then the rest of this value is left out."""
        has_read = self._read > 0
        if not self.outlives(self.item, error):
            return False
        # Values that were read of it have travelled on: it counts as one more, that failed.
        self.made += has_read
        self._forget()
        self.result = GONE
        return True

    def clear(self) -> None:
        """Forget the item, the result and what is read."""
        super().clear()
        self._reader = None


class FlatMapProcessor(_FlatLane):
    """Calls a function with each value, and hands on the values of what it returns."""

    def __init__(
        self,
        function: Callable[[Any], Iterable[Any]],
        *,
        place: SyncPlace = "thread",
        name: str = "",
        on_error: OnError | None = None,
    ) -> None:
        """Be a lane of `function`.

        Args:
            function: the host's.
            place: where it is called, and what it returns is read.
            name: of the operator.
            on_error: is called with a value and what its call or a read raised; the rest of that
                value is left out then.
        """
        super().__init__(function, place=place, name=name, on_error=on_error)

    def process(self) -> None:
        """Read the next value, or close what is read if none is wanted."""
        if self.outputs[0].is_finished:
            self.close()
            return
        try:
            if self._reader is None:
                self._reader = Reader(not_awaited(self._function(self.item)))
            try:
                value = self._reader.next()
            except StopIteration:
                self._used_up()
            else:
                self._got(value)
        except BaseException as error:
            if not self._failed(error):
                raise

    def close(self) -> None:
        """Close the generator; other iterators have nothing to close."""
        reader: Reader | None = self._reader
        self._forget()
        if reader is not None:
            reader.close()


class AsyncFlatMapProcessor(_FlatLane):
    """Calls a function with each value, and hands on what it yields, in the event loop."""

    status = NodeStatus.ASYNC

    def __init__(
        self,
        function: Callable[[Any], AsyncIterable[Any]],
        *,
        name: str = "",
        on_error: OnError | None = None,
    ) -> None:
        """Be a lane of `function`.

        Args:
            function: the host's.
            name: of the operator.
            on_error: is called with a value and what its call or a read raised; the rest of that
                value is left out then.
        """
        super().__init__(function, place="loop", name=name, on_error=on_error)

    async def async_process(self) -> None:
        """Read the next value, or close what is read if none is wanted."""
        if self.outputs[0].is_finished:
            await self.async_close()
            return
        try:
            if self._reader is None:
                self._reader = AsyncReader(not_awaited(self._function(self.item)))
                self.keeps_task = True
            try:
                cancelled, self.cancellation = self.cancellation, None
                value = await self._reader.next(cancelled)
            except StopAsyncIteration:
                self._used_up()
            else:
                self._got(value)
        except BaseException as error:
            if not self._failed(error):
                raise

    async def async_close(self) -> None:
        """Close the generator; other iterators have nothing to close."""
        reader: AsyncReader | None = self._reader
        self._forget()
        if reader is not None:
            await reader.close()
