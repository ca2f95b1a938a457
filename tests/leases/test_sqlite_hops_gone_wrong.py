"""The one hop per statement where it goes wrong: errors, waits, cancellations and timeouts."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)

from rowlock.dialects.sqlite.transactions import Hops, HopsCursor, SqliteTransactions
from rowlock.errors import PipelineError, TransactionTimeout
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX, Run
from .ground import RUNS, add, row_of
from .transactions import checked_out, file_may_be_written, run_in, warm, write_both

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
async def engine(sqlite_database: TemporaryDatabase) -> AsyncIterator[AsyncEngine]:
    await add(sqlite_database, Run(id=1), Run(id=2))
    engine = sqlite_database.create_engine()
    yield engine
    await engine.dispose()


async def test_an_error_in_a_hop(engine: AsyncEngine, sqlite_database: TemporaryDatabase) -> None:
    """A row that the database refuses would leave a cursor open, and the file locked."""

    async def work(session: AsyncSession, connection: AsyncConnection) -> None:
        await connection.execute(text("UPDATE runs SET status = 'half' WHERE id = 1"))
        with pytest.raises(IntegrityError):
            await connection.execute(insert(Run).values(id=1))
        await connection.execute(insert(Run).values([{"id": 7}, {"id": 1}]))

    with pytest.raises(IntegrityError, match="INSERT"):
        await run_in(async_sessionmaker(engine), work)
    assert file_may_be_written(sqlite_database)
    assert (await row_of(sqlite_database, RUNS, 1)).status == "queued"
    assert checked_out(engine) == 0


async def test_a_begin_that_fails_is_sent_again(sqlite_database: TemporaryDatabase) -> None:
    """A statement after one that was refused would be executed outside of any transaction, or
    beside another writer.
    """
    await add(sqlite_database, Run(id=1), Run(id=2))
    engine = sqlite_database.create_engine(connect_args={"timeout": 0})
    await warm(engine)

    async def work(session: AsyncSession, connection: AsyncConnection) -> None:
        with closing(
            sqlite3.connect(str(sqlite_database.url.database), isolation_level=None)
        ) as writer:
            writer.execute("BEGIN IMMEDIATE")
            with pytest.raises(OperationalError, match="locked"):
                await connection.execute(select(Run.id))
            with pytest.raises(OperationalError, match="locked"):
                await connection.execute(text("UPDATE runs SET status = 'outside'"))
        await connection.execute(select(Run.id))
        assert not file_may_be_written(sqlite_database)
        raise LookupError

    with pytest.raises(LookupError):
        await run_in(async_sessionmaker(engine), work)
    assert (await row_of(sqlite_database, RUNS, 1)).status == "written"
    await engine.dispose()


async def test_the_wait_for_the_file_is_bounded_and_then_as_before(
    engine: AsyncEngine, sqlite_database: TemporaryDatabase
) -> None:
    """A transaction would wait in the driver's thread, where nothing ends it, and the host's own
    later ones not long enough.
    """
    await warm(engine)

    async def busy_ms(session: AsyncSession, connection: AsyncConnection) -> Any:
        return (await connection.exec_driver_sql("PRAGMA busy_timeout")).scalar_one()

    usual = await run_in(async_sessionmaker(engine), busy_ms, writes=False)
    with closing(
        sqlite3.connect(str(sqlite_database.url.database), isolation_level=None)
    ) as writer:
        writer.execute("BEGIN IMMEDIATE")
        started_at = asyncio.get_running_loop().time()
        with pytest.raises(OperationalError, match="locked"):
            await run_in(async_sessionmaker(engine), write_both, timeout=timedelta(seconds=0.2))
        assert asyncio.get_running_loop().time() - started_at < usual / 1000
    assert await run_in(async_sessionmaker(engine), busy_ms) == usual
    assert (
        await run_in(async_sessionmaker(engine), busy_ms, timeout=timedelta(seconds=0.2)) == usual
    )


async def test_a_hop_that_takes_too_long(
    engine: AsyncEngine, sqlite_database: TemporaryDatabase
) -> None:
    """A statement that does not end would keep the file locked, whether its BEGIN came along
    with it or before.
    """
    await warm(engine)
    for earlier in ("", "UPDATE runs SET status = 'half'"):

        async def work(
            session: AsyncSession, connection: AsyncConnection, earlier: str = earlier
        ) -> None:
            if earlier:
                await connection.execute(text(earlier))
            await connection.execute(text(ENDLESS))

        with pytest.raises(TransactionTimeout):
            await run_in(async_sessionmaker(engine), work, timeout=timedelta(seconds=0.3))
        assert file_may_be_written(sqlite_database)
        assert checked_out(engine) == 0
    assert (await row_of(sqlite_database, RUNS, 1)).status == "written"


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_nothing_is_begun_behind_a_wait_that_nobody_waits_for(
    sqlite_database: TemporaryDatabase, *, is_cancelled: bool
) -> None:
    """SQLite's interrupt does not end a wait for the file, so what came along would run to its
    end, be that an hour.
    """
    await add(sqlite_database, Run(id=1))
    path, ran = str(sqlite_database.url.database), []
    async with aiosqlite.connect(path) as driver:
        await driver.create_function("ran", 0, lambda: ran.append(True))
        hops = Hops(driver)
        with closing(sqlite3.connect(path, isolation_level=None)) as writer, hops.taken():
            writer.execute("BEGIN IMMEDIATE")
            hops.expect_begin(wait_ms=5000, usual_ms=5000)
            await HopsCursor(hops).execute("BEGIN IMMEDIATE")
            behind = asyncio.ensure_future(HopsCursor(hops).execute("SELECT ran()"))
            await asyncio.sleep(0)
            if is_cancelled:
                behind.cancel()
            else:
                await driver.interrupt()
            await asyncio.wait({behind}, timeout=0)
            writer.execute("ROLLBACK")
            with pytest.raises(
                asyncio.CancelledError if is_cancelled else sqlite3.OperationalError
            ):
                await behind
        await driver.rollback()
        assert ran == []
        assert not driver.in_transaction


async def test_cancelled_at_each_hop(
    engine: AsyncEngine, sqlite_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a transaction is ended, half of it would be kept, or the file stay locked."""
    await warm(engine)
    execute = aiosqlite.Connection._execute
    strikes_at: int | None = None
    passed = 0

    async def strike(
        self: aiosqlite.Connection, fn: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        nonlocal passed
        passed += 1
        if passed == strikes_at:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return await execute(self, fn, *args, **options)

    async def work(session: AsyncSession, connection: AsyncConnection) -> None:
        await connection.execute(
            text("UPDATE runs SET status = :s WHERE id = 1"), {"s": f"try {strikes_at}"}
        )
        await connection.execute(
            text("UPDATE runs SET status = :s WHERE id = 2"), {"s": f"try {strikes_at}"}
        )

    monkeypatch.setattr(aiosqlite.Connection, "_execute", strike)
    for hop in range(1, 4):
        strikes_at, passed = hop, 0
        with pytest.raises(PipelineError, match="cancelled from within"):
            await run_in(async_sessionmaker(engine), work)
        strikes_at = None
        assert file_may_be_written(sqlite_database)
        assert checked_out(engine) == 0
        first, second = [(await row_of(sqlite_database, RUNS, key)).status for key in (1, 2)]
        assert first == second
        await run_in(async_sessionmaker(engine), work)


async def test_the_first_transaction_waits_for_a_writer(tmp_path: Path) -> None:
    """A host's first fetch would fail because a service writes to a file that is not in WAL mode
    yet.
    """
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{tmp_path / 'new.db'}", connect_args={"timeout": 0}
    )
    async with engine.connect() as service, engine.connect() as ours:
        await service.exec_driver_sql("CREATE TABLE t (x)")
        await service.commit()
        await service.exec_driver_sql("BEGIN IMMEDIATE")
        await service.exec_driver_sql("INSERT INTO t VALUES (1)")
        with pytest.raises(
            OperationalError, match="BEGIN IMMEDIATE"
        ):  # which waits for `timeout`; the PRAGMA never does
            await SqliteTransactions().begin_writing(ours, wait_s=5)
        await service.commit()
        await SqliteTransactions().begin_writing(ours, wait_s=5)
        await ours.commit()
        assert (await ours.exec_driver_sql("PRAGMA journal_mode")).scalar_one() == "wal"
    await engine.dispose()


