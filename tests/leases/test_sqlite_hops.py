"""The one hop per statement: what the database and the host see is what they saw without it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import event, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

from rowlock.dialects.sqlite.transactions import HopsCursor
from rowlock.testing import TemporaryDatabase

from ..host import Run
from .ground import RUNS, add, row_of
from .transactions import file_may_be_written, run_in, warm, write_both

REPLACED = ("cursor", "interrupt", "rollback")
"""What is replaced of a driver's connection."""


@pytest.fixture
async def engine(sqlite_database: TemporaryDatabase) -> AsyncIterator[AsyncEngine]:
    await add(sqlite_database, Run(id=1), Run(id=2))
    engine = sqlite_database.create_engine()
    yield engine
    await engine.dispose()


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    queued: list[str] = []
    execute = aiosqlite.Connection._execute

    async def count(
        self: aiosqlite.Connection, fn: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        queued.append(fn.__name__)
        return await execute(self, fn, *args, **options)

    monkeypatch.setattr(aiosqlite.Connection, "_execute", count)
    return queued


async def driver_of(connection: AsyncConnection) -> Any:
    return (await connection.get_raw_connection()).driver_connection


# ---------------------------------------------------------------- how many


async def test_a_statement_is_one_hop(engine: AsyncEngine, hops: list[str]) -> None:
    """Each hop wakes a thread and the loop: a transaction of four statements took more than
    twenty.
    """
    await warm(engine)
    hops.clear()
    await run_in(async_sessionmaker(engine), write_both)
    assert hops == ["_run"] * 4 + ["commit"]


async def test_the_host_sees_each_statement_in_its_order_and_thread(engine: AsyncEngine) -> None:
    """A host's audit, tracing or row-level rules would miss what is done on its own engine."""
    await warm(engine)
    seen: list[str] = []
    loop_thread = asyncio.get_running_loop()

    def before(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        assert asyncio.get_running_loop() is loop_thread
        seen.append(sql.split(" ", maxsplit=1)[0])

    def after(_connection: Any, cursor: Any, sql: str, *_: Any) -> None:
        # Of an UPDATE that returns rows some versions of SQLAlchemy tell no number.
        seen.append(
            f"{bool(cursor.description)}"
            if "RETURNING" in sql
            else f"{cursor.rowcount} {bool(cursor.description)}"
        )

    event.listen(engine.sync_engine, "begin", lambda _connection: seen.append("begin"))
    event.listen(engine.sync_engine, "before_cursor_execute", before)
    event.listen(engine.sync_engine, "after_cursor_execute", after)
    event.listen(engine.sync_engine, "commit", lambda _connection: seen.append("commit"))
    await run_in(async_sessionmaker(engine), write_both)
    statements = ["SELECT", "-1 True", "UPDATE", "1 False", "SELECT", "-1 True", "UPDATE", "True"]
    assert seen == ["begin", "BEGIN", "-1 False", *statements, "commit"]


async def test_a_host_may_comment_on_the_begin(engine: AsyncEngine, hops: list[str]) -> None:
    """A host that marks its statements would have the write lock taken by an upgrade, which
    fails beside another writer.
    """
    await warm(engine)
    locked = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute", retval=True)
    def mark(_connection: Any, _cursor: Any, sql: str, parameters: Any, *_: Any) -> Any:
        return f"/* host */ {sql}", parameters

    async def work(session: AsyncSession, connection: AsyncConnection) -> None:
        await connection.execute(select(Run.id))
        assert engine.url.database is not None
        with closing(
            sqlite3.connect(engine.url.database, timeout=0, isolation_level=None)
        ) as other:
            with pytest.raises(sqlite3.OperationalError):
                other.execute("BEGIN IMMEDIATE")
            locked.append(True)

    hops.clear()
    await run_in(async_sessionmaker(engine), work)
    assert (locked, hops) == ([True], ["_run", "commit"])


# ---------------------------------------------------------------- for whom


async def test_the_hosts_own_transactions_are_left_alone(
    engine: AsyncEngine, hops: list[str]
) -> None:
    """A host's session would run on cursors that are not its driver's."""
    await warm(engine)
    async with engine.connect() as connection:
        driver = await driver_of(connection)
        assert not set(REPLACED) & vars(driver).keys()
        hops.clear()
        await connection.execute(select(Run.id))
    assert hops == ["cursor", "execute", "fetchall", "close", "rollback"]


async def test_a_pool_that_resets_nothing(
    sqlite_database: TemporaryDatabase, hops: list[str]
) -> None:
    """The second transaction on a connection would go the long way, since something of the first
    one's is still there.
    """
    await add(sqlite_database, Run(id=1), Run(id=2))
    engine = sqlite_database.create_engine(pool_reset_on_return=None)
    await warm(engine)
    hops.clear()
    await run_in(async_sessionmaker(engine), write_both)
    assert hops == ["_run"] * 4 + ["commit"]
    async with engine.connect() as connection:
        await connection.execute(text("UPDATE runs SET status = 'host'"))
        await connection.rollback()
        assert set((await connection.scalars(select(Run.status))).all()) == {"written"}
    await engine.dispose()


class OfTheHost(aiosqlite.Connection):
    """A connection that a host has made its own."""


def another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    made = aiosqlite.connect

    def connect(*args: Any, **options: Any) -> Any:
        connection = made(*args, **options)
        connection.__class__ = OfTheHost
        return connection

    monkeypatch.setattr(aiosqlite, "connect", connect)


def another_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    made = aiosqlite.connect

    def connect(*args: Any, **options: Any) -> Any:
        connection = made(*args, **options)
        connection.cursor = connection.cursor  # type: ignore[method-assign]
        return connection

    monkeypatch.setattr(aiosqlite, "connect", connect)


@pytest.mark.parametrize("other", [another_kind, another_cursor])
async def test_what_is_not_known_keeps_its_own_cursors(
    sqlite_database: TemporaryDatabase,
    monkeypatch: pytest.MonkeyPatch,
    other: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """A driver of another version would be used in a way that it does not know."""
    await add(sqlite_database, Run(id=1), Run(id=2))
    other(monkeypatch)
    engine = sqlite_database.create_engine()

    async def work(session: AsyncSession, connection: AsyncConnection) -> None:
        assert not isinstance(await (await driver_of(connection)).cursor(), HopsCursor)
        await write_both(session, connection)

    for _ in range(2):
        await run_in(async_sessionmaker(engine), work)
    assert (await row_of(sqlite_database, RUNS, 2)).status == "written"
    await engine.dispose()


async def test_work_that_commits_by_itself(
    engine: AsyncEngine, sqlite_database: TemporaryDatabase
) -> None:
    """The next transaction has the connection then: its BEGIN would wait for statements that
    come another way.
    """
    factory, drivers = async_sessionmaker(engine), []
    has_begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def next_one(session: AsyncSession, connection: AsyncConnection) -> None:
        drivers.append(await driver_of(connection))
        has_begun.set()
        await may_go_on.wait()
        await connection.execute(select(Run.id))
        assert not file_may_be_written(sqlite_database)

    async def commits(session: AsyncSession, connection: AsyncConnection) -> asyncio.Task[Any]:
        await write_both(session, connection)
        drivers.append(await driver_of(connection))
        await session.commit()
        following = asyncio.create_task(run_in(factory, next_one))
        await has_begun.wait()
        return following

    following = await run_in(factory, commits)
    may_go_on.set()
    await following
    assert drivers[0] is drivers[1]
    assert not {"cursor", "interrupt"} & vars(drivers[0]).keys()


# ---------------------------------------------------------------- what is read


async def test_rows_are_read_as_they_are_asked_for(engine: AsyncEngine, hops: list[str]) -> None:
    """A result would lose its end, or a cursor stay open that keeps the file locked."""
    await warm(engine)
    numbers = text(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) SELECT i"
        " FROM n"
    )

    async def work(session: AsyncSession, connection: AsyncConnection) -> None:
        hops.clear()
        assert (await connection.scalars(numbers)).all() == list(range(1, 2001))
        async with connection.stream(numbers) as result:
            assert [row.i async for row in result.yield_per(700)] == list(range(1, 2001))
        async with connection.stream(numbers) as result:
            assert (await result.fetchone(), await result.fetchmany(2)) == ((1,), [(2,), (3,)])
        assert hops == ["_run", "_run", "_run"]

    await run_in(async_sessionmaker(engine), work)


async def test_what_a_cursor_says(engine: AsyncEngine) -> None:
    """An outcome would count as lost, or as written, by a number that is not the database's."""

    async def work(session: AsyncSession, connection: AsyncConnection) -> list[int]:
        some = await connection.execute(update(Run).values(status="some"))
        none = await connection.execute(update(Run).values(status="none").where(Run.id == 99))
        each = await connection.execute(
            text("UPDATE runs SET status = :s WHERE id = :i"),
            [{"s": "a", "i": 1}, {"s": "b", "i": 2}],
        )
        returned = await connection.execute(update(Run).values(status="c").returning(Run.id))
        assert sorted(returned.scalars()) == [1, 2]
        added = await connection.execute(insert(Run).values(id=7))
        assert added.inserted_primary_key == (7,)
        return [some.rowcount, none.rowcount, each.rowcount]

    assert await run_in(async_sessionmaker(engine), work) == [2, 0, 2]
