"""Unique names on SQLite: snapshots, hosts that begin transactions themselves."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, make_url, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from rowlock import get_locker, lock_unique_names
from rowlock.dialects.sqlite.locks import FILE_WAIT_S_MAX
from rowlock.errors import ConfigurationError, LockWaitTimeout, UnsupportedDialectError
from rowlock.testing import TemporaryDatabase

from .creators import (
    NAMESPACE,
    WAIT_S,
    Base,
    Fleet,
    begins_by_itself,
    create,
    expected,
    is_free,
    names_in,
    next_free_name,
)


@pytest.mark.parametrize("statement", ["BEGIN", "BEGIN IMMEDIATE"])
async def test_hosts_that_begin_by_themselves(
    sqlite_database: TemporaryDatabase, statement: str
) -> None:
    """The look at the names would be older than the lock; or waiters would hold the write lock
    that the holder needs.
    """
    await sqlite_database.create_tables(Base.metadata)
    sessions = begins_by_itself(sqlite_database.create_engine(), statement)
    await asyncio.gather(*(create(sessions) for _ in range(40)))
    assert await names_in(sqlite_database) == expected(40)


async def test_a_snapshot_from_before_is_refused_on_sqlite(
    sqlite_database: TemporaryDatabase,
) -> None:
    """The names of then would be taken for those of now; or what is in the transaction would be
    committed unasked.
    """
    await sqlite_database.create_tables(Base.metadata)
    async with sqlite_database.engine.connect() as connection:
        await connection.execute(text("PRAGMA journal_mode = WAL"))
    async with begins_by_itself(sqlite_database.create_engine())() as session:
        assert await next_free_name(session) == "fleet-0"
        await create(sqlite_database.session_factory)
        assert await next_free_name(session) == "fleet-0"  # the snapshot
        with pytest.raises(ConfigurationError, match="commit or roll back first"):
            async with lock_unique_names(session, NAMESPACE):
                pass
        await session.commit()
        async with lock_unique_names(session, NAMESPACE):
            assert await next_free_name(session) == "fleet-1"


async def test_uncommitted_writes_are_refused_on_sqlite(sqlite_database: TemporaryDatabase) -> None:
    """Half of somebody's work would be committed, or lost, to make the snapshot fresh."""
    await sqlite_database.create_tables(Base.metadata)
    async with sqlite_database.session_factory() as session:
        session.add(Fleet(name="mine"))
        await session.flush()
        with pytest.raises(ConfigurationError, match="commit or roll back first"):
            async with lock_unique_names(session, NAMESPACE):
                pass
        async with sqlite_database.session_factory() as other:
            assert (await other.scalars(select(Fleet.name))).all() == []
        await session.commit()
        assert (await session.scalars(select(Fleet.name))).all() == ["mine"]


async def test_a_session_on_a_given_connection_is_refused_on_sqlite(
    sqlite_database: TemporaryDatabase,
) -> None:
    """The session's commit is not the database's, and the lock would end before it."""
    async with sqlite_database.engine.connect() as connection, AsyncSession(connection) as session:
        with pytest.raises(ConfigurationError, match="bound to an engine"):
            async with lock_unique_names(session, NAMESPACE):
                pass


async def test_sessions_on_one_connection_are_refused_on_sqlite() -> None:
    """To begin anew would roll back what another session is writing."""
    memory = TemporaryDatabase(make_url("sqlite+aiosqlite://"))
    async with memory.session_factory() as session:
        with pytest.raises(UnsupportedDialectError, match="share one connection"):
            async with lock_unique_names(session, NAMESPACE):
                pass
    await memory.aclose()


# ---------------------------------------------------------------- other processes on the file


def another_process(database: TemporaryDatabase) -> sqlite3.Connection:
    """Return a connection that knows of no lock in this process, and waits for nothing."""
    return sqlite3.connect(str(database.url.database), timeout=0, isolation_level=None)


def statements(engine: AsyncEngine) -> list[str]:
    """Return a list in which every statement of the engine is noted from now on."""
    sent: list[str] = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    return sent


async def test_nobody_else_writes_to_the_file_inside(sqlite_database: TemporaryDatabase) -> None:
    """Another process would take the name between the look and the commit."""
    await sqlite_database.create_tables(Base.metadata)
    other = another_process(sqlite_database)
    async with sqlite_database.session_factory() as session, lock_unique_names(session, NAMESPACE):
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
    other.execute("BEGIN IMMEDIATE")
    other.close()


