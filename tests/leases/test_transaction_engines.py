"""Transactions on engines of many kinds: one that begins by itself, several processes."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Update, event, select, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from rowlock import make_due
from rowlock.database.transaction import in_transaction
from rowlock.leases.claim import claim, load_rows
from rowlock.testing import TemporaryDatabase

from ..host import Base, Run
from .ground import LOCK_TIMEOUT, MARGIN, RUNS, add, order_for, row_of
from .transactions import TIMEOUT, file_may_be_written, run_in, write_both


@pytest.fixture
async def reader(
    tmp_path: Path, sqlite_database: TemporaryDatabase
) -> AsyncIterator[TemporaryDatabase]:
    """A replica for reading, which lags behind: it has the tables and no row."""
    database = TemporaryDatabase(sqlite_database.url.set(database=str(tmp_path / "reader.db")))
    await database.create_tables(Base.metadata)
    yield database
    await database.aclose()


# ---------------------------------------------------------------- SQLite


async def test_the_write_lock_is_taken_at_the_start(sqlite_database: TemporaryDatabase) -> None:
    """Two replicas would read the same rows before either writes, and one of them would fail
    half-way.
    """
    await add(sqlite_database, Run(id=1))
    seen = []

    async def look(session: AsyncSession, connection: AsyncConnection) -> None:
        await connection.execute(select(Run.id))
        seen.append(file_may_be_written(sqlite_database))

    await run_in(sqlite_database.session_factory, look)
    await run_in(sqlite_database.session_factory, look, writes=False)
    assert seen == [False, True]


async def test_a_reader_does_not_wait_for_a_writer(sqlite_database: TemporaryDatabase) -> None:
    """Loading rows would wait for whoever writes, and writers for whoever reads."""
    await add(sqlite_database, Run(id=1))
    await run_in(sqlite_database.session_factory, write_both)

    async def read(session: AsyncSession, connection: AsyncConnection) -> Any:
        return await connection.scalar(select(Run.status).where(Run.id == 1))

    with closing(
        sqlite3.connect(str(sqlite_database.url.database), isolation_level=None)
    ) as writer:
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE runs SET status = 'unseen'")
        assert await run_in(sqlite_database.session_factory, read, writes=False) == "written"
        writer.execute("ROLLBACK")


def begins_by_itself(engine: AsyncEngine) -> None:
    """Set the engine up as SQLAlchemy advises for savepoints on SQLite: it emits BEGIN itself."""

    @event.listens_for(engine.sync_engine, "connect")
    def leave_it_to_us(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


async def test_an_engine_that_begins_by_itself(sqlite_database: TemporaryDatabase) -> None:
    """A host that set its engine up for savepoints could not use us: a transaction cannot be
    begun inside another.
    """
    await add(sqlite_database, Run(id=1), Run(id=2))
    engine = sqlite_database.create_engine()
    begins_by_itself(engine)
    factory = async_sessionmaker(engine)
    seen = []

    async def look(session: AsyncSession, connection: AsyncConnection) -> None:
        await connection.execute(select(Run.id))
        seen.append(file_may_be_written(sqlite_database))
        await write_both(session, connection)

    async def fail(session: AsyncSession, connection: AsyncConnection) -> None:
        await connection.execute(text("UPDATE runs SET status = 'half'"))
        raise LookupError

    for _ in range(2):
        await run_in(factory, look)
        with pytest.raises(LookupError):
            await run_in(factory, fail)
    assert seen == [False, False]
    assert (await row_of(sqlite_database, RUNS, 1)).status == "written"


# ---------------------------------------------------------------- several engines


SERVER_CODES = ("08006", "25006", "25P03", "57P01", "57P03", "57P05", "58030")
STATEMENT_CODES = ("23505", "25P02", "40001", "53200", "57014", "P0001", "XX001")


@pytest.mark.parametrize("raised_at", ["the statement", "an autocommitted statement", "COMMIT"])
async def test_connections_are_replaced_once_one_speaks_of_its_server(
    postgresql_database: TemporaryDatabase, raised_at: str
) -> None:
    """After a failover, the pool would keep connections that only read; after an error of one
    statement, a host would pay for new ones.
    """
    database, code = postgresql_database, ""
    await add(database, Run(id=1))
    async with database.engine.begin() as connection:
        for statement in REFUSE_AT_COMMIT:
            await connection.exec_driver_sql(statement)
    engine = database.create_engine(pool_size=2, max_overflow=0)

    async def refused(_session: Any, connection: AsyncConnection) -> None:
        if raised_at == "COMMIT":
            await connection.execute(text(f"UPDATE runs SET status = '{code}'"))
        else:
            await connection.exec_driver_sql(
                f"DO $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{code}'; END $$"
            )

    async def pids() -> set[Any]:
        statement = text("SELECT pg_backend_pid()")
        async with engine.connect() as one, engine.connect() as other:
            return {await one.scalar(statement), await other.scalar(statement)}

    kept = {}
    for code in SERVER_CODES + STATEMENT_CODES:
        before = await pids()
        with pytest.raises(DBAPIError):
            await in_transaction(
                async_sessionmaker(engine),
                RUNS,
                refused,
                purpose="be refused",
                timeout=TIMEOUT,
                autocommit=raised_at == "an autocommitted statement",
            )
        kept[code] = await pids() & before
    assert {code for code, pids in kept.items() if not pids} == {*SERVER_CODES}
    assert {len(kept[code]) for code in STATEMENT_CODES} == {2}


REFUSE_AT_COMMIT = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION"
    " 'refused' USING ERRCODE = NEW.status; END $$",
    "CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON runs DEFERRABLE INITIALLY DEFERRED FOR EACH"
    " ROW EXECUTE FUNCTION refuse()",
)


async def test_sessions_that_route_by_statement_go_to_the_writer(
    reader: TemporaryDatabase, sqlite_database: TemporaryDatabase
) -> None:
    """A lease would be read from a replica that lags behind the database in which it was
    written.
    """
    asked: list[str] = []
    event.listen(
        reader.engine.sync_engine, "before_cursor_execute", lambda *args: asked.append(args[2])
    )

    class RoutingSession(Session):
        def get_bind(
            self, mapper: Any = None, *, clause: Any = None, bind: Any = None, **kw: Any
        ) -> Any:
            if bind is not None:
                return bind
            writes = self._flushing or isinstance(clause, Update)
            return (sqlite_database if writes else reader).engine.sync_engine

    factory = async_sessionmaker(sync_session_class=RoutingSession, expire_on_commit=False)
    await add(sqlite_database, Run(id=1), Run(id=2))

    async def read(session: AsyncSession, connection: AsyncConnection) -> Any:
        return await connection.scalar(select(Run.status).where(Run.id == 1))

    assert await run_in(factory, write_both) == "done"
    assert await run_in(factory, read, writes=False) == "written"
    items = await claim(factory, order_for(RUNS), lease_margin=MARGIN, timeout=LOCK_TIMEOUT)
    assert items == []
    async with sqlite_database.session_factory.begin() as session:
        await session.execute(text("UPDATE runs SET status = 'queued'"))
    items = await claim(factory, order_for(RUNS), lease_margin=MARGIN, timeout=LOCK_TIMEOUT)
    async with factory() as session:
        rows = await load_rows(session, RUNS, items)
    assert {row.id for row in rows if row is not None} == {1, 2}
    assert asked == []


async def test_a_service_whose_session_routes_makes_a_row_due(
    reader: TemporaryDatabase, sqlite_database: TemporaryDatabase
) -> None:
    """A service would make a row due in one database and read it back from the other."""

    class RoutingSession(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **kw: Any) -> Any:
            writes = self._flushing or isinstance(clause, Update)
            return (sqlite_database if writes else reader).engine.sync_engine

    later = (await row_later(sqlite_database)).due_at
    async with async_sessionmaker(
        sync_session_class=RoutingSession, expire_on_commit=False
    )() as session:
        row = Run(id=2, due_at=later)
        session.add(row)
        await make_due(session, row)
        await session.commit()
        assert row.due_at < later


async def row_later(database: TemporaryDatabase) -> Any:
    await add(database, Run(id=1, due_at=datetime(2131, 1, 1, tzinfo=UTC)))
    return await row_of(database, RUNS, 1)


async def test_a_service_whose_session_routes_by_model(
    reader: TemporaryDatabase, sqlite_database: TemporaryDatabase
) -> None:
    """A host with a database per model could not make its rows due: our statements name a table
    only.
    """

    class RoutingSession(Session):
        def get_bind(self, mapper: Any = None, **kw: Any) -> Any:
            ours = mapper is not None and mapper.class_ is Run
            return (sqlite_database if ours else reader).engine.sync_engine

    later = (await row_later(sqlite_database)).due_at
    async with async_sessionmaker(
        sync_session_class=RoutingSession, expire_on_commit=False
    )() as session:
        row = await session.get_one(Run, 1)
        await make_due(session, row)
        await session.commit()
    assert (await row_of(sqlite_database, RUNS, 1)).due_at == row.due_at < later


async def test_a_database_that_cannot_be_reached(
    sqlite_database: TemporaryDatabase, tmp_path: Path
) -> None:
    """A failed connect would leave a task, or come out as something that is not an error of the
    database.
    """
    away = TemporaryDatabase(sqlite_database.url.set(database=str(tmp_path / "no" / "such.db")))
    before = set(threading.enumerate())
    with pytest.raises(OperationalError):
        await run_in(away.session_factory, write_both)
    await away.aclose()
    # aiosqlite's thread reports its end to this loop, and nobody waits for it when the connect
    # failed.
    for thread in set(threading.enumerate()) - before:
        await asyncio.to_thread(thread.join)
