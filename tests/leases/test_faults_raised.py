"""Errors that the databases really raise, and whether they pass."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import exc, insert, make_url, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.database.faults import is_of_the_schema, is_transient
from rowlock.testing import TemporaryDatabase

from ..host import Base, Run, Volume


def test_what_no_database_raised_says_nothing_of_the_schema() -> None:
    """A slip of the host's would be taken for a migration that was not run."""
    assert not is_of_the_schema(ValueError("no such column: x"))
    assert not is_of_the_schema(KeyError("42703"))


async def error_of(
    connection: AsyncConnection, statement: Any, parameters: Any = None
) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is the question
        await connection.execute(statement, parameters)
    return caught.value


LAST: dict[str, Any] = {
    "a key that is there already": insert(Run.__table__).values(id=1),
    "a null that may not be": update(Run.__table__).values(status=None),
    "a table that is not there": text("UPDATE nowhere SET x = 1"),
    "a column that is not there": text("UPDATE runs SET nowhere = 1"),
    "no SQL": text("UPDAET runs"),
    "a naive time": (update(Run.__table__).values(due_at=datetime(2031, 1, 1))),  # noqa: DTZ001 - the mistake
    "an object": update(Run.__table__).values(status=object()),
    "a number that is too large": update(Run.__table__).values(attempts=2**80),
    "what JSON cannot hold": update(Run.__table__).values(result=object()),
}


@pytest.mark.parametrize("mistake", LAST)
async def test_a_mistake_does_not_pass(database: TemporaryDatabase, mistake: str) -> None:
    """A row whose outcome cannot be written would be held until its lease has ended, and its
    host would hear of an outage.
    """
    await database.create_tables(Base.metadata)
    async with database.engine.connect() as connection:
        await connection.execute(insert(Run.__table__).values(id=1))
        error = await error_of(connection, LAST[mistake])
        assert not is_transient(error)
        assert is_of_the_schema(error) == (
            mistake in OF_THE_SCHEMA or (mistake == "no SQL" and _has_states(database))
        )


OF_THE_SCHEMA = ("a table that is not there", "a column that is not there")


def _has_states(database: TemporaryDatabase) -> bool:
    return database.dialect_name == "postgresql"


async def test_a_value_of_another_kind_does_not_pass(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A typing mistake of the host would look like an outage."""
    await postgresql_database.create_tables(Base.metadata)
    async with postgresql_database.engine.connect() as connection:
        statement = update(Volume.__table__).values(size_gb="many")
        assert not is_transient(await error_of(connection, statement))


async def test_a_file_that_somebody_writes_passes(sqlite_database: TemporaryDatabase) -> None:
    """A second replica on the file would fail outcomes."""
    await sqlite_database.create_tables(Base.metadata)
    engine = sqlite_database.create_engine(connect_args={"timeout": 0})
    with closing(
        sqlite3.connect(str(sqlite_database.url.database), isolation_level=None)
    ) as writer:
        writer.execute("BEGIN IMMEDIATE")
        async with engine.connect() as connection:
            assert is_transient(await error_of(connection, text("UPDATE runs SET status = 'x'")))
        writer.execute("ROLLBACK")


async def test_a_full_disk_passes(sqlite_database: TemporaryDatabase) -> None:
    """Outcomes would fail for want of space that somebody is about to make."""
    await sqlite_database.create_tables(Base.metadata)
    async with sqlite_database.engine.connect() as connection:
        pages = await connection.scalar(text("PRAGMA page_count"))
        await connection.execute(text(f"PRAGMA max_page_count = {pages}"))
        error = await error_of(
            connection, insert(Run.__table__).values(id=1, last_error="x" * 100_000)
        )
        assert "full" in str(error)
        assert is_transient(error)


@pytest.mark.parametrize(
    ("before", "statement"),
    [
        ("SET statement_timeout = 1", "SELECT pg_sleep(60)"),
        ("SET lock_timeout = 1", "UPDATE runs SET status = 'x'"),
        ("SELECT 1", "SELECT id FROM runs FOR UPDATE NOWAIT"),
        ("SET default_transaction_read_only = on; COMMIT; BEGIN", "UPDATE runs SET status = 'x'"),
        ("SELECT 1", "SELECT pg_terminate_backend(pg_backend_pid())"),
    ],
)
async def test_what_the_server_refuses_now_passes(
    postgresql_database: TemporaryDatabase, before: str, statement: str
) -> None:
    """A busy, read-only or restarting server would fail outcomes."""
    await postgresql_database.create_tables(Base.metadata)
    async with postgresql_database.engine.begin() as connection:
        await connection.execute(insert(Run.__table__).values(id=1))
    engine = postgresql_database.create_engine()
    async with postgresql_database.engine.begin() as holder, engine.connect() as connection:
        await holder.execute(text("UPDATE runs SET status = 'held'"))
        for one in before.split(";"):
            await connection.exec_driver_sql(one)
        assert is_transient(await error_of(connection, text(statement)))


async def test_a_server_that_is_away_passes(unused_tcp_port: int) -> None:
    """A restart of the database would fail outcomes."""
    away = TemporaryDatabase(
        make_url(f"postgresql+asyncpg://nobody@127.0.0.1:{unused_tcp_port}/nothing")
    )
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is the question
        async with away.engine.connect():
            pass
    assert is_transient(caught.value)
    await away.aclose()


async def test_an_empty_pool_passes(sqlite_database: TemporaryDatabase) -> None:
    """A host that uses all its connections would fail outcomes."""
    engine = sqlite_database.create_engine(pool_size=1, max_overflow=0, pool_timeout=0)
    async with engine.connect():
        with pytest.raises(exc.TimeoutError) as caught:
            async with engine.connect():
                pass
    assert is_transient(caught.value)
