"""Steps and looks that the tests of transactions share."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

from rowlock.database.transaction import in_transaction
from rowlock.testing import TemporaryDatabase

from ..host import Run
from .ground import RUNS

Work = Callable[[AsyncSession, AsyncConnection], Awaitable[Any]]
TIMEOUT = timedelta(seconds=20)
CANCELS_IN_A_ROW = 10
BOUNDARIES = ("begin", "before_cursor_execute", "after_cursor_execute", "commit", "rollback")


async def run_in(
    factory: Any, work: Work, *, timeout: timedelta = TIMEOUT, writes: bool = True
) -> Any:
    return await in_transaction(
        factory, RUNS, work, purpose="take a step", timeout=timeout, writes=writes
    )


async def write_both(session: AsyncSession, connection: AsyncConnection) -> str:
    """Read, then write two rows, reading the second one from a live cursor: what a cancellation
    must not tear apart.
    """
    await connection.execute(select(Run.id))
    await connection.execute(text("UPDATE runs SET status = 'written' WHERE id = 1"))
    await connection.execute(select(Run.id))
    await connection.execute(text("UPDATE runs SET status = 'written' WHERE id = 2 RETURNING id"))
    return "done"


async def warm(engine: AsyncEngine) -> None:
    """Make the first transaction, which asks for what is remembered then."""
    await run_in(async_sessionmaker(engine), write_both)


async def may_write(database: TemporaryDatabase) -> bool:
    """Whether another replica may write at once: nobody holds the file's write lock, or a row of
    the table.
    """
    if database.dialect_name == "sqlite":
        return file_may_be_written(database)
    async with database.create_engine().begin() as connection:
        await connection.execute(text("SELECT id FROM runs FOR UPDATE NOWAIT"))
    return True


def file_may_be_written(database: TemporaryDatabase) -> bool:
    """Whether somebody outside of the engine gets the file's write lock without waiting."""
    with closing(
        sqlite3.connect(str(database.url.database), timeout=0, isolation_level=None)
    ) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        other.execute("ROLLBACK")
        return True


def checked_out(engine: AsyncEngine) -> int:
    return engine.pool.checkedout()  # type: ignore[attr-defined, no-any-return]
