"""Tests of the database's time that a test moves."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Column, DateTime, Integer, MetaData, Table, func, insert, select, text

from rowlock.testing import DatabaseClock, inline_sqlite_engine, virtual_time
from rowlock.testing.database_clock import follow_on_postgresql

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncConnection

    from rowlock.testing import TemporaryDatabase

SQLITE_NOW = "SELECT strftime('%Y-%m-%d %H:%M:%f000', 'now')"
SQLITE_LATER = "SELECT strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', :seconds))"
POSTGRESQL_LATER = "SELECT now() + CAST(:seconds AS double precision) * interval '1 second'"


async def _now(connection: AsyncConnection, seconds: float | None = None) -> datetime:
    if connection.dialect.name == "postgresql":
        return await connection.scalar(text(POSTGRESQL_LATER), {"seconds": seconds or 0.0})
    answer = await connection.scalar(
        text(SQLITE_NOW if seconds is None else SQLITE_LATER),
        {} if seconds is None else {"seconds": seconds},
    )
    return datetime.strptime(answer, "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC)


def _clock(database: TemporaryDatabase) -> DatabaseClock:
    assert database.clock is not None
    return database.clock


async def test_a_moved_time_is_seen_by_every_connection(
    database_with_clock: TemporaryDatabase,
) -> None:
    """All replicas live by the time that the test sets, also on connections that were open
    before.
    """
    clock = _clock(database_with_clock)
    other = database_with_clock.create_engine()
    async with database_with_clock.engine.connect() as mine, other.connect() as theirs:
        assert await _now(mine) == await _now(theirs) == clock.now
        for move in (31, 0.25, timedelta(days=400), -7200):
            before = clock.now
            clock.advance(move)
            assert clock.now - before == (
                move if isinstance(move, timedelta) else timedelta(seconds=move)
            )
            assert await _now(mine) == await _now(theirs) == clock.now
        clock.set(datetime(1999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC))
        assert (
            await _now(mine)
            == await _now(theirs)
            == clock.now
            == datetime(1999, 12, 31, 23, 59, 59, 999_000, UTC)
        )


async def test_time_stands_still_until_it_is_moved(database_with_clock: TemporaryDatabase) -> None:
    """Two statements of a test see the same time, so that it can be compared exactly."""
    async with database_with_clock.engine.connect() as connection:
        first = await _now(connection)
        await connection.rollback()
        assert await _now(connection) == first


async def test_every_millisecond_is_exact(database_with_clock: TemporaryDatabase) -> None:
    """`clock.now`, and the database's time some seconds later, agree to the last digit: a
    lease's end can be met.
    """
    clock = _clock(database_with_clock)
    async with database_with_clock.engine.connect() as connection:
        for milliseconds in (1, 9, 57, 999, 1001, 333, 4_321_987):
            clock.advance(timedelta(milliseconds=milliseconds))
            for seconds in (30.0, 0.001, -0.5, 29.999):
                assert await _now(connection, seconds) == clock.now + timedelta(seconds=seconds)


async def test_defaults_of_tables_follow(database_with_clock: TemporaryDatabase) -> None:
    """A host's `server_default=func.now()` is stamped with the moved time."""
    metadata = MetaData()
    table = Table(
        "t",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("at", DateTime, default=func.now()),
    )
    await database_with_clock.create_tables(metadata)
    _clock(database_with_clock).advance(3600)
    async with database_with_clock.engine.begin() as connection:
        await connection.execute(insert(table).values(id=1))
        stamped = await connection.scalar(select(table.c.at))
    assert stamped == _clock(database_with_clock).now.replace(tzinfo=None)


# ---------------------------------------------------------------- SQLite


async def test_other_uses_of_strftime_keep_their_meaning(
    sqlite_database_with_clock: TemporaryDatabase,
) -> None:
    """Formats, given times, modifiers and nulls mean on a moved clock what they mean in SQLite."""
    _clock(sqlite_database_with_clock).set(datetime(2024, 2, 28, 23, 30, 0, 500_000, tzinfo=UTC))
    expected = {
        "strftime('%Y/%m', '2001-02-03')": "2001/02",
        "strftime('%H:%M', 'now')": "23:30",
        "strftime('%Y-%m-%d', 'now', '+1 day', 'start of month')": "2024-02-01",
        "strftime('%Y-%m-%d %H:%M:%f000', 'now', '+1 day')": "2024-02-29 23:30:00.500000",
        "strftime('%Y-%m-%d %H:%M:%f000', '2001-02-03', '+1 seconds')": (
            "2001-02-03 00:00:01.000000"
        ),
        "strftime('%Y', NULL)": None,
        "strftime('%d', 'now', NULL)": None,
        "strftime('%d', 'nonsense')": None,
        "strftime('%Y')": "2024",
        "datetime('now')": "2024-02-28 23:30:00",
        "datetime()": "2024-02-28 23:30:00",
        "date('now', '+1 day')": "2024-02-29",
        "CURRENT_TIMESTAMP": "2024-02-28 23:30:00",
        "CURRENT_DATE": "2024-02-28",
        "CURRENT_TIME": "23:30:00",
        "unixepoch('now')": 1709163000,
        "julianday('2000-01-01 12:00')": 2451545.0,
    }
    async with sqlite_database_with_clock.engine.connect() as connection:
        assert {sql: await connection.scalar(text(f"SELECT {sql}")) for sql in expected} == expected


