"""Tests of many submissions at the same moment: the ceiling, the turns of SQLite, and hosts that
begin transactions themselves.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections import Counter
from contextlib import AsyncExitStack
from itertools import cycle, product
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from rowlock import AdmissionRejected, LockWaitTimeout, get_locker
from rowlock.dispatch import COMPLETED, DispatchPipeline
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX
from ..lengths import at_length
from ..locks.creators import begins_by_itself
from .renders import Fleet, Render, Scenes, all_renders, submit

BEGINS = (None, "BEGIN", "BEGIN IMMEDIATE", "autocommit=False")


def pipeline_of(**settings: Any) -> DispatchPipeline[Render]:
    """Return a pipeline that is never started: what an API process has."""
    return DispatchPipeline(Render, handler=Scenes(), engine=Fleet(), **settings)


def engine_of(database: TemporaryDatabase, begin: str | None) -> AsyncEngine:
    """Return an engine of a host that has SQLite's transactions begin in this way; None is the
    driver's own.
    """
    if begin != "autocommit=False":
        # The host's own BEGIN waits for the file; on a starved machine 30 of them take their time.
        engine = database.create_engine(connect_args={"timeout": HANG_S_MAX})
        if begin is not None:
            begins_by_itself(engine, begin)
        return engine
    if sys.version_info < (3, 12):
        pytest.skip("the driver has no such transactions")
    return database.create_engine(connect_args={"autocommit": False})


async def set_journal(database: TemporaryDatabase, journal: str) -> None:
    """Set the journal of the file; with WAL those who read keep nobody from committing."""
    async with database.engine.connect() as connection:
        await connection.exec_driver_sql(f"PRAGMA journal_mode = {journal}")


@pytest.mark.parametrize(
    ("begin", "journal"),
    at_length(
        list(zip(BEGINS, cycle(["DELETE", "WAL"]))), list(product(BEGINS, ["DELETE", "WAL"]))
    ),
)
async def test_all_get_a_row_or_a_refusal_and_the_ceiling_is_exact(
    sqlite_database: TemporaryDatabase, begin: str | None, journal: str
) -> None:
    """Clients that come at once would be told that the database is locked, or more would be
    taken than there is room for.
    """
    await set_journal(sqlite_database, journal)
    renders = pipeline_of(max_active=20)
    sessions = async_sessionmaker(engine_of(sqlite_database, begin), expire_on_commit=False)

    async def client(number: int) -> str:
        try:
            async with sessions.begin() as session:
                await renders.submit(session, dedup_key=f"scene-{number}")
        except AdmissionRejected:
            return "refused"
        return "made"

    async with asyncio.timeout(HANG_S_MAX):
        answers = await asyncio.gather(*(client(number) for number in range(30)))
    assert Counter(answers) == {"made": 20, "refused": 10}
    assert len(await all_renders(sqlite_database)) == 20
    assert get_locker("sqlite").statistics() == ()


async def test_the_ceiling_is_exceeded_only_by_those_who_submit_at_the_same_moment(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A ceiling that holds for nobody would let work pile up without bound."""
    renders = pipeline_of(max_active=3)
    await submit(postgresql_database, renders, "a", "b")
    async with AsyncExitStack() as stack:
        for number in range(5):
            session = await stack.enter_async_context(postgresql_database.session_factory.begin())
            _, fresh = await renders.submit(session, dedup_key=f"scene-{number}")
            assert fresh
            with pytest.raises(AdmissionRejected):  # its own row it does see
                await renders.submit(session, dedup_key="one too many")
    assert len(await all_renders(postgresql_database)) == 2 + 5
    for key in ("c", "d"):
        with pytest.raises(AdmissionRejected):
            await submit(postgresql_database, renders, key)


