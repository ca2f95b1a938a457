"""What the tests of held rows share: statements to wait for, and a look at who may have a row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock.testing import TemporaryDatabase, stepping

from ..host import VolumePipeline, wait_s_max
from ..pipelines.scenes import replica


class Passing:
    """Counts the statements of a kind as they are sent, and lets a test wait for the next one."""

    def __init__(self) -> None:
        self.count = 0
        self._more = asyncio.Event()

    def note(self) -> None:
        self.count += 1
        self._more.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(wait_s_max()):
            while self.count < count:
                self._more.clear()
                await self._more.wait()


@contextmanager
def passing(engine: AsyncEngine, when: Callable[[str], bool]) -> Iterator[Passing]:
    seen = Passing()

    def listen(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if when(statement):
            seen.note()

    event.listen(engine.sync_engine, "before_cursor_execute", listen)
    try:
        yield seen
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", listen)


def is_look(statement: str) -> bool:
    """Whether a statement looks which of the named rows are to be had."""
    return statement.startswith("SELECT volumes.id, ") and " LIMIT " in statement


def is_let_go(statement: str) -> bool:
    return (
        statement.startswith("UPDATE volumes SET lock_token=")
        and "last_processed_at" not in statement
    )


def is_taking(statement: str) -> bool:
    """Whether a statement leases named rows; it starts as one that frees them does."""
    return is_let_go(statement) and "volumes.lock_token =" not in statement


async def may_be_claimed(database: TemporaryDatabase) -> int:
    """Return how many volumes a pipeline of another replica finds free, and release them."""
    async with stepping(replica(database), VolumePipeline()) as steps:
        return len(await steps.fetch_once())