@virtual_time
async def test_one_statement_has_one_time(tmp_path: Path) -> None:
    """All rows of a statement are stamped alike, as SQLite promises for its own clock."""
    ticks = itertools.count()
    engine = inline_sqlite_engine(
        tmp_path / "a.db", clock=DatabaseClock(source=lambda: float(next(ticks)))
    )
    rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) "
    stamps = rows + SQLITE_NOW.replace("SELECT", "SELECT i,") + " FROM n"
    async with engine.connect() as connection:
        first, second = [
            {at for _, at in await connection.exec_driver_sql(stamps)} for _ in range(2)
        ]
    await engine.dispose()
    assert len(first) == len(second) == 1
    assert first != second


# ---------------------------------------------------------------- PostgreSQL


@pytest.mark.parametrize(
    "name", ["now", "transaction_timestamp", "statement_timestamp", "clock_timestamp"]
)
async def test_each_function_follows(
    postgresql_database_with_clock: TemporaryDatabase, name: str
) -> None:
    """Whichever function rowlock asks, it gets the moved time; the server's own stays to be had."""
    clock = _clock(postgresql_database_with_clock)
    clock.advance(5)
    async with postgresql_database_with_clock.engine.connect() as connection:
        assert await connection.scalar(text(f"SELECT {name}()")) == clock.now
        assert await connection.scalar(text(f"SELECT pg_catalog.{name}()")) != clock.now


async def test_a_move_reaches_old_snapshots_and_is_not_rolled_back(
    postgresql_database_with_clock: TemporaryDatabase,
) -> None:
    """The clock is outside transactions: it neither waits, nor conflicts, nor depends on who
    commits.
    """
    clock = _clock(postgresql_database_with_clock)
    async with postgresql_database_with_clock.engine.connect() as connection:
        await connection.execution_options(isolation_level="SERIALIZABLE")
        assert await _now(connection) == clock.now
        clock.advance(60)
        assert await _now(connection) == clock.now
        await connection.rollback()
        assert await _now(connection) == clock.now


async def test_tables_are_still_created_in_public(
    postgresql_database_with_clock: TemporaryDatabase,
) -> None:
    """The clock's schema holds the clock alone; a host's tables and its reflection are where
    they always were.
    """
    await postgresql_database_with_clock.create_tables(MetaData())
    async with postgresql_database_with_clock.engine.connect() as connection:
        await connection.execute(text("CREATE TABLE t (id integer)"))
        schema = await connection.scalar(
            text("SELECT schemaname FROM pg_tables WHERE tablename = 't'")
        )
        assert schema == "public"
        assert await connection.scalar(text("SELECT current_schema()")) == "public"


async def test_a_running_clock_is_refused_on_postgresql(postgresql_url: URL) -> None:
    """A clock that the server could not follow is refused before the database is touched."""
    with pytest.raises(ValueError, match="cannot follow"):
        await follow_on_postgresql(DatabaseClock(source=lambda: 0.0), postgresql_url)


# ---------------------------------------------------------------- the clock itself


def test_naive_times_are_refused() -> None:
    """A time without a zone is refused at the clock, not guessed."""
    with pytest.raises(ValueError, match="must be aware"):
        DatabaseClock(datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="must be aware"):
        DatabaseClock().set(datetime(2030, 1, 1))  # noqa: DTZ001


def test_a_clock_runs_with_its_source_and_can_be_moved_besides() -> None:
    """The skew that a test adds stays when time goes on."""
    seconds = [50.0]
    clock = DatabaseClock(datetime(2030, 1, 1, tzinfo=UTC), source=lambda: seconds[0])
    clock.advance(3600)
    seconds[0] += 10
    assert clock.now == datetime(2030, 1, 1, 1, 0, 10, tzinfo=UTC)
    clock.set(datetime(2030, 1, 1, tzinfo=UTC))
    seconds[0] += 0.0004
    assert clock.now == datetime(2030, 1, 1, tzinfo=UTC)
    seconds[0] += 1
    assert clock.now == datetime(2030, 1, 1, 0, 0, 1, tzinfo=UTC)
