"""Rows locked until the commit: on both databases nobody gets in between."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, ConfigurationError, LockWaitTimeout, ModelError, get_locker, lock_rows
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Base, Run, RunPipeline
from ..leases.holding import passing
from ..pipelines.scenes import is_outcome


def is_lock(statement: str) -> bool:
    return "FOR NO KEY UPDATE" in statement


def is_write(statement: str) -> bool:
    waits_for_the_row = is_lock(statement) and "SKIP LOCKED" not in statement
    return statement == "BEGIN IMMEDIATE" or waits_for_the_row or is_outcome(statement)


async def add_runs(database: TemporaryDatabase, *ids: int) -> None:
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add_all(Run(id=id_, result={"count": 0}) for id_ in ids)


async def is_locked(database: TemporaryDatabase, id_: int) -> bool:
    async with database.session_factory() as session:
        try:
            await lock_rows(session, Run, [id_], timeout=0)
        except LockWaitTimeout:
            return True
    return False


async def test_no_update_is_lost(database: TemporaryDatabase) -> None:
    """Two that read, compute and write would each overwrite what the other wrote."""
    await add_runs(database, 1, 2)

    async def count_up(number: int) -> None:
        async with database.session_factory.begin() as session:
            ids = [1, 2] if number % 2 else [2, 1]
            for row in await lock_rows(session, Run, ids):
                row.result = {"count": row.result["count"] + 1}

    await asyncio.gather(*(count_up(number) for number in range(30)))
    async with database.session_factory() as session:
        assert {row.result["count"] for row in await session.scalars(select(Run))} == {30}


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
async def test_it_lasts_until_the_transaction_ends(database: TemporaryDatabase, end: str) -> None:
    """Somebody would read what is about to be overwritten, or the row stay locked for good."""
    await add_runs(database, 1, 2)
    async with database.session_factory() as session:
        [row] = await lock_rows(session, Run, [1])
        row.status = "held"
        await session.flush()
        assert await is_locked(database, 1)
        if database.dialect_name == "postgresql":
            assert not await is_locked(database, 2)
        await getattr(session, end)()
        assert not await is_locked(database, 1)


async def test_a_session_shows_what_is_there_and_not_what_it_read_before(
    database: TemporaryDatabase,
) -> None:
    """The decision would rest on an instance that was read before the lock."""
    await add_runs(database, 1)
    async with database.session_factory() as session:
        before = (await session.scalars(select(Run))).one()
        await session.commit()
        async with database.session_factory.begin() as other:
            await other.execute(text("UPDATE runs SET status = 'changed'"))
        [row] = await lock_rows(session, Run, [1])
        assert row is before
        assert row.status == "changed"


async def test_not_free_in_time_is_told_and_the_transaction_goes_on(
    database: TemporaryDatabase,
) -> None:
    """A caller would wait for ever, or lose its transaction."""
    await add_runs(database, 1, 2)
    async with database.session_factory() as holder, database.session_factory() as session:
        await lock_rows(holder, Run, [2])
        with pytest.raises(LockWaitTimeout) as told:
            await lock_rows(session, Run, [2, 1], timeout=0.05)
        assert (told.value.namespace, told.value.keys, told.value.timeout_s) == (
            "runs",
            (1, 2),
            0.05,
        )
        if database.dialect_name == "postgresql":
            assert not await is_locked(database, 1)
        assert (await session.execute(select(Run.id).where(Run.id == 1))).scalar_one() == 1


async def test_more_rows_may_be_locked_later(database: TemporaryDatabase) -> None:
    """A transaction would wait for itself."""
    await add_runs(database, 1, 2)
    async with database.session_factory() as session:
        await lock_rows(session, Run, [1])
        assert [row.id for row in await lock_rows(session, Run, [1, 2], timeout=1)] == [1, 2]
        await session.rollback()
        assert not await is_locked(database, 1)
        assert not await is_locked(database, 2)


async def test_rows_that_do_not_exist_are_passed_over(database: TemporaryDatabase) -> None:
    """A row that somebody deleted would be an error."""
    await add_runs(database, 1)
    async with database.session_factory() as session:
        assert [row.id for row in await lock_rows(session, Run, [7, 1])] == [1]
        assert await lock_rows(session, Run, []) == []


async def test_claims_leave_locked_rows_alone(postgresql_database: TemporaryDatabase) -> None:
    """A pipeline would work on a row that a service is about to change."""
    await add_runs(postgresql_database, 1, 2)
    async with postgresql_database.session_factory() as session:
        await lock_rows(session, Run, [1])
        async with stepping(postgresql_database.session_factory, RunPipeline()) as steps:
            assert [item.id for item in await steps.fetch_once()] == [2]


async def test_nobody_else_writes_meanwhile_on_sqlite(sqlite_database: TemporaryDatabase) -> None:
    """An outcome, or another process, would write between the service's reading and its commit."""
    await add_runs(sqlite_database, 1)
    assert sqlite_database.url.database is not None
    with closing(
        sqlite3.connect(sqlite_database.url.database, timeout=0, isolation_level=None)
    ) as other:
        async with sqlite_database.session_factory() as session:
            await lock_rows(session, Run, [1])
            with pytest.raises(sqlite3.OperationalError, match="database is locked"):
                other.execute("BEGIN IMMEDIATE")
            await session.commit()
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")


