"""Cancels a coroutine at the n-th suspension of itself or of any task that comes of it; and
looks for what that left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import text

from rowlock.testing import TemporaryDatabase
from rowlock.testing.killable_replica import observed

from ..host import Attachment, Run, Volume
from ..leases.transactions import checked_out, file_may_be_written

TASKS_S_MAX: Final = 20.0
"""How long what a cancelled caller leaves to the background may take. **Unit** seconds."""
TABLES: Final = tuple(model.__tablename__ for model in (Volume, Attachment, Run))
LOCKS: Final = "lock_token, lock_owner, lock_expires_at"


@dataclass(eq=False)
class Canceller:
    """Cancels `task` at the suspensions number `at` and following, `times` in all.

    Attributes:
        seen: how many suspensions there were.
        struck: how often it has cancelled the task.
    """

    at: int
    times: int
    task: asyncio.Task[Any] | None = None
    seen: int = 0
    struck: int = 0

    def suspended(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Count, and perhaps strike."""
        number, self.seen = self.seen, self.seen + 1
        if (
            self.at <= number
            and self.struck < self.times
            and self.task is not None
            and not self.task.done()
        ):
            self.struck += 1
            self.task.cancel()

    def holds(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Let everybody go on."""


async def cancelled_at(work: Callable[[], Coroutine[Any, Any, Any]], canceller: Canceller) -> bool:
    """Run `work` in a task and cancel that as `canceller` says; return whether it was struck
    before the end.
    """
    with observed(canceller):
        canceller.task = asyncio.create_task(work(), name="to be cancelled")
        await asyncio.wait({canceller.task})
    if not canceller.task.cancelled():
        canceller.task.result()
    return canceller.struck > 0


@dataclass(eq=False)
class Complaints:
    """What the event loop complained of, such as an exception that nobody has retrieved."""

    heard: list[str] = field(default_factory=list)

    def note(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Note one: the loop's exception handler."""
        self.heard.append(f"{context.get('message')}: {context.get('exception')!r}")


@contextmanager
def complaints() -> Iterator[Complaints]:
    """Hear what the running loop complains of."""
    loop, heard = asyncio.get_running_loop(), Complaints()
    loop.set_exception_handler(heard.note)
    try:
        yield heard
    finally:
        loop.set_exception_handler(None)


async def background_ends(before: set[asyncio.Task[Any]]) -> None:
    """Wait for the tasks that were not there `before`."""
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        await asyncio.wait(left, timeout=TASKS_S_MAX)
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert left == set(), "a task was left behind"


async def nothing_is_left(database: TemporaryDatabase, engine: Any) -> None:
    """Check that no connection is in use, nobody's write is held up, and no row is locked."""
    assert checked_out(engine) == 0, "a connection is in use"
    if database.dialect_name == "sqlite":
        assert file_may_be_written(database), "the file's write lock is held"
    locked: list[Any] = []
    # One transaction of plain statements: this is asked some thousand times.
    async with database.engine.begin() as connection:
        for table in TABLES:
            if database.dialect_name == "postgresql":
                await connection.execute(text(f"SELECT id FROM {table} FOR UPDATE NOWAIT"))
            written = await connection.execute(
                text(f"UPDATE {table} SET status = status RETURNING {LOCKS}")
            )
            locked += [(table, row) for row in written.all() if any(row)]
    assert locked == [], "a lease was left behind"
