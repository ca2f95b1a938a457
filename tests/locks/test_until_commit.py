"""Tests of SQLite's advisory locks: which sessions may hold one, and what becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from rowlock import advisory_lock_ctx, get_locker
from rowlock.errors import ConfigurationError
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import HANG_S_MAX, Base, Run
from .advisory_locks import NAME, is_free
from .creators import begins_by_itself
from .takers import settle


async def test_waiting_with_the_write_lock_is_refused_on_sqlite(
    sqlite_database: TemporaryDatabase,
) -> None:
    """The holder could not write for as long as the waiter waits for it."""
    await sqlite_database.create_tables(Base.metadata)
    async with sqlite_database.session_factory() as session:
        session.add(Run(id=1))
        await session.flush()
        with pytest.raises(ConfigurationError, match="before its first statement"):
            async with advisory_lock_ctx(session, NAME):
                pass
        await session.commit()
        async with advisory_lock_ctx(session, NAME):
            assert not await is_free(sqlite_database)


@pytest.mark.parametrize("statement", ["BEGIN", "BEGIN IMMEDIATE"])
async def test_a_transaction_that_did_nothing_so_far_may_have_begun(
    sqlite_database: TemporaryDatabase, statement: str
) -> None:
    """Hosts that begin transactions themselves could not lock where they say when each begins
    and ends.
    """
    sessions = begins_by_itself(sqlite_database.create_engine(), statement)
    async with sessions.begin() as session, advisory_lock_ctx(session, NAME):
        assert not await is_free(sqlite_database)
        await session.commit()
    async with sessions.begin() as session:
        await session.execute(select(1))
        with pytest.raises(ConfigurationError, match="before its first statement"):
            async with advisory_lock_ctx(session, NAME):
                pass
    async with sessions.begin() as session, session.begin_nested():
        with pytest.raises(ConfigurationError, match="before its first statement"):
            async with advisory_lock_ctx(session, NAME):
                pass


async def test_what_is_not_flushed_does_not_matter_on_sqlite(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A service that has made its row already could not lock, or would find it committed or
    lost.
    """
    await sqlite_database.create_tables(Base.metadata)
    async with sqlite_database.session_factory() as session:
        session.add(Run(id=1))
        async with advisory_lock_ctx(session, NAME):
            async with sqlite_database.session_factory() as other:
                assert (await other.scalars(select(Run.id))).all() == []
            await session.commit()
        assert (await session.scalars(select(Run.id))).all() == [1]


async def test_databases_are_apart_on_sqlite(
    sqlite_database: TemporaryDatabase, tmp_path: Any
) -> None:
    """A task that works with two files would wait for itself."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/other.db")
    async with (
        sqlite_database.session_factory() as session,
        AsyncSession(engine) as other,
        advisory_lock_ctx(session, NAME),
        advisory_lock_ctx(other, NAME, timeout=0),
    ):
        pass
    await engine.dispose()


async def test_a_holder_never_wants_for_a_connection(sqlite_database: TemporaryDatabase) -> None:
    """With a full pool the holder would wait for the waiters, and they for it."""
    engine = sqlite_database.create_engine(pool_size=1, max_overflow=1, pool_timeout=1)
    sessions = async_sessionmaker(engine)
    async with asyncio.timeout(HANG_S_MAX), sessions() as holder, sessions() as early:
        await early.execute(select(1))
        async with advisory_lock_ctx(holder, NAME):
            taker = asyncio.create_task(advisory_lock_ctx(early, NAME).__aenter__())
            await settle()
            await holder.execute(select(1))
            await holder.commit()
        await taker


@virtual_time
async def test_nothing_is_left_of_a_lock(virtual_database: TemporaryDatabase) -> None:
    """A process would remember every name that was ever locked."""
    async with virtual_database.session_factory() as session:
        for number in range(3):
            async with advisory_lock_ctx(session, f"{NAME}{number}", timeout=1):
                await session.commit()
    assert get_locker("sqlite").statistics() == ()
