"""Tests of transactions that end: whoever is cancelled, whatever hangs, no lock and no connection is left behind."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Update, event, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from rowlock.errors import PipelineError, TransactionTimeout
from rowlock.leases import transaction as transaction_module
from rowlock.leases.claim import claim
from rowlock.leases.due import make_due
from rowlock.leases.load import load_rows
from rowlock.leases.transaction import finish, in_transaction
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Base, Run, Volume
from .ground import LOCK_TIMEOUT, MARGIN, RUNS, VOLUMES, add, order_for, row_of

Work = Callable[[AsyncSession, AsyncConnection], Awaitable[Any]]
TIMEOUT = timedelta(seconds=20)
CANCELS_IN_A_ROW = 10
BOUNDARIES = ("begin", "before_cursor_execute", "after_cursor_execute", "commit", "rollback")


async def run_in(factory: Any, work: Work, *, timeout: timedelta = TIMEOUT, writes: bool = True) -> Any:
    """Run `work` in a transaction about runs."""
    return await in_transaction(factory, RUNS, work, purpose="take a step", timeout=timeout, writes=writes)


async def write_both(session: AsyncSession, connection: AsyncConnection) -> str:
    """Read, then write two rows, reading the second one from a live cursor: what a cancellation must not tear apart."""
    await connection.execute(select(Run.id))
    await connection.execute(text("UPDATE runs SET status = 'written' WHERE id = 1"))
    await connection.execute(select(Run.id))
    await connection.execute(text("UPDATE runs SET status = 'written' WHERE id = 2 RETURNING id"))
    return "done"


async def may_write(database: TemporaryDatabase) -> bool:
    """Whether another replica may write at once: nobody holds the file's write lock, or a row of the table."""
    if database.dialect_name == "sqlite":
        return file_may_be_written(database)
    async with database.create_engine().begin() as connection:
        await connection.execute(text("SELECT id FROM runs FOR UPDATE NOWAIT"))
    return True


