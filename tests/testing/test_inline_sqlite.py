"""Tests of SQLite inside the event loop."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from rowlock.testing import inline_sqlite_engine, run_virtual, virtual_time
from rowlock.testing.inline_sqlite import InlineConnection
from rowlock.testing.virtual_time import START_S

if TYPE_CHECKING:
    from pathlib import Path

    from rowlock.testing import TemporaryDatabase

INSERT = "INSERT INTO t (n) VALUES (?)"


async def _with_table(path: Path) -> InlineConnection:
    connection = InlineConnection(path)
    connection.isolation_level = None
    async with connection.cursor() as cursor:
        await cursor.execute(
            "CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, n INTEGER UNIQUE)"
        )
    return connection


async def _execute(connection: InlineConnection, sql: str, *parameters: object) -> list[Any]:
    async with connection.cursor() as cursor:
        await cursor.execute(sql, parameters)
        return await cursor.fetchall()


def _seconds() -> float:
    return asyncio.get_running_loop().time() - START_S


# ---------------------------------------------------------------- one history per program


async def _replica(engine: AsyncEngine, chance: random.Random, name: str) -> None:
    for _round in range(20):
        await asyncio.sleep(chance.uniform(0, 2))
        async with engine.connect() as connection:
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
            await connection.exec_driver_sql("INSERT INTO log (who) VALUES (?)", (name,))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.uniform(0, 1))
            await connection.commit()


async def _history(path: Path) -> list[tuple[object, ...]]:
    engines = [inline_sqlite_engine(path) for _replica in range(3)]
    statements: list[tuple[object, ...]] = []
    for number, engine in enumerate(engines):

        @event.listens_for(engine.sync_engine, "after_cursor_execute")
        def note(
            _connection: object,
            _cursor: object,
            sql: str,
            parameters: object,
            *_: object,
            n: int = number,
        ) -> None:
            statements.append((n, _seconds(), sql, parameters))

    async with engines[0].begin() as connection:
        await connection.exec_driver_sql("CREATE TABLE log (id INTEGER PRIMARY KEY, who TEXT)")
    chance = random.Random(7)
    async with asyncio.TaskGroup() as group:
        for number, engine in enumerate(engines):
            group.create_task(_replica(engine, random.Random(chance.random()), f"replica {number}"))
    async with engines[0].connect() as connection:
        rows = await connection.exec_driver_sql("SELECT id, who FROM log ORDER BY id")
        statements.extend(tuple(row) for row in rows)
    for engine in engines:
        await engine.dispose()
    return statements


def test_the_same_program_has_the_same_history(tmp_path: Path) -> None:
    """Replicas that compete for the file do so in the same way, statement by statement, in every
    run.
    """
    histories = [run_virtual(lambda run=run: _history(tmp_path / f"{run}.db")) for run in range(3)]
    assert histories[0] == histories[1] == histories[2]
    log = [entry for entry in histories[0] if len(entry) == 2]
    assert [number for number, _who in log] == list(range(1, 61))
    assert len({who for _number, who in log[:10]}) == 3, "the replicas did not compete"


@virtual_time
async def test_other_tasks_run_before_and_after_a_statement(tmp_path: Path) -> None:
    """A statement is a turn of its own: what another task does falls before or after it, as with
    a thread.
    """
    connection = await _with_table(tmp_path / "a.db")
    turns: list[str] = []

    async def other() -> None:
        for turn in range(4):
            turns.append(f"other {turn}")
            await asyncio.sleep(0)

    await connection.create_function("note", 0, lambda: turns.append("statement"))
    task = asyncio.create_task(other())
    await _execute(connection, "SELECT note()")
    turns.append("returned")
    await task
    at, back = turns.index("statement"), turns.index("returned")
    assert "other 0" in turns[:at]
    assert any(turn.startswith("other") for turn in turns[at:back])
    await connection.close()


# ---------------------------------------------------------------- a locked file


@virtual_time
async def test_begin_waits_until_the_other_commits(tmp_path: Path) -> None:
    """A writer gets the lock soon after it is free, while the loop goes on."""
    first, second = await _with_table(tmp_path / "a.db"), await _with_table(tmp_path / "a.db")
    await _execute(first, "BEGIN IMMEDIATE")
    waiting = asyncio.create_task(_execute(second, "BEGIN IMMEDIATE"))
    await asyncio.sleep(2)
    assert not waiting.done()
    await first.commit()
    await waiting
    assert 2 <= _seconds() < 2.1
    await second.rollback()
    await first.close()
    await second.close()


@virtual_time
async def test_begin_gives_up_after_the_busy_timeout(tmp_path: Path) -> None:
    """A lock that never comes free is the driver's own error, after the busy timeout, not a
    blocked loop.
    """
    first = await _with_table(tmp_path / "a.db")
    engine = inline_sqlite_engine(tmp_path / "a.db", busy_timeout_s=5.0)
    await _execute(first, "BEGIN IMMEDIATE")
    async with engine.connect() as second:
        before = _seconds()
        with pytest.raises(OperationalError, match="database is locked"):
            await second.exec_driver_sql("BEGIN IMMEDIATE")
        assert _seconds() - before == pytest.approx(5.0)
        await first.rollback()
        await second.exec_driver_sql("BEGIN IMMEDIATE")
    await engine.dispose()
    await first.close()


@virtual_time
async def test_commit_waits_for_a_reader(tmp_path: Path) -> None:
    """A COMMIT that finds a reader waits for it and then commits everything once."""
    writer, reader = await _with_table(tmp_path / "a.db"), await _with_table(tmp_path / "a.db")
    await _execute(reader, "BEGIN")
    assert await _execute(reader, "SELECT n FROM t") == []
    await _execute(writer, "BEGIN IMMEDIATE")
    async with writer.cursor() as cursor:
        await cursor.executemany(INSERT, iter([(1,), (2,)]))
    committing = asyncio.create_task(writer.commit())
    await asyncio.sleep(1)
    assert not committing.done()
    await reader.rollback()
    await committing
    assert await _execute(reader, "SELECT n FROM t") == [(1,), (2,)]
    await writer.close()
    await reader.close()


@virtual_time
async def test_the_busy_timeout_pragma_is_heeded_in_virtual_time(tmp_path: Path) -> None:
    """A host's PRAGMA sets the virtual waiting; SQLite itself never waits, which would stop the
    loop.
    """
    first, second = await _with_table(tmp_path / "a.db"), await _with_table(tmp_path / "a.db")
    for pragma in ("pragma busy_timeout(20000);", "PRAGMA busy_timeout = 1500"):
        async with second.cursor() as cursor:
            await cursor.execute(pragma)
    assert second._conn.execute("PRAGMA busy_timeout").fetchone() == (0,)
    await _execute(first, "BEGIN IMMEDIATE")
    with pytest.raises(Exception, match="database is locked"):
        await _execute(second, "BEGIN IMMEDIATE")
    assert _seconds() == pytest.approx(1.5)
    await first.close()
    await second.close()


# ---------------------------------------------------------------- like aiosqlite


@virtual_time
async def test_a_cancelled_caller_does_not_stop_its_statement(tmp_path: Path) -> None:
    """As with aiosqlite's thread, a queued statement runs although nobody waits for it, and
    before a later rollback.
    """
    connection = await _with_table(tmp_path / "a.db")
    await _execute(connection, "BEGIN IMMEDIATE")
    async with connection.cursor() as cursor:
        inserting = asyncio.create_task(cursor.execute(INSERT, (1,)))
        await asyncio.sleep(0)
        inserting.cancel()
        await asyncio.wait({inserting})
        assert inserting.cancelled()
    assert await _execute(connection, "SELECT n FROM t") == [(1,)]
    await connection.rollback()
    assert await _execute(connection, "SELECT n FROM t") == []
    await connection.close()


@virtual_time
async def test_a_cursor_is_closed_behind_a_statement_that_is_queued(tmp_path: Path) -> None:
    """A statement whose caller was cancelled would meet a cursor that is closed, and be lost."""
    connection = await _with_table(tmp_path / "a.db")
    async with connection.cursor() as cursor:
        inserting = asyncio.create_task(cursor.execute(INSERT, (1,)))
        await asyncio.sleep(0)
        inserting.cancel()
        await cursor.close()
    assert await _execute(connection, "SELECT n FROM t") == [(1,)]
    await connection.close()


async def _conversation(engine: AsyncEngine) -> list[object]:
    heard: list[object] = []
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER UNIQUE)"))
    async with engine.begin() as connection:
        result = await connection.execute(
            text("INSERT INTO t (n) VALUES (:n)"), [{"n": 10}, {"n": 20}, {"n": 30}]
        )
        heard.append(result.rowcount)
        result = await connection.execute(text("INSERT INTO t (n) VALUES (40)"))
        heard += [result.rowcount, result.lastrowid]
        result = await connection.execute(text("UPDATE t SET n = n + 1 RETURNING id, n"))
        heard += [list(result.keys()), [tuple(row) for row in result]]
        # a function that SQLAlchemy defines
        heard.append(await connection.scalar(text("SELECT floor(3.7)")))
    async with engine.connect() as connection:
        with pytest.raises(IntegrityError) as refused:
            await connection.execute(text("INSERT INTO t (n) VALUES (11)"))
        heard.append(str(refused.value.orig))
        await connection.rollback()
        heard += [
            tuple(row) async for row in await connection.stream(text("SELECT n FROM t ORDER BY n"))
        ]
    async with engine.connect() as connection:
        autocommit = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await autocommit.execute(text("DELETE FROM t WHERE n > 11"))
        await autocommit.rollback()
    async with engine.connect() as connection:
        heard.append(await connection.scalar(text("SELECT count(*) FROM t")))
        raw = await connection.get_raw_connection()
        assert raw.driver_connection is not None
        await raw.driver_connection.close()
        with pytest.raises(DBAPIError) as cut:
            await connection.execute(text("SELECT 1"))
        heard += [type(cut.value), cut.value.connection_invalidated]
    async with engine.connect() as connection:
        heard.append(await connection.scalar(text("SELECT 1")))
    await engine.dispose()
    return heard


async def test_it_answers_like_aiosqlite(tmp_path: Path) -> None:
    """Through SQLAlchemy the inline driver is not to be told from the real one: counts, ids,
    errors, disconnects.
    """
    real = await _conversation(create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'real.db'}"))
    inline = await _conversation(inline_sqlite_engine(tmp_path / "inline.db"))
    assert inline == real
    assert real[:3] == [3, 1, 4]


def test_memory_is_refused() -> None:
    """An engine whose connections would each see a database of their own is refused, with the
    remedy.
    """
    with pytest.raises(ValueError, match="needs a file"):
        inline_sqlite_engine(":memory:")


@virtual_time
async def test_its_time_is_the_loops(virtual_database: TemporaryDatabase) -> None:
    """Ninety virtual seconds later it is ninety seconds later in the database."""
    assert virtual_database.clock is not None
    before = virtual_database.clock.now
    await asyncio.sleep(90)
    virtual_database.clock.advance(0.5)
    async with virtual_database.engine.connect() as connection:
        seconds = await connection.scalar(text("SELECT strftime('%s', 'now')"))
    assert int(seconds) - before.timestamp() == 90
    assert virtual_database.clock.now.timestamp() - before.timestamp() == 90.5
