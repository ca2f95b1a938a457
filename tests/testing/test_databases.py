"""Tests of the databases of one test, and of the fixtures that hand them out."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import asyncpg
import pytest
from sqlalchemy import URL, Column, Integer, MetaData, Table, inspect, text
from sqlalchemy.ext.asyncio import create_async_engine

from rowlock.testing import TemporaryDatabase
from rowlock.testing.databases import Administration, ConnectionsLeftBehindError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rowlock.testing import PostgresqlServer

metadata = MetaData()
Table("widgets", metadata, Column("id", Integer, primary_key=True))


async def _tables(database: TemporaryDatabase) -> list[str]:
    async with database.engine.connect() as connection:
        return await connection.run_sync(lambda sync: inspect(sync).get_table_names())


async def test_tables_are_created_in_an_empty_database(
    database: TemporaryDatabase, database_name: str
) -> None:
    """A test starts with nothing and finds the tables that it asked for, from every engine."""
    assert database.dialect_name == database.engine.dialect.name == database_name
    assert await _tables(database) == []
    await database.create_tables(metadata)
    async with database.create_engine().connect() as other, database.session_factory() as session:
        assert (await other.execute(text("SELECT count(*) FROM widgets"))).scalar_one() == 0
        assert (await session.execute(text("SELECT count(*) FROM widgets"))).scalar_one() == 0


async def test_no_commit_waits_for_the_disk(sqlite_database: TemporaryDatabase) -> None:
    """Most of the time of a host's tests would go into keeping what is dropped right after."""
    async with sqlite_database.engine.connect() as connection:
        assert await connection.scalar(text("PRAGMA synchronous")) == 0


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the driver has no such transactions")
async def test_no_commit_waits_for_the_disk_where_a_transaction_is_always_open(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A host whose connections begin a transaction at once could not connect, or would find
    itself without one.
    """
    engine = sqlite_database.create_engine(connect_args={"autocommit": False})
    async with engine.connect() as connection:
        raw = await connection.get_raw_connection()
        assert raw.driver_connection is not None
        assert raw.driver_connection.in_transaction
        assert await connection.scalar(text("PRAGMA synchronous")) == 0
        await connection.execute(text("CREATE TABLE widgets (id INTEGER)"))
        await connection.rollback()
    assert await _tables(sqlite_database) == []


async def test_many_databases_are_created_over_one_connection(postgresql_url: URL) -> None:
    """To connect for each would take the time of the test itself, a test would see the rows of
    another, or a database be left behind, where a client is still connected.
    """
    with Administration(postgresql_url) as administration:
        first, second = administration.create(), administration.create()
        await first.create_tables(metadata)
        assert await _tables(first) == ["widgets"]
        assert await _tables(second) == []
        stray = await asyncpg.connect(first.dsn)
        for database in (first, second):
            await database.aclose()
            administration.drop(database)
    gone = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    with pytest.raises(gone):
        await stray.fetch("SELECT 1")
    engine = create_async_engine(postgresql_url)
    async with engine.connect() as connection:
        names = set(await connection.scalars(text("SELECT datname FROM pg_database")))
    await engine.dispose()
    assert not names & {first.url.database, second.url.database}


async def test_a_connection_left_behind_is_an_error(tmp_path: Path) -> None:
    """Teardown tells who keeps a connection, on any engine of the test."""
    database = TemporaryDatabase(URL.create("sqlite+aiosqlite", database=str(tmp_path / "a.db")))
    connection = await database.create_engine().connect()
    with pytest.raises(ConnectionsLeftBehindError, match="still checked out"):
        await database.aclose()
    await connection.invalidate()  # it outlived its pool, so nobody else would close it
    await connection.close()


async def test_a_server_of_ones_own_can_be_restarted(
    postgresql_server: Callable[[], PostgresqlServer],
) -> None:
    """A test may stop and restart its own server: connections are refused, then the data are
    there again.
    """
    server = postgresql_server()
    assert not server.is_running
    url = await asyncio.to_thread(server.start)
    dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("SHOW fsync") == "off"
    await connection.execute("CREATE TABLE kept (id integer)")
    await connection.close()
    await asyncio.to_thread(server.stop)
    assert not server.is_running
    with pytest.raises((FileNotFoundError, ConnectionRefusedError)):
        await asyncpg.connect(dsn)
    assert await asyncio.to_thread(server.start) == url
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("SELECT count(*) FROM kept") == 0
    await connection.close()


async def test_leaks_fail_a_test(request: pytest.FixtureRequest) -> None:
    """A test of ours could leave a task or a connection behind and pass: what fails it is asked
    for by each async test, and `test_plugin.py` has it fail one.
    """
    tidy = request._get_active_fixturedef("rowlock_tidy")
    assert tidy.cached_result is not None
