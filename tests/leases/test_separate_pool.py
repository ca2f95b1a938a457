"""Tests of connections beside the host's pool: made like the host's, and its own business."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.database.pools import SeparatePool
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX, Run, Volume

WAIT = timedelta(milliseconds=1234)


async def answer_of(pool: SeparatePool, question: str) -> Any:
    async with pool() as session, session.begin():
        return await session.scalar(
            text(question), bind_arguments={"bind": session.sync_session.get_bind(Volume)}
        )


async def test_a_connection_beside_the_hosts_pool(database: TemporaryDatabase) -> None:
    """A host that has all its connections out would stop every heartbeat."""
    engine = database.create_engine(pool_size=1, max_overflow=0, pool_timeout=0.01)
    pool = SeparatePool(async_sessionmaker(engine), file_wait=WAIT)
    async with engine.connect():
        assert await answer_of(pool, "SELECT 1") == 1
        assert await asyncio.to_thread(lambda: asyncio.run(_ask_and_close(pool))) == 1
    await pool.close()
    assert engine.sync_engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def _ask_and_close(pool: SeparatePool) -> Any:
    # As the heartbeat thread does: a pool of another loop, which is made, used and closed there.
    there = SeparatePool(pool._session_factory, file_wait=WAIT)
    try:
        return await answer_of(there, "SELECT 1")
    finally:
        await there.close()


async def test_it_connects_as_the_host_does(database: TemporaryDatabase) -> None:
    """Settings that the host makes when it connects, a schema or a key, would be missing."""
    engine = database.create_engine()
    connects: list[object] = []
    sent: list[str] = []
    event.listen(
        engine.sync_engine, "connect", lambda connection, _record: connects.append(connection)
    )
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *a: sent.append(a[2]))
    pool = SeparatePool(async_sessionmaker(engine), file_wait=WAIT)
    await answer_of(pool, "SELECT 40 + 2")
    assert len(connects) == 1
    assert sent == ["SELECT 40 + 2"]
    await pool.close()


async def test_options_of_an_engine_go_with_it(database: TemporaryDatabase) -> None:
    """A host that maps its schemas by an option of the engine would have heartbeats in the wrong
    ones.
    """
    engine = database.create_engine().execution_options(schema_translate_map={None: "elsewhere"})
    seen: list[Any] = []
    event.listen(
        engine.sync_engine, "before_cursor_execute", lambda connection, *a: seen.append(connection)
    )
    pool = SeparatePool(async_sessionmaker(engine), file_wait=WAIT)
    await answer_of(pool, "SELECT 1")
    assert seen[0].get_execution_options()["schema_translate_map"][None] == "elsewhere"
    assert engine.sync_engine.pool.checkedin() == 0  # type: ignore[attr-defined]
    await pool.close()


async def test_each_database_has_its_own(
    sqlite_database: TemporaryDatabase, postgresql_database: TemporaryDatabase
) -> None:
    """A host with a database for some of its tables would have heartbeats sent to another one."""
    routes = {Volume: sqlite_database.engine, Run: postgresql_database.engine}
    pool = SeparatePool(async_sessionmaker(binds=routes), file_wait=WAIT)
    async with pool() as session:
        session_binds = [session.sync_session.get_bind(model) for model in (Volume, Run, Volume)]
    assert [bind.dialect.name for bind in session_binds] == ["sqlite", "postgresql", "sqlite"]
    assert session_binds[0] is session_binds[2]
    assert session_binds[0].pool is not sqlite_database.engine.sync_engine.pool
    await pool.close()


async def test_a_locked_file_is_not_waited_for_longer(sqlite_database: TemporaryDatabase) -> None:
    """A renewal that cannot be cancelled would outlast the trust of everything that it is to
    keep.
    """

    def wait_long(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA busy_timeout = 60000")
        cursor.close()

    engine = sqlite_database.create_engine()
    event.listen(engine.sync_engine, "connect", wait_long)
    pool = SeparatePool(async_sessionmaker(engine), file_wait=WAIT)
    assert await answer_of(pool, "PRAGMA busy_timeout") == 1234
    await pool.close()


async def test_closed_it_leaves_no_connection(postgresql_database: TemporaryDatabase) -> None:
    """A replica that has stopped would keep a connection of the server's."""
    pool = SeparatePool(async_sessionmaker(postgresql_database.create_engine()), file_wait=WAIT)
    pid = await answer_of(pool, "SELECT pg_backend_pid()")
    await pool.close()
    async with postgresql_database.engine.connect() as connection:
        async with asyncio.timeout(HANG_S_MAX):
            left = text(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}")
            while await connection.scalar(left):
                await connection.rollback()


async def test_options_for_one_session_cost_no_connection(database: TemporaryDatabase) -> None:
    """A host that makes options for each session, one for each tenant, would lose a connection
    with every heartbeat.
    """
    engine = database.create_engine()
    connects: list[object] = []
    event.listen(
        engine.sync_engine, "connect", lambda connection, _record: connects.append(connection)
    )
    pool = SeparatePool(lambda: AsyncSession(engine.execution_options(tenant="a")), file_wait=WAIT)
    for _ in range(5):
        assert await answer_of(pool, "SELECT 1") == 1
    assert len(connects) == 1
    await pool.close()


@pytest.mark.parametrize("made", ["before", "later"])
async def test_listeners_of_the_host_are_heard(database: TemporaryDatabase, made: str) -> None:
    """What a host sets at the begin of each transaction, a tenant say, would be missing where
    leases are renewed.
    """
    engine = database.create_engine()
    begun: list[object] = []
    pool = SeparatePool(async_sessionmaker(engine), file_wait=WAIT)
    if made == "later":
        await answer_of(pool, "SELECT 1")
    event.listen(engine.sync_engine, "begin", begun.append)
    await answer_of(pool, "SELECT 1")
    assert len(begun) == 1
    await pool.close()


async def test_one_session_has_one_connection(postgresql_database: TemporaryDatabase) -> None:
    """A session that is asked twice would be in two transactions, of which one sees nothing of
    the other.
    """
    engine = postgresql_database.create_engine().execution_options(tenant="a")
    pool = SeparatePool(async_sessionmaker(engine), file_wait=WAIT)
    async with pool() as session, session.begin():
        bind = session.sync_session.get_bind(Volume)
        answers = {
            await session.scalar(text("SELECT pg_backend_pid()"), bind_arguments=arguments)
            for arguments in (
                {"bind": bind},
                {"mapper": Volume},
                {"bind": session.sync_session.get_bind()},
            )
        }
    assert len(answers) == 1
    await pool.close()
