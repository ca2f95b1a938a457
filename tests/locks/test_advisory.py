"""Advisory locks: which number a name has, who holds it, until when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from rowlock import advisory_lock_ctx, get_locker, string_to_lock_id, try_advisory_lock_ctx
from rowlock.errors import ConfigurationError, LockWaitTimeout
from rowlock.locks.advisory import WAIT_S_MAX
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import HANG_S_MAX, Base, Run
from .advisory_locks import NAME, is_free
from .creators import begins_by_itself
from .takers import LockHolder, settle

KNOWN_IDS = {
    "": 7183457195969485844,
    NAME: 5298126536389383019,
    "Ä ü\n": 6748113390487185535,
    "\ud800": 1271846578903408564,
}


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(("name", "lock_id"), KNOWN_IDS.items())
def test_ids_never_change(name: str, lock_id: int) -> None:
    """During an upgrade, old and new processes would both hold the lock."""
    assert string_to_lock_id(name) == lock_id


@given(st.text(st.characters()))
def test_every_id_fits_a_bigint(name: str) -> None:
    """PostgreSQL would refuse the number of some name, on some day."""
    assert 0 <= string_to_lock_id(name) < 2**63


def test_all_63_bits_are_used() -> None:
    """Fewer bits would mean more collisions than the docs promise."""
    ids = [string_to_lock_id(str(number)) for number in range(200)]
    assert all(any(lock_id >> bit & 1 for lock_id in ids) for bit in range(63))


@pytest.mark.parametrize("name", [b"bytes", 7, None])
def test_only_a_text_names_a_lock(name: Any) -> None:
    """A key would be locked under one name here and under another one there."""
    with pytest.raises(TypeError, match=type(name).__name__):
        string_to_lock_id(name)


# ---------------------------------------------------------------- both databases


async def test_a_lock_lasts_until_the_commit(database: TemporaryDatabase) -> None:
    """The next holder would not see what this one has written, or would wait for it for ever."""
    async with database.session_factory() as session:
        async with advisory_lock_ctx(session, NAME):
            assert not await is_free(database)
        assert not await is_free(database)
        await session.commit()
        assert await is_free(database)


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
async def test_a_lock_ends_with_its_transaction_inside_the_block(
    database: TemporaryDatabase, end: str
) -> None:
    """A block that ends its transaction and goes on would hold up everybody else."""
    async with database.session_factory() as session, advisory_lock_ctx(session, NAME):
        await getattr(session, end)()
        assert await is_free(database)
        await session.execute(select(1))
        async with database.session_factory() as other, advisory_lock_ctx(other, NAME, timeout=0):
            await session.rollback()  # of a later transaction, which has no lock
            assert not await is_free(database)


async def test_names_are_apart(database: TemporaryDatabase) -> None:
    """Every lock would be the same lock."""
    async with database.session_factory() as session, advisory_lock_ctx(session, NAME):
        assert await is_free(database, "another")


async def test_the_next_holder_sees_what_was_committed(database: TemporaryDatabase) -> None:
    """A lock that is released with the commit, but before it is done, protects nothing."""
    await database.create_tables(Base.metadata)
    first, second = database.session_factory(), database.session_factory()
    async with first, second, AsyncExitStack() as stack:
        await stack.enter_async_context(advisory_lock_ctx(first, NAME))
        waiter = asyncio.create_task(stack.enter_async_context(advisory_lock_ctx(second, NAME)))
        await settle()
        await first.execute(insert(Run).values(id=1))
        assert not waiter.done()
        await first.commit()
        await waiter
        assert (await second.scalars(select(Run.id))).all() == [1]


async def test_a_savepoint_does_not_end_the_lock(database: TemporaryDatabase) -> None:
    """The release of a savepoint is told as a commit, and the lock would be released with it."""
    async with database.session_factory() as session, advisory_lock_ctx(session, NAME):
        for end in ("commit", "rollback"):
            savepoint = await session.begin_nested()
            await getattr(savepoint, end)()
            assert not await is_free(database)


async def test_a_lock_may_be_taken_again(database: TemporaryDatabase) -> None:
    """A function that takes its lock could not be called by one that has it."""
    async with (
        database.session_factory() as session,
        advisory_lock_ctx(session, NAME, timeout=0),
        advisory_lock_ctx(session, NAME, timeout=0),
        try_advisory_lock_ctx(session, NAME) as held,
    ):
        assert held
        await session.commit()
    assert await is_free(database)


@pytest.mark.parametrize("timeout", [0, 0.001, timedelta(milliseconds=1)])
async def test_a_wait_ends_in_time_and_the_transaction_goes_on(
    database: TemporaryDatabase, timeout: timedelta | float
) -> None:
    """A request would wait for ever; or its transaction would be lost with the wait, and later
    waits be cut short.
    """
    async with database.session_factory() as session, advisory_lock_ctx(session, NAME):
        async with database.session_factory() as other:
            with pytest.raises(LockWaitTimeout) as raised:
                async with advisory_lock_ctx(other, NAME, timeout=timeout):
                    pass
            assert await other.scalar(select(1)) == 1
        expected = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        assert (raised.value.keys, raised.value.timeout_s) == ((NAME,), expected)
        await session.commit()
    assert await is_free(database)


@pytest.mark.parametrize("timeout", [-1, float("nan"), WAIT_S_MAX + 1, timedelta(days=-1)])
async def test_bad_timeouts_are_refused(
    database: TemporaryDatabase, timeout: timedelta | float
) -> None:
    """PostgreSQL would read some of them as no limit at all."""
    async with database.session_factory() as session:
        with pytest.raises(ValueError, match="timeout must be None or 0 to"):
            async with advisory_lock_ctx(session, NAME, timeout=timeout):
                pass


async def test_a_waiter_that_is_cancelled_leaves_the_holder_alone(
    database: TemporaryDatabase,
) -> None:
    """The lock would be free while somebody is inside, or taken with nobody inside."""
    async with database.session_factory() as session, advisory_lock_ctx(session, NAME):
        takers = [LockHolder(locked(database)) for _ in range(3)]
        await wait_until_waiting(database, 3)
        await takers[0].cancel()
        await takers[2].cancel()
        assert not await is_free(database)
        await session.commit()
        await takers[1].finish()
    assert await is_free(database)


@asynccontextmanager
async def locked(database: TemporaryDatabase, **settings: Any) -> AsyncIterator[None]:
    async with database.session_factory() as session, advisory_lock_ctx(session, NAME, **settings):
        yield


async def wait_until_waiting(database: TemporaryDatabase, count: int) -> None:
    async with asyncio.timeout(HANG_S_MAX):
        while await waiting(database) < count:  # noqa: ASYNC110 - neither database tells
            await asyncio.sleep(0)


ADVISORY_HERE = (
    "locktype = 'advisory' AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname ="
    " current_database())"
)
"""Other tests use the same server."""


async def waiting(database: TemporaryDatabase) -> int:
    if database.dialect_name == "sqlite":
        return sum(namespace.waiting for namespace in get_locker("sqlite").statistics())
    async with database.engine.connect() as connection:
        asked = text(f"SELECT count(*) FROM pg_locks WHERE {ADVISORY_HERE} AND NOT granted")
        return int((await connection.execute(asked)).scalar_one())


@pytest.mark.parametrize("nothing", [None, "session", object()])
async def test_only_sessions_and_connections_can_be_joined(nothing: Any) -> None:
    """A typing mistake would end in an attribute error, far from where it was made."""
    with pytest.raises(TypeError, match="pass an AsyncSession or an AsyncConnection"):
        async with advisory_lock_ctx(nothing, NAME):
            pass


# ---------------------------------------------------------------- PostgreSQL


async def test_a_connection_can_be_joined(postgresql_database: TemporaryDatabase) -> None:
    """A host without sessions would have no lock."""
    async with (
        postgresql_database.engine.begin() as connection,
        advisory_lock_ctx(connection, NAME),
    ):
        assert not await is_free(postgresql_database)
    assert await is_free(postgresql_database)


async def test_the_lock_is_the_one_of_the_documented_number(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Those who lock by hand, or in another language, would not be excluded."""
    async with postgresql_database.engine.begin() as connection:
        await connection.execute(text(f"SELECT pg_advisory_xact_lock({KNOWN_IDS[NAME]})"))
        assert not await is_free(postgresql_database)


@pytest.mark.parametrize("outcome", ["granted", "too late"])
async def test_a_timed_wait_leaves_the_hosts_own_time_limit(
    postgresql_database: TemporaryDatabase, outcome: str
) -> None:
    """Statements of the host, later in the transaction, would fail after the time that was meant
    for this lock.
    """
    holder, waiter = postgresql_database.session_factory(), postgresql_database.session_factory()
    async with holder, waiter, AsyncExitStack() as stack:
        await stack.enter_async_context(advisory_lock_ctx(holder, NAME))
        await waiter.execute(text("SET LOCAL lock_timeout = '7s'"))
        limit = 60 if outcome == "granted" else 0.001
        taking = asyncio.create_task(
            stack.enter_async_context(advisory_lock_ctx(waiter, NAME, timeout=limit))
        )
        if outcome == "granted":
            await wait_until_waiting(postgresql_database, 1)
            await holder.commit()
            await taking
        else:
            with pytest.raises(LockWaitTimeout):
                await taking
        assert await waiter.scalar(text("SHOW lock_timeout")) == "7s"


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