@pytest.mark.parametrize("timeout", [0, 0.001, FILE_WAIT_S_MAX + 0.001])
@pytest.mark.parametrize("begin", [None, "BEGIN"])
async def test_a_busy_file_is_waited_for_no_longer_than_asked(
    sqlite_database: TemporaryDatabase, timeout: float, begin: str | None
) -> None:
    """A request would wait for as long as the driver likes; or leave the lock taken, or its
    later writes unprotected.
    """
    await sqlite_database.create_tables(Base.metadata)
    engine = sqlite_database.create_engine()
    sessions = async_sessionmaker(engine) if begin is None else begins_by_itself(engine, begin)
    sent = statements(engine)
    other = another_process(sqlite_database)
    other.execute("BEGIN IMMEDIATE")
    async with sessions() as session:
        with pytest.raises(LockWaitTimeout) as raised:
            async with lock_unique_names(session, NAMESPACE, timeout=timeout):
                pass
        assert raised.value.timeout_s == timeout
        waits_ms = [
            int(sent[n - 1].rpartition("=")[2])
            for n, text in enumerate(sent)
            if text == "BEGIN IMMEDIATE"
        ]
        assert 0 <= sum(waits_ms) <= timeout * 1000 + 1
        assert max(waits_ms) <= FILE_WAIT_S_MAX * 1000
        assert get_locker("sqlite").statistics() == ()
        busy_timeout = await session.connection()
        assert (await busy_timeout.exec_driver_sql("PRAGMA busy_timeout")).scalar_one() == 5000
        other.execute("ROLLBACK")
        session.add(Fleet(name="fleet-0"))
        await session.flush()
        await session.rollback()
        assert await is_free(sqlite_database)
    assert await names_in(sqlite_database) == []
    other.close()


async def test_those_in_the_process_wait_in_a_fair_queue(
    sqlite_database: TemporaryDatabase,
) -> None:
    """Each would block a thread and ask the file again and again, and some would be overtaken
    for ever.
    """
    await sqlite_database.create_tables(Base.metadata)
    sent = statements(sqlite_database.engine)
    tasks: list[asyncio.Task[str]] = []
    async with sqlite_database.session_factory() as session, lock_unique_names(session, NAMESPACE):
        for waiting in range(1, 6):
            tasks.append(asyncio.create_task(create(sqlite_database.session_factory)))
            async with asyncio.timeout(WAIT_S):
                while [queue.waiting for queue in get_locker("sqlite").statistics()] != [waiting]:  # noqa: ASYNC110
                    await asyncio.sleep(0)
        assert sent.count("BEGIN IMMEDIATE") == 1
    assert await asyncio.gather(*tasks) == expected(5)
    assert sent.count("BEGIN IMMEDIATE") == 6


async def test_a_busy_file_is_waited_for_by_turns(sqlite_database: TemporaryDatabase) -> None:
    """A wait without a limit would end with the driver's own."""
    await sqlite_database.create_tables(Base.metadata)
    other = another_process(sqlite_database)
    other.execute("BEGIN IMMEDIATE")
    begun = count_of(sqlite_database, "BEGIN IMMEDIATE")
    creating = asyncio.create_task(create(sqlite_database.session_factory))
    await begun(2)
    other.execute("ROLLBACK")
    assert await creating == "fleet-0"
    other.close()


async def test_a_cancelled_wait_for_the_file_takes_it_from_nobody(
    sqlite_database: TemporaryDatabase,
) -> None:
    """The file's write lock would be taken by a statement that nobody waits for any more."""
    await sqlite_database.create_tables(Base.metadata)
    other = another_process(sqlite_database)
    for cancels in range(1, 4):
        other.execute("BEGIN IMMEDIATE")
        begun = count_of(sqlite_database, "BEGIN IMMEDIATE")
        creating = asyncio.create_task(create(sqlite_database.session_factory))
        await begun(1)
        for _ in range(cancels):
            creating.cancel()
            await asyncio.sleep(0)
        other.execute("ROLLBACK")
        await asyncio.wait((creating,))
        assert creating.cancelled()
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        assert get_locker("sqlite").statistics() == ()
    other.close()


def count_of(database: TemporaryDatabase, wanted: str) -> Callable[[int], Any]:
    seen: asyncio.Queue[str] = asyncio.Queue()

    @event.listens_for(database.engine.sync_engine, "before_cursor_execute")
    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement == wanted:
            seen.put_nowait(statement)

    async def wait_for(count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            for _ in range(count):
                await seen.get()

    return wait_for
