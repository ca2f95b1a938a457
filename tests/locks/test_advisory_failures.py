"""Tests of advisory locks after failures."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from sqlalchemy.exc import DBAPIError

from rowlock import advisory_lock_ctx
from rowlock.errors import ConfigurationError
from rowlock.testing import TemporaryDatabase

from .advisory_locks import NAME


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
