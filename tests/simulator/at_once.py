"""Runs what is written for an asynchronous connection on a plain one, within one call.

The one idea: a coroutine that never waits ends at its first step. So the end of a simulation, in
which no time may pass any more, can use the same readers as a host does.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

T = TypeVar("T")


class _PlainConnection:
    """A connection whose answers are there when they are asked for."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.dialect = connection.dialect

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._connection, name)

        async def answer(*args: Any) -> Any:
            return method(*args)

        return answer


def at_once(connection: Connection, read: Callable[[AsyncConnection], Coroutine[Any, Any, T]]) -> T:
    """Return what `read` returns, which may do nothing but execute statements.

    Raises:
        RuntimeError: it waits for something else.
    """
    work = read(cast("AsyncConnection", _PlainConnection(connection)))
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    work.close()
    raise RuntimeError(f"{read} waits for something that is no statement")