async def test_the_wait_is_bounded_whatever_the_host_has_set(tmp_path: Path) -> None:
    """A transaction would wait in the driver's thread, where nothing ends it, for as long as the
    host's busy timeout lasts.
    """
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{tmp_path / 'new.db'}", connect_args={"timeout": 3600}
    )
    async with engine.connect() as service, engine.connect() as ours:
        for is_locked in (True, False):
            if is_locked:
                await service.exec_driver_sql("BEGIN IMMEDIATE")
                with pytest.raises(OperationalError, match="database is locked"):
                    await SqliteTransactions().begin_writing(ours, wait_s=0.01)
                await service.rollback()
            else:
                await SqliteTransactions().begin_writing(ours, wait_s=0.01)
            assert (await ours.exec_driver_sql("PRAGMA busy_timeout")).scalar_one() == 3_600_000
            await ours.rollback()
    await engine.dispose()


async def test_a_shorter_wait_of_the_host_is_kept(tmp_path: Path) -> None:
    """A host that wants to hear at once that the file is locked would wait."""
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{tmp_path / 'new.db'}", connect_args={"timeout": 0}
    )
    async with engine.connect() as service, engine.connect() as ours:
        await service.exec_driver_sql("BEGIN IMMEDIATE")
        async with asyncio.timeout(HANG_S_MAX):
            with pytest.raises(OperationalError, match="database is locked"):
                await SqliteTransactions().begin_writing(ours, wait_s=3600)
    await engine.dispose()
