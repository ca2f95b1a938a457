"""Tests of the databases of one test, and of the fixtures that hand them out."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from typing import TYPE_CHECKING

import asyncpg
import pytest
from sqlalchemy import URL, Column, Integer, MetaData, Table, inspect, text
from sqlalchemy.ext.asyncio import create_async_engine

from rowlock.testing import TemporaryDatabase
from rowlock.testing.databases import Administration, ConnectionsLeftBehindError

from ..databases import postgresql_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rowlock.testing import PostgresqlServer

metadata = MetaData()
Table("widgets", metadata, Column("id", Integer, primary_key=True))

LEAKS = """
import asyncio

left = []

async def test_leaks_a_task():
    left.append(asyncio.create_task(asyncio.sleep(3600)))

async def test_leaks_a_connection(sqlite_database):
    left.append(await sqlite_database.engine.connect())

async def test_is_tidy(sqlite_database):
    async with sqlite_database.engine.connect():
        await asyncio.create_task(asyncio.sleep(0))
"""


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


async def test_databases_are_apart_and_dropped(postgresql_url: URL) -> None:
    """No test sees the rows of another, and none is left on the server, even if a client is
    still connected.
    """
    async with (
        postgresql_database(postgresql_url) as first,
        postgresql_database(postgresql_url) as second,
    ):
        await first.create_tables(metadata)
        assert await _tables(first) == ["widgets"]
        assert await _tables(second) == []
        stray = await asyncpg.connect(first.dsn)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await stray.fetch("SELECT 1")
    engine = create_async_engine(postgresql_url)
    async with engine.connect() as connection:
        names = set(await connection.scalars(text("SELECT datname FROM pg_database")))
    await engine.dispose()
    assert not names & {first.url.database, second.url.database}


async def test_many_databases_are_created_over_one_connection(postgresql_url: URL) -> None:
    """To connect for each would take the time of the test itself, or a database be left behind."""
    with Administration(postgresql_url) as administration:
        first, second = administration.create(), administration.create()
        await first.create_tables(metadata)
        assert await _tables(second) == []
        for database in (first, second):
            await database.aclose()
            administration.drop(database)
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


async def test_leaks_fail_a_test(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """A test that leaves a task or a connection behind cannot pass under our fixtures."""
    tests = tmp_path / "tests"
    tests.mkdir()
    for name in ("conftest.py", "databases.py", "lengths.py", "well_told.py"):
        shutil.copy(pytestconfig.rootpath / "tests" / name, tests)
    (tests / "test_leaks.py").write_text(LEAKS)
    settings = ("-c", str(pytestconfig.rootpath / "pyproject.toml"), "--rootdir", str(tmp_path))
    command = (
        sys.executable,
        "-m",
        "pytest",
        *settings,
        "-p",
        "no:cacheprovider",
        "-rA",
        str(tmp_path),
    )
    child = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env=os.environ | {"COLUMNS": "300"}, stdout=asyncio.subprocess.PIPE
    )
    output = (await child.communicate())[0].decode()
    for line in (
        (
            "ERROR tests/test_leaks.py::test_leaks_a_task -"
            " rowlock.testing.virtual_time.TasksLeftBehindError"
        ),
        (
            "ERROR tests/test_leaks.py::test_leaks_a_connection -"
            " rowlock.testing.databases.ConnectionsLeftBehindError"
        ),
        "PASSED tests/test_leaks.py::test_is_tidy",
    ):
        assert line in output
    assert "ERROR tests/test_leaks.py::test_is_tidy" not in output
