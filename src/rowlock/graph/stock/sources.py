"""Where values come from: an iterable, read in its place, or an asynchronous one, in the loop.

A source reads only while its consumer asks for a value, so it is never further ahead than the edges
behind it. When no more values are wanted it closes what it reads from at once, in the place where
it was read; if the run ends first, the run has it closed.

The trap: a generator goes on across its ``yield`` with what it had before. Each value is asked for
in a call of its own, so the context variables that it sets (a decimal context, a span, a bound
logger) are kept here from call to call. An asynchronous one may have opened a timeout or a task
group as well, which belong to a task: its lane keeps the task meanwhile (`Processor.keeps_task`).
Plain calls may come from several threads, in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextvars import copy_context
from typing import Any

from rowlock.graph.processor import EMPTY, NodeStatus, Place, Port, Processor
from rowlock.graph.topology import add_place


class Reader:
    """Reads an iterable, with the same context variables from its first value to its end."""

    __slots__ = ("_context", "_iterator")

    def __init__(self, items: Iterable[Any]) -> None:
        if not hasattr(items, "__iter__") and not hasattr(items, "__getitem__"):
            msg = f"a value of type {type(items).__qualname__} cannot be read: return an iterable"
            raise TypeError(msg)
        self._context = copy_context()
        self._iterator: Iterator[Any] = self._context.run(iter, items)

    def next(self) -> Any:
        return self._context.run(next, self._iterator)

    def close(self) -> None:
        """Close a generator; other iterators have nothing to close."""
        close = getattr(self._iterator, "close", None)
        if close is not None and hasattr(self._iterator, "throw"):
            self._context.run(close)


class _Source(Processor):
    """A node without inputs. `is_used_up`: there are no more values, or none is wanted."""

    status = NodeStatus.SYNC

    def __init__(self, items: Any, *, name: str = "") -> None:
        super().__init__(outputs=1, name=name)
        self._items: Any = items
        self._reader: Any = None
        self._value: Any = EMPTY
        self.is_used_up = False

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        output = self.outputs[0]
        if output.is_finished:
            # A value that came too late stays until the run ends: it may have a `__del__`.
            self.dropped += self._value is not EMPTY and not self.is_used_up
            self.is_used_up = True
            return NodeStatus.FINISHED if self._reader is None else self.status
        if self._value is not EMPTY:
            output.push(self._value)
            self._value = EMPTY
        if self.is_used_up:
            output.finish()
            return NodeStatus.FINISHED
        return self.status if output.can_push else NodeStatus.NEED_CONSUME

    def closing(self) -> NodeStatus | None:
        return None if self._reader is None else self.status

    def _forget(self) -> None:
        self._reader = self._items = None
        self.keeps_task = False

    def clear(self) -> None:
        self._value = EMPTY
        self._forget()


class IterableSource(_Source):
    """Reads an iterable, one value per call."""

    def __init__(self, items: Iterable[Any], *, place: Place = "thread", name: str = "") -> None:
        """Read in a thread, it has that for itself meanwhile, since a read may wait long."""
        super().__init__(items, name=name)
        self.place = place
        self.blocks = place == "thread"

    def process(self) -> None:
        if self.is_used_up:
            self.close()
            return
        if self._reader is None:
            self._reader = Reader(self._items)
        try:
            self._value = self._reader.next()
            self.made += 1
        except StopIteration:
            self.is_used_up = True
            self._forget()

    def close(self) -> None:
        reader: Reader | None = self._reader
        self._forget()
        if reader is not None:
            reader.close()


class AsyncSource(_Source):
    """Reads an asynchronous iterable in the event loop, one value per call."""

    status = NodeStatus.ASYNC
    place: Place = "loop"

    async def async_process(self) -> None:
        if self.is_used_up:
            await self.async_close()
            return
        if self._reader is None:
            self._reader, self.keeps_task = aiter(self._items), True
        try:
            cancelled, self.cancellation = self.cancellation, None
            # What a generator gets at the ``yield`` where it stands.
            throw = None if cancelled is None else getattr(self._reader, "athrow", None)
            self._value = await (anext(self._reader) if throw is None else throw(cancelled))
            self.made += 1
        except StopAsyncIteration:
            self.is_used_up = True
            self._forget()

    async def async_close(self) -> None:
        close = getattr(self._reader, "aclose", None)
        self._forget()
        if close is not None:
            await close()


class MemorySource(Processor):
    """Reads a collection in memory; no call is made for it, since that runs no code of the host."""

    place: Place = "loop"
    holds_max = 0

    def __init__(self, items: Iterable[Any], *, name: str = "") -> None:
        super().__init__(outputs=1, name=name)
        # It stays until the run has ended: letting go of it may run a `__del__`.
        self._items: Any = items
        self._iterator: Iterator[Any] | None = None

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        output = self.outputs[0]
        if output.is_finished:
            return NodeStatus.FINISHED
        if not output.can_push:
            return NodeStatus.NEED_CONSUME
        if self._iterator is None:
            self._iterator = iter(self._items)
        try:
            output.push(next(self._iterator))
        except StopIteration:
            output.finish()
            return NodeStatus.FINISHED
        except RuntimeError as error:  # the host has changed it meanwhile
            add_place(error, self)
            raise
        self.made += 1
        return NodeStatus.NEED_CONSUME

    def next_value(self) -> Any:
        """The next value for a reader that needs no ask; `EMPTY` if it is to ask."""
        if self._iterator is None:
            return EMPTY
        try:
            value = next(self._iterator, EMPTY)
        except RuntimeError:  # again when it is asked
            return EMPTY
        self.made += value is not EMPTY
        return value

    def clear(self) -> None:
        self._items = self._iterator = None