async def test_an_outcome_waits_for_the_commit(database: TemporaryDatabase) -> None:
    """A service would overwrite an outcome with what it computed from what was there before."""
    await add_runs(database, 1)
    seen: list[str] = []
    async with stepping(
        database.session_factory, RunPipeline(answer=Apply({"status": "done"}))
    ) as steps:
        await steps.fetch_once()
        async with database.session_factory.begin() as session:
            [row] = await lock_rows(session, Run, [1])
            with passing(database.engine, is_write) as writes:
                working = asyncio.create_task(steps.work_once())
                await writes.wait_for(1)
            seen.append((await session.execute(select(Run.status))).scalar_one())
            row.result = {"count": 1}
        await working
    async with database.session_factory() as session:
        row = (await session.scalars(select(Run))).one()
    assert (seen, row.status, row.result) == (["queued"], "done", {"count": 1})


async def test_a_cancelled_waiter_leaves_nothing(database: TemporaryDatabase) -> None:
    """A request that its client gave up would keep the row locked, or free it under the holder."""
    await add_runs(database, 1)
    async with database.session_factory() as holder:
        await lock_rows(holder, Run, [1])

        async def wait() -> None:
            async with database.session_factory() as session:
                await lock_rows(session, Run, [1])

        with passing(database.engine, is_lock) as locks:
            waiter = asyncio.create_task(wait())
            if database.dialect_name == "postgresql":
                await locks.wait_for(1)
            else:
                while not sum(namespace.waiting for namespace in get_locker("sqlite").statistics()):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait({waiter})
        assert await is_locked(database, 1)
    assert not await is_locked(database, 1)
    assert get_locker("sqlite").statistics() == ()


async def test_a_savepoint_is_refused(database: TemporaryDatabase) -> None:
    """The lock would end with a savepoint that is rolled back, and on SQLite would not."""
    await add_runs(database, 1)
    async with database.session_factory() as session, session.begin(), session.begin_nested():
        with pytest.raises(ConfigurationError, match="savepoint"):
            await lock_rows(session, Run, [1])


async def test_after_a_write_it_is_refused_on_sqlite(sqlite_database: TemporaryDatabase) -> None:
    """The holder of the key could not commit, since who waits for it has the file's write lock."""
    await add_runs(sqlite_database, 1)
    async with sqlite_database.session_factory() as session:
        session.add(Run(id=9))
        await session.flush()
        with pytest.raises(ConfigurationError, match="before its first statement"):
            await lock_rows(session, Run, [1])


async def test_a_bare_connection_is_refused_on_sqlite(sqlite_database: TemporaryDatabase) -> None:
    """The lock would end with the session, and its connection commit later."""
    await add_runs(sqlite_database, 1)
    async with sqlite_database.engine.connect() as connection, AsyncSession(connection) as session:
        with pytest.raises(ConfigurationError, match="bound to an engine"):
            await lock_rows(session, Run, [1])


async def test_what_is_no_model_is_refused(database: TemporaryDatabase) -> None:
    """An error of SQLAlchemy's would have to be understood."""

    class Other(DeclarativeBase):
        pass

    class Pair(Other):
        __tablename__ = "pairs"
        one: Mapped[int] = mapped_column(primary_key=True)
        two: Mapped[int] = mapped_column(primary_key=True)

    async with database.session_factory() as session:
        for wrong, says in (
            (Pair, "composite"),
            (int, "not a mapped class"),
            ("Run", "not a mapped class"),
        ):
            with pytest.raises(ModelError, match=says):
                await lock_rows(session, wrong, [1])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a collection of keys"):
            await lock_rows(session, Run, "1")


async def test_children_can_be_inserted_meanwhile(postgresql_database: TemporaryDatabase) -> None:
    """Every insert of a child would wait for whoever has locked its parent, and some would
    deadlock.
    """
    await add_runs(postgresql_database, 1)
    steps = Table("steps", MetaData(), Column("run_id", Integer, ForeignKey(Run.id)))
    async with postgresql_database.engine.begin() as connection:
        await connection.run_sync(steps.create)
    async with postgresql_database.session_factory() as session:
        await lock_rows(session, Run, [1])
        async with postgresql_database.engine.begin() as other:
            # It waits for nothing; where it would, the database says so.
            await other.execute(text("SET LOCAL lock_timeout = '100ms'"))
            await other.execute(steps.insert().values(run_id=1))
