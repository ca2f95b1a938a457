"""Tests of advisory locks after failures, and of those that outlast a transaction."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.exc import DBAPIError

from rowlock.errors import ConfigurationError, LockWaitTimeout
from rowlock.locks.advisory import (
    advisory_lock_ctx,
    session_level_advisory_lock_ctx,
)
from rowlock.testing import TemporaryDatabase

from .advisory_locks import NAME, is_free
from .takers import LockHolder
from .test_advisory import ADVISORY_HERE


async def test_other_failures_of_a_wait_are_not_called_a_timeout(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A deadlock would be taken for a lock that is merely busy."""
    first, second = postgresql_database.session_factory(), postgresql_database.session_factory()
    async with first, second, AsyncExitStack() as stack:
        await stack.enter_async_context(advisory_lock_ctx(first, "a"))
        await stack.enter_async_context(advisory_lock_ctx(second, "b"))
        crossing = [
            asyncio.create_task(
                stack.enter_async_context(advisory_lock_ctx(session, name, timeout=60))
            )
            for session, name in ((first, "b"), (second, "a"))
        ]
        done, pending = await asyncio.wait(crossing, return_when=asyncio.FIRST_COMPLETED)
        (error,) = [task.exception() for task in done]
        assert isinstance(error, DBAPIError)
        assert "deadlock" in str(error)
        await (first if crossing[0] in done else second).rollback()
        await asyncio.gather(*pending)


async def test_autocommit_is_refused(postgresql_database: TemporaryDatabase) -> None:
    """The lock would be gone before the block is entered."""
    for engine in (
        postgresql_database.create_engine(isolation_level="AUTOCOMMIT"),
        postgresql_database.engine.execution_options(isolation_level="AUTOCOMMIT"),
    ):
        async with engine.connect() as connection:
            with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
                async with advisory_lock_ctx(connection, NAME):
                    pass


@pytest.mark.parametrize("end", ["left", "failed", "cancelled"])
async def test_a_long_lock_ends_with_its_block(database: TemporaryDatabase, end: str) -> None:
    """A pooled connection would keep the lock for as long as the process lives."""
    entered = asyncio.Event()
    ends: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        async with session_level_advisory_lock_ctx(database.engine, NAME):
            entered.set()
            await ends

    holder = asyncio.create_task(hold())
    await entered.wait()
    assert not await is_free(database)
    match end:
        case "left":
            ends.set_result(None)
        case "failed":
            ends.set_exception(ZeroDivisionError())
        case "cancelled":
            holder.cancel()
    await asyncio.wait((holder,))
    async with database.session_factory() as session, advisory_lock_ctx(session, NAME, timeout=60):
        pass


async def test_a_long_lock_is_in_no_transaction(postgresql_database: TemporaryDatabase) -> None:
    """Vacuum would clean nothing that died since the lock was taken."""
    engine = postgresql_database.engine
    async with (
        session_level_advisory_lock_ctx(engine, NAME, timeout=1),
        engine.connect() as connection,
    ):
        asked = text(
            f"SELECT state FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE {ADVISORY_HERE}"
        )
        assert (await connection.scalars(asked)).all() == ["idle"]


async def test_a_long_lock_lasts_over_transactions(database: TemporaryDatabase) -> None:
    """A migration of several transactions would be alone in the first one only."""
    async with session_level_advisory_lock_ctx(database.engine, NAME):
        for _ in range(2):
            async with database.session_factory.begin() as session:
                await session.execute(select(1))
            assert not await is_free(database)
        with pytest.raises(LockWaitTimeout):
            async with session_level_advisory_lock_ctx(database.engine, NAME, timeout=0.001):
                pass
        assert not await is_free(database)
    assert await is_free(database)


@pytest.mark.parametrize("moment", ["before_cursor_execute", "commit"])
async def test_a_long_lock_is_not_left_by_a_cancelled_taker(
    postgresql_database: TemporaryDatabase, moment: str
) -> None:
    """A lock would be held by a connection of which nobody knows that it has it."""
    engine = postgresql_database.create_engine()

    def cancel(*_: Any) -> None:
        taker.task.cancel()

    taker = LockHolder(session_level_advisory_lock_ctx(engine, NAME))
    event.listen(engine.sync_engine, moment, cancel)
    await asyncio.wait((taker.task,))
    event.remove(engine.sync_engine, moment, cancel)
    assert taker.task.cancelled()
    async with session_level_advisory_lock_ctx(engine, NAME, timeout=60):
        pass


async def test_a_long_lock_is_taken_with_a_time_limit_under_autocommit(
    postgresql_database: TemporaryDatabase,
) -> None:
    """The limit would be set for a statement of its own, and the wait would have none."""
    engine = postgresql_database.create_engine(isolation_level="AUTOCOMMIT")
    async with session_level_advisory_lock_ctx(engine, NAME):
        with pytest.raises(LockWaitTimeout):
            async with (
                asyncio.timeout(60),
                session_level_advisory_lock_ctx(engine, NAME, timeout=0.001),
            ):
                pass