@pytest.mark.parametrize("begin", [None, "BEGIN", "autocommit=False"])
async def test_who_writes_nothing_keeps_nobody_waiting(
    sqlite_database: TemporaryDatabase, begin: str | None
) -> None:
    """A client that reads its answer slowly would keep all others from submitting."""
    await set_journal(sqlite_database, "WAL")
    renders = pipeline_of(max_active=2)
    await submit(sqlite_database, renders, "a")
    sessions = async_sessionmaker(engine_of(sqlite_database, begin), expire_on_commit=False)
    async with asyncio.timeout(HANG_S_MAX), sessions() as slow:
        row, fresh = await renders.submit(slow, dedup_key="a")
        assert not fresh
        await submit(sqlite_database, renders, "b")
        assert row.dedup_key == "a"
    async with asyncio.timeout(HANG_S_MAX), sqlite_database.session_factory() as refused:
        with pytest.raises(AdmissionRejected):
            await renders.submit(refused, dedup_key="c")
        async with sessions.begin() as session:
            await session.delete(row)
        await submit(sqlite_database, renders, "c")


@pytest.mark.parametrize("begin", ["BEGIN", "autocommit=False"])
async def test_nobody_writes_between_the_look_and_the_row(
    sqlite_database: TemporaryDatabase, begin: str | None
) -> None:
    """A submission would be told that the database is locked, because somebody else wrote while
    it counted.
    """
    engine = engine_of(sqlite_database, begin)
    other = sqlite3.connect(sqlite_database.url.database or "", timeout=0, isolation_level=None)
    tried: list[str] = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def write_between(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT"):
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            tried.append(statement)

    async with AsyncSession(engine) as session:
        await pipeline_of().submit(session, dedup_key="a")
        await session.commit()
    assert len(tried) == 1
    other.close()


@pytest.mark.parametrize("begin", BEGINS)
async def test_what_the_host_has_done_before_is_kept(
    sqlite_database: TemporaryDatabase, begin: str | None
) -> None:
    """Rows that a host wrote before it submits would be lost, or committed though it rolls back."""
    renders = pipeline_of()
    sessions = async_sessionmaker(engine_of(sqlite_database, begin), expire_on_commit=False)
    for keep in (False, True):
        async with sessions() as session:
            session.add(Render(dedup_key="old", status=COMPLETED))
            await session.flush()
            await renders.submit(session, dedup_key="a")
            session.add(Render(dedup_key="later", status=COMPLETED))
            await renders.submit(session, dedup_key="b")
            await (session.commit() if keep else session.rollback())
        rows = await all_renders(sqlite_database)
        assert sorted(row.dedup_key for row in rows) == (["a", "b", "later", "old"] if keep else [])


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE"])
async def test_a_savepoint_that_is_open_is_kept(
    sqlite_database: TemporaryDatabase, begin: str
) -> None:
    """A submission in a savepoint would end it, and what follows would fail or be undone with
    it.
    """
    sessions = async_sessionmaker(engine_of(sqlite_database, begin), expire_on_commit=False)
    async with sessions.begin() as session:
        async with session.begin_nested():
            await pipeline_of().submit(session, dedup_key="a")
        async with session.begin_nested() as savepoint:
            await pipeline_of().submit(session, dedup_key="b")
            await savepoint.rollback()
    assert [row.dedup_key for row in await all_renders(sqlite_database)] == ["a"]


@pytest.mark.parametrize(
    ("begin", "by"),
    [
        (None, "a session"),
        ("BEGIN", "a session"),
        ("BEGIN", "another process"),
    ],  # without BEGIN the driver waits for others
)
async def test_a_turn_that_does_not_come_is_told(
    sqlite_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, begin: str | None, by: str
) -> None:
    """A request would wait for ever behind one that forgot to commit, or leave the turn taken
    when it gives up.
    """
    monkeypatch.setattr("rowlock.dispatch.admission.SUBMIT_WAIT_S_MAX", 0.01)
    renders = pipeline_of()
    sessions = async_sessionmaker(engine_of(sqlite_database, begin), expire_on_commit=False)
    holder = sqlite3.connect(sqlite_database.url.database or "", isolation_level=None)
    async with sqlite_database.session_factory() as first, sessions() as second:
        if by == "another process":
            holder.execute("BEGIN IMMEDIATE")
        else:
            await renders.submit(first, dedup_key="a")
        with pytest.raises(LockWaitTimeout):
            await renders.submit(second, dedup_key="b")
        assert (await second.scalars(select(Render.dedup_key))).all() == []
        await first.rollback()
        assert get_locker("sqlite").statistics() == ()
        holder.close()
        await second.rollback()
        assert (await renders.submit(second, dedup_key="b"))[1]