def file_may_be_written(database: TemporaryDatabase) -> bool:
    """Whether somebody outside of the engine gets the file's write lock without waiting."""
    with closing(sqlite3.connect(str(database.url.database), timeout=0, isolation_level=None)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        other.execute("ROLLBACK")
        return True


def checked_out(engine: AsyncEngine) -> int:
    """Return how many connections are out of the pool."""
    return engine.pool.checkedout()  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
async def reader(tmp_path: Path, sqlite_database: TemporaryDatabase) -> AsyncIterator[TemporaryDatabase]:
    """A replica for reading, which lags behind: it has the tables and no row."""
    database = TemporaryDatabase(sqlite_database.url.set(database=str(tmp_path / "reader.db")))
    await database.create_tables(Base.metadata)
    yield database
    await database.aclose()


@pytest.fixture
def without_collector() -> Iterator[None]:
    """The garbage collector is off: it would clean up what the code under test leaves behind."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# ---------------------------------------------------------------- what it does


async def test_what_the_work_returns_after_its_commit(database: TemporaryDatabase) -> None:
    """An outcome would be told before it is kept."""
    await add(database, Run(id=1), Run(id=2))
    assert await run_in(database.session_factory, write_both) == "done"
    assert [(await row_of(database, RUNS, key)).status for key in (1, 2)] == ["written", "written"]


async def test_an_error_takes_everything_back(database: TemporaryDatabase) -> None:
    """Half an outcome would be kept."""
    await add(database, Run(id=1), Run(id=2))

    async def fail(session: AsyncSession, connection: AsyncConnection) -> None:
        await write_both(session, connection)
        raise LookupError("host")

    with pytest.raises(LookupError, match="host"):
        await run_in(database.session_factory, fail)
    assert (await row_of(database, RUNS, 1)).status == "queued"
    assert checked_out(database.engine) == 0
    assert await may_write(database)


async def test_session_and_connection_are_of_one_transaction(database: TemporaryDatabase) -> None:
    """What the host writes beside the outcome would be kept without it."""
    await add(database, Run(id=1))

    async def both(session: AsyncSession, connection: AsyncConnection) -> None:
        session.add(Run(id=2))
        await session.flush()
        assert set((await connection.scalars(select(Run.id))).all()) == {1, 2}
        raise LookupError

    with pytest.raises(LookupError):
        await run_in(database.session_factory, both)
    async with database.session_factory() as session:
        assert (await session.scalars(select(Run.id))).all() == [1]


# ---------------------------------------------------------------- cancellation


async def struck(
    database: TemporaryDatabase, step: Callable[[Any], Awaitable[Any]], *, at: int, times: int
) -> tuple[bool, bool]:
    """Run `step` and cancel it when its engine passes boundary number `at`; return whether it was struck, and whether cancelled."""
    engine = database.create_engine()
    task = asyncio.ensure_future(step(async_sessionmaker(engine)))
    passed, hit = 0, False

    def cancel(left: int) -> None:
        task.cancel()
        if left > 1:
            asyncio.get_running_loop().call_soon(cancel, left - 1)

    def pass_boundary(*_: Any) -> None:
        nonlocal passed, hit
        passed += 1
        if passed == at + 1:
            hit = True
            cancel(times)

    for boundary in BOUNDARIES:
        event.listen(engine.sync_engine, boundary, pass_boundary)
    try:
        await task
        cancelled = False
    except asyncio.CancelledError:
        cancelled = True
    assert checked_out(engine) == 0
    assert await may_write(database)
    return hit, cancelled


async def strike_everywhere(
    database: TemporaryDatabase,
    step: Callable[[Any], Awaitable[Any]],
    check: Callable[[], Awaitable[None]],
    *,
    times: int,
) -> int:
    """Cancel `step` at each boundary in turn until there is none left; return how many there were."""
    at = 0
    while True:
        hit, cancelled = await struck(database, step, at=at, times=times)
        assert cancelled is hit, "a cancelled caller must not go on, and nobody else must be cancelled"
        await check()
        if not hit:
            return at
        at += 1


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("times", [1, CANCELS_IN_A_ROW])
async def test_cancelled_at_every_statement(database: TemporaryDatabase, times: int) -> None:
    """A cancelled worker would keep the file's write lock, or leave half an outcome."""
    await add(database, Run(id=1), Run(id=2))

    async def step(factory: Any) -> Any:
        return await run_in(factory, write_both)

    async def check() -> None:
        statuses = [(await row_of(database, RUNS, key)).status for key in (1, 2)]
        assert statuses == ["written", "written"]  # a transaction that began is brought to its end
        async with database.engine.begin() as connection:
            await connection.execute(text("UPDATE runs SET status = 'queued'"))

    assert await strike_everywhere(database, step, check, times=times) >= 10


@pytest.mark.usefixtures("without_collector")
async def test_a_claim_cancelled_at_every_statement(database: TemporaryDatabase) -> None:
    """A fetcher that is stopped would leave the write lock held, or a service's lockset locked."""
    await add(database, *(Volume() for _ in range(3)))

    async def step(factory: Any) -> Any:
        return await claim(factory, order_for(VOLUMES), lease_margin=MARGIN, timeout=TIMEOUT)

    async def check() -> None:
        async with database.engine.begin() as connection:
            await connection.execute(
                text("UPDATE volumes SET lock_token = NULL, lock_owner = NULL, lock_expires_at = NULL")
            )

    assert await strike_everywhere(database, step, check, times=1) >= 4


async def test_cancelled_before_it_runs(database: TemporaryDatabase) -> None:
    """A cancellation in the first turn of the loop would leave a transaction that nobody waits for."""
    await add(database, Run(id=1), Run(id=2))
    for turns in range(3):
        task = asyncio.ensure_future(run_in(database.session_factory, write_both))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert checked_out(database.engine) == 0
        assert await may_write(database)


async def test_the_error_of_a_cancelled_callers_transaction_is_told(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure would vanish because its caller was stopped meanwhile."""
    await add(database, Run(id=1))
    entered = asyncio.Event()
    go = asyncio.Event()

    async def fail(session: AsyncSession, connection: AsyncConnection) -> None:
        entered.set()
        await go.wait()
        raise LookupError("host")

    task = asyncio.ensure_future(run_in(database.session_factory, fail))
    await entered.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    (record,) = [record for record in caplog.records if record.name == "rowlock.leases.transaction"]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)


async def test_a_cancellation_from_within_is_an_error(database: TemporaryDatabase) -> None:
    """A worker would die of a cancellation that was not its own."""
    await add(database, Run(id=1))

    async def cancelled(session: AsyncSession, connection: AsyncConnection) -> None:
        raise asyncio.CancelledError

    with pytest.raises(PipelineError, match="the transaction to take a step was cancelled from within"):
        await run_in(database.session_factory, cancelled)
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0
    assert checked_out(database.engine) == 0


# ---------------------------------------------------------------- bounded in time


async def hang(session: AsyncSession, connection: AsyncConnection) -> None:
    """Write, then wait for ever."""
    await connection.execute(text("UPDATE runs SET status = 'written'"))
    await asyncio.Event().wait()


@virtual_time
async def test_a_hanging_transaction_ends_in_time(virtual_database: TemporaryDatabase) -> None:
    """A loop of the pipeline would wait for ever for a database that does not answer."""
    loop = asyncio.get_running_loop()
    await add(virtual_database, Run(id=1))
    started_at = loop.time()
    with pytest.raises(TransactionTimeout) as caught:
        await run_in(virtual_database.session_factory, hang, timeout=timedelta(seconds=7))
    assert loop.time() - started_at == 7
    assert (caught.value.purpose, caught.value.timeout_s) == ("take a step", 7)
    assert checked_out(virtual_database.engine) == 0
    assert file_may_be_written(virtual_database)
    assert (await row_of(virtual_database, RUNS, 1)).status == "queued"
    assert transaction_module._overdue == set()


async def test_a_hanging_statement_ends_in_time(postgresql_database: TemporaryDatabase) -> None:
    """A statement that the server does not finish would hold its rows and its connection."""
    await add(postgresql_database, Run(id=1))

    async def sleep(session: AsyncSession, connection: AsyncConnection) -> None:
        await connection.execute(text("UPDATE runs SET status = 'written'"))
        await connection.execute(text("SELECT pg_sleep(3600)"))

    with pytest.raises(TransactionTimeout):
        await run_in(postgresql_database.session_factory, sleep, timeout=timedelta(seconds=0.5))
    assert checked_out(postgresql_database.engine) == 0
    async with postgresql_database.create_engine().begin() as connection:
        await connection.execute(text("SELECT id FROM runs FOR UPDATE"))
        sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"
        assert await connection.scalar(text(sleeping)) == 0


@virtual_time
async def test_what_ignores_its_cancellation_is_left_behind(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver that does not listen would hang the pipeline all the same; its late error would be told by nobody."""
    loop = asyncio.get_running_loop()
    await add(virtual_database, Run(id=1))
    answered = asyncio.Event()

    async def deaf(session: AsyncSession, connection: AsyncConnection) -> None:
        while not answered.is_set():
            try:
                await answered.wait()
            except asyncio.CancelledError:
                continue
        raise LookupError("late")

    started_at = loop.time()
    with pytest.raises(TransactionTimeout):
        await run_in(virtual_database.session_factory, deaf, timeout=timedelta(seconds=7))
    assert loop.time() - started_at == 7 + transaction_module.CANCEL_WAIT_S_MAX
    (overdue,) = transaction_module._overdue
    answered.set()
    with pytest.raises(LookupError):
        await overdue
    await asyncio.sleep(0)
    assert transaction_module._overdue == set()
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["late"]


@virtual_time
async def test_what_ends_while_it_is_given_up_counts(virtual_database: TemporaryDatabase) -> None:
    """What was committed at the last moment would be reported as unknown."""
    await add(virtual_database, Run(id=1))

    async def late(session: AsyncSession, connection: AsyncConnection) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await connection.execute(text("UPDATE runs SET status = 'written'"))
        return "late"

    assert await run_in(virtual_database.session_factory, late, timeout=timedelta(seconds=7)) == "late"
    assert (await row_of(virtual_database, RUNS, 1)).status == "written"


@virtual_time
async def test_a_cancelled_caller_of_a_hanging_transaction_is_cancelled(virtual_database: TemporaryDatabase) -> None:
    """A worker that is to stop would take the timeout for an answer, and go on."""
    await add(virtual_database, Run(id=1))
    for cancel_after_s in (3, 8):  # while it runs, and while it is being given up
        patient = asyncio.Event()

        async def hang_twice(
            session: AsyncSession, connection: AsyncConnection, patient: asyncio.Event = patient
        ) -> None:
            try:
                await patient.wait()
            except asyncio.CancelledError:
                await asyncio.sleep(2)
                raise

        task = asyncio.ensure_future(run_in(virtual_database.session_factory, hang_twice, timeout=timedelta(seconds=7)))
        await asyncio.sleep(cancel_after_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert checked_out(virtual_database.engine) == 0


@virtual_time
async def test_without_a_limit() -> None:
    """What may take as long as it takes would be cut off."""

    async def long() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert await finish(long(), purpose="wait") == asyncio.get_running_loop().time()


# ---------------------------------------------------------------- SQLite


async def test_the_write_lock_is_taken_at_the_start(sqlite_database: TemporaryDatabase) -> None:
    """Two replicas would read the same rows before either writes, and one of them would fail half-way."""
    await add(sqlite_database, Run(id=1))
    seen = []

    async def look(session: AsyncSession, connection: AsyncConnection) -> None:
        seen.append(file_may_be_written(sqlite_database))
        await connection.execute(select(Run.id))
        seen.append(file_may_be_written(sqlite_database))

    await run_in(sqlite_database.session_factory, look)
    await run_in(sqlite_database.session_factory, look, writes=False)
    assert seen == [False, False, True, True]


async def test_a_reader_does_not_wait_for_a_writer(sqlite_database: TemporaryDatabase) -> None:
    """Loading rows would wait for whoever writes, and writers for whoever reads."""
    await add(sqlite_database, Run(id=1))
    await run_in(sqlite_database.session_factory, write_both)

    async def read(session: AsyncSession, connection: AsyncConnection) -> Any:
        return await connection.scalar(select(Run.status).where(Run.id == 1))

    with closing(sqlite3.connect(str(sqlite_database.url.database), isolation_level=None)) as writer:
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
    """A host that set its engine up for savepoints could not use us: a transaction cannot be begun inside another."""
    await add(sqlite_database, Run(id=1), Run(id=2))
    engine = sqlite_database.create_engine()
    begins_by_itself(engine)
    factory = async_sessionmaker(engine)
    seen = []

    async def look(session: AsyncSession, connection: AsyncConnection) -> None:
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


PROCESS = """
import asyncio, sys
from datetime import timedelta
from sqlalchemy import Integer, true
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from rowlock import LockColumns
from rowlock.leases.claim import claim
from rowlock.leases.dialects.claims import ClaimOrder
from rowlock.rows.eligibility import eligible, oldest_first
from rowlock.rows.leased_table import LeasedTable

class Base(DeclarativeBase): pass
class Task(LockColumns, Base):
    __tablename__ = "tasks"
    id: Mapped[int] = mapped_column(primary_key=True)

async def main(url):
    engine = create_async_engine(url)
    leased = LeasedTable.of(Task)
    ready = eligible(leased, ready=true(), owner="P", min_processing_interval=timedelta(0))
    order = ClaimOrder(leased, ready, oldest_first(leased), "P", timedelta(hours=1), 3)
    print("ready", flush=True)
    sys.stdin.readline()
    while items := await claim(async_sessionmaker(engine), order, lease_margin=timedelta(0), timeout=timedelta(seconds=60)):
        print(*(f"{item.id}:{item.lock_token}" for item in items), flush=True)
    await engine.dispose()

asyncio.run(main(sys.argv[1]))
"""


def test_two_processes_on_one_file(tmp_path: Path) -> None:
    """Two replicas on one SQLite file would share rows, or fail because the other one writes."""
    path = tmp_path / "shared.db"
    columns = "lock_token CHAR(32), lock_owner TEXT, lock_expires_at TEXT, last_processed_at TEXT"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE tasks (id INTEGER PRIMARY KEY, {columns})")
        connection.executemany("INSERT INTO tasks (id) VALUES (?)", [(n,) for n in range(150)])
        connection.commit()
    command = [sys.executable, "-c", PROCESS, f"sqlite+aiosqlite:///{path}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60) for process in processes]
    assert [(process.returncode, errors) for process, (_, errors) in zip(processes, answers, strict=True)] == [
        (0, "")
    ] * 2
    claims = [claim.split(":") for out, _ in answers for claim in out.split()]
    assert sorted(int(key) for key, _ in claims) == list(range(150))
    with closing(sqlite3.connect(path)) as connection:
        tokens = dict(connection.execute("SELECT id, lock_token FROM tasks"))
    assert {int(key): token.replace("-", "") for key, token in claims} == tokens


# ---------------------------------------------------------------- several engines


async def test_sessions_that_route_by_statement_go_to_the_writer(
    reader: TemporaryDatabase, sqlite_database: TemporaryDatabase
) -> None:
    """A lease would be read from a replica that lags behind the database in which it was written."""
    asked: list[str] = []
    event.listen(reader.engine.sync_engine, "before_cursor_execute", lambda *args: asked.append(args[2]))

    class RoutingSession(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, bind: Any = None, **kw: Any) -> Any:
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
    async with async_sessionmaker(sync_session_class=RoutingSession, expire_on_commit=False)() as session:
        row = Run(id=2, due_at=later)
        session.add(row)
        await make_due(session, row)
        await session.commit()
        assert row.due_at < later


async def row_later(database: TemporaryDatabase) -> Any:
    """Return a stored run that is due in a century."""
    await add(database, Run(id=1, due_at=datetime(2131, 1, 1, tzinfo=UTC)))
    return await row_of(database, RUNS, 1)


async def test_a_service_whose_session_routes_by_model(
    reader: TemporaryDatabase, sqlite_database: TemporaryDatabase
) -> None:
    """A host with a database per model could not make its rows due: our statements name a table only."""

    class RoutingSession(Session):
        def get_bind(self, mapper: Any = None, **kw: Any) -> Any:
            ours = mapper is not None and mapper.class_ is Run
            return (sqlite_database if ours else reader).engine.sync_engine

    later = (await row_later(sqlite_database)).due_at
    async with async_sessionmaker(sync_session_class=RoutingSession, expire_on_commit=False)() as session:
        row = await session.get_one(Run, 1)
        await make_due(session, row)
        await session.commit()
    assert (await row_of(sqlite_database, RUNS, 1)).due_at == row.due_at < later


async def test_a_database_that_cannot_be_reached(sqlite_database: TemporaryDatabase, tmp_path: Path) -> None:
    """A failed connect would leave a task, or come out as something that is not an error of the database."""
    away = TemporaryDatabase(sqlite_database.url.set(database=str(tmp_path / "no" / "such.db")))
    before = set(threading.enumerate())
    with pytest.raises(OperationalError):
        await run_in(away.session_factory, write_both)
    await away.aclose()
    # aiosqlite's thread reports its end to this loop, and nobody waits for it when the connect failed.
    for thread in set(threading.enumerate()) - before:
        await asyncio.to_thread(thread.join)
