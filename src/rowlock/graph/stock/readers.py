"""What the host gives to be read, value by value: as one loop of the host's would read it.

The one idea: a generator goes on across its ``yield`` with what it had before. Each value is asked
for in a call of its own, so the context variables that it sets (a decimal context, a span, a bound
logger) are kept here from call to call. An asynchronous one may have opened a timeout or a task
group as well, which belong to a task: its lane keeps the task meanwhile
(`Processor.keeps_task`).

Not here: one thread for all values. Threads take turns, as calls do.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextvars import copy_context
from typing import Any


class Reader:
    """Reads an iterable, with the same context variables from its first value to its end."""

    __slots__ = ("_context", "_iterator")

    def __init__(self, items: Iterable[Any]) -> None:
        """Read nothing yet; the context variables are a copy of the present ones.

        Raises:
            BaseException: whatever `items` raises that cannot be read.
        """
        if not hasattr(items, "__iter__") and not hasattr(items, "__getitem__"):
            is_async = hasattr(items, "__aiter__")
            advice = "use aflat_map" if is_async else "return an iterable"
            msg = f"a value of type {type(items).__qualname__} cannot be read: {advice}"
            raise TypeError(msg)
        self._context = copy_context()
        self._iterator: Iterator[Any] = self._context.run(iter, items)

    def next(self) -> Any:
        """Return the next value.

        Raises:
            StopIteration: there is none.
            BaseException: whatever the host's iterator raised.
        """
        return self._context.run(next, self._iterator)

    def close(self) -> None:
        """Close a generator; other iterators have nothing to close.

        Raises:
            BaseException: whatever the generator raised.
        """
        close = getattr(self._iterator, "close", None)
        if close is not None and hasattr(self._iterator, "throw"):
            self._context.run(close)


class AsyncReader:
    """Reads an asynchronous iterable, in the task in which it is awaited."""

    __slots__ = ("_iterator",)

    def __init__(self, items: AsyncIterable[Any]) -> None:
        """Read nothing yet.

        Raises:
            BaseException: whatever `items` raises that cannot be read.
        """
        if not hasattr(items, "__aiter__"):
            msg = (
                f"a value of type {type(items).__qualname__} cannot be read asynchronously: use"
                " flat_map, or a function that is async and yields"
            )
            raise TypeError(msg)
        self._iterator: AsyncIterator[Any] = aiter(items)

    async def next(self, cancelled: CancelledError | None = None) -> Any:
        """Return the next value.

        Args:
            cancelled: a cancellation that a generator is to get at the ``yield`` where it stands.

        Raises:
            StopAsyncIteration: there is none.
            BaseException: whatever the host's iterator raised.
        """
        throw = None if cancelled is None else getattr(self._iterator, "athrow", None)
        return await (anext(self._iterator) if throw is None else throw(cancelled))

    async def close(self) -> None:
        """Close a generator; other iterators have nothing to close.

        Raises:
            BaseException: whatever the generator raised.
        """
        close = getattr(self._iterator, "aclose", None)
        if close is not None:
            await close()
