"""Hints: whom they reach, that they never harm their sender."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from rowlock import PipelineHinter, hint_after_commit, pipeline_hinter
from rowlock.hints import WARNED_NAMES_MAX
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX, Attachment, Base, Run, Volume
from .told import told


class Ear:
    def __init__(self) -> None:
        self.hinter = PipelineHinter()
        self.heard: list[str] = []
        for name in ("Volume", "Run"):
            self.hinter.attach(name, lambda name=name: self.heard.append(name))

    def ask(self, session: AsyncSession | Session, *models: str | type) -> None:
        hint_after_commit(session, *models, hinter=self.hinter)


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
async def session(sqlite_database: TemporaryDatabase) -> AsyncIterator[AsyncSession]:
    """A session on a database with tables. Hints follow the session, whatever database it is on."""
    await sqlite_database.create_tables(Base.metadata)
    async with sqlite_database.session_factory() as session:
        yield session


# ---------------------------------------------------------------- whom a hint reaches


@pytest.mark.parametrize("model", [Volume, "Volume"])
def test_a_hint_reaches_every_pipeline_of_the_model(model: str | type) -> None:
    """Of two pipelines over one table, one would find its rows by polling only."""
    hinter, heard = PipelineHinter(), []
    hinter.attach("Volume", lambda: heard.append("first"))
    hinter.attach("Volume", lambda: heard.append("second"))
    hinter.attach("Run", lambda: heard.append("of runs"))
    hinter.hint_fetch(model)
    assert heard == ["first", "second"]


def test_a_detached_pipeline_is_not_woken() -> None:
    """A stopped pipeline would go on being woken, and never be forgotten."""
    hinter, heard = PipelineHinter(), []
    wakes: list[Callable[[], None]] = [lambda: heard.append(1), lambda: heard.append(2)]
    for wake in wakes:
        hinter.attach("Volume", wake)
    hinter.detach("Volume", wakes[0])
    hinter.detach("Volume", wakes[0])
    hinter.detach("Run", wakes[0])
    hinter.hint_fetch(Volume)
    assert heard == [2]
    hinter.detach("Volume", wakes[1])
    assert repr(hinter) == "<PipelineHinter nobody listens>"


def test_a_wake_may_detach_itself() -> None:
    """A pipeline that stops because of what a hint brought would make another one miss it."""
    hinter, heard = PipelineHinter(), []

    def first() -> None:
        heard.append("first")
        hinter.detach("Volume", first)

    hinter.attach("Volume", first)
    hinter.attach("Volume", lambda: heard.append("second"))
    hinter.hint_fetch(Volume)
    hinter.hint_fetch(Volume)
    assert heard == ["first", "second", "second"]


def test_a_hint_for_nobody_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    """A service would fail because this replica runs no pipeline, or fill the log with every
    request.
    """
    hinter = PipelineHinter()
    with caplog.at_level(logging.WARNING, logger="rowlock"):
        for _ in range(3):
            hinter.hint_fetch(Volume)
        hinter.hint_fetch("NoSuchModel")
    lines = told(caplog, "hint")
    assert [line.extra for line in lines] == [{"model": "Volume"}, {"model": "NoSuchModel"}]
    for line in lines:
        assert line.text.startswith(f"A hint reached no pipeline: {line.extra['model']}. ")


@pytest.mark.parametrize("junk", [5, None, b"Volume", [Volume]])
def test_a_hint_for_what_is_no_model_harms_nobody(
    junk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that has been committed would fail in its last line."""
    with caplog.at_level(logging.WARNING, logger="rowlock"):
        PipelineHinter().hint_fetch(junk)
    assert len(caplog.records) == 1


def test_memory_of_warnings_is_bounded() -> None:
    """A host that hints by names from outside would fill the memory."""
    hinter = PipelineHinter()
    for number in range(WARNED_NAMES_MAX + 10):
        hinter.hint_fetch(f"Model{number}")
    assert len(hinter._warned) <= WARNED_NAMES_MAX


async def test_hints_may_come_from_threads() -> None:
    """A service in a worker thread would break the loop, or its hint be lost."""
    hinter, woken, loop = PipelineHinter(), asyncio.Event(), asyncio.get_running_loop()
    hinter.attach("Volume", lambda: loop.call_soon_threadsafe(woken.set))
    await asyncio.to_thread(hinter.hint_fetch, Volume)
    async with asyncio.timeout(HANG_S_MAX):
        await woken.wait()


# ---------------------------------------------------------------- after the commit


async def test_the_hint_comes_after_the_commit(session: AsyncSession, ear: Ear) -> None:
    """A fetcher would look before the row is there."""
    session.add(Volume())
    ear.ask(session, Volume)
    await session.flush()
    assert ear.heard == []
    await session.commit()
    assert ear.heard == ["Volume"]


async def test_the_row_is_visible_to_others_when_the_hint_comes(
    database: TemporaryDatabase, ear: Ear
) -> None:
    """The commit would be under way but not done, and the hint in vain."""
    await database.create_tables(Base.metadata)
    engine, seen = database.create_engine(), asyncio.Queue[int]()

    async def look() -> None:
        async with engine.connect() as connection:
            seen.put_nowait(len((await connection.execute(select(Volume.id))).all()))

    tasks: list[asyncio.Task[None]] = []
    ear.hinter.attach("Volume", lambda: tasks.append(asyncio.create_task(look())))
    async with database.session_factory.begin() as session:
        session.add(Volume())
        ear.ask(session, Volume)
    await asyncio.gather(*tasks)
    assert seen.get_nowait() == 1


async def test_each_model_is_hinted_once_per_commit(session: AsyncSession, ear: Ear) -> None:
    """A service that adds a thousand rows would wake a fetcher a thousand times."""
    session.add(Volume())
    for _ in range(3):
        ear.ask(session, Volume, "Run")
    await session.commit()
    assert ear.heard == ["Volume", "Run"]


async def test_a_rolled_back_transaction_hints_nobody(session: AsyncSession, ear: Ear) -> None:
    """Fetchers would look for rows that were never there, and hints lose their meaning."""
    session.add(Volume())
    ear.ask(session, Volume)
    await session.rollback()
    session.add(Volume())
    await session.commit()
    assert ear.heard == []


async def test_a_failed_commit_hints_nobody(session: AsyncSession, ear: Ear) -> None:
    """Rows that the database refused at the end would be looked for."""
    session.add_all([Run(id=1), Run(id=2)])
    ear.ask(session, Run)
    await session.commit()
    assert ear.heard == ["Run"]
    session.add(Attachment(volume_id=Volume().id))
    ear.ask(session, Run)
    with pytest.raises(Exception, match=r"(?i)null"):
        await session.commit()
    await session.rollback()
    assert ear.heard == ["Run"]


async def test_a_session_closed_without_a_commit_hints_nobody(
    session: AsyncSession, ear: Ear
) -> None:
    """A request that ended in an error would wake fetchers for what it did not do."""
    session.add(Volume())
    await session.flush()
    ear.ask(session, Volume)
    await session.close()
    session.add(Volume())
    await session.commit()
    assert ear.heard == []


async def test_a_session_may_be_used_again(session: AsyncSession, ear: Ear) -> None:
    """The second transaction of a session would hint again what the first one asked for, or
    nothing.
    """
    for model, heard in ((Volume, ["Volume"]), (Run, ["Volume", "Run"])):
        session.add(model())
        ear.ask(session, model)
        await session.commit()
        assert ear.heard == heard
    session.add(Volume())
    await session.commit()
    assert ear.heard == ["Volume", "Run"]


async def test_asked_before_the_transaction_begins(session: AsyncSession, ear: Ear) -> None:
    """The order of two lines in a service would decide whether its hint is raised."""
    ear.ask(session, Volume)
    session.add(Volume())
    await session.commit()
    assert ear.heard == ["Volume"]


async def test_asked_before_a_transaction_that_is_rolled_back(
    session: AsyncSession, ear: Ear
) -> None:
    """What a request asked for too early would be hinted by the next one."""
    ear.ask(session, Volume)
    session.add(Volume())
    await session.rollback()
    session.add(Run())
    await session.commit()
    assert ear.heard == []


# ---------------------------------------------------------------- savepoints


async def test_a_released_savepoint_hints_with_the_outermost_commit(
    session: AsyncSession, ear: Ear
) -> None:
    """A hint would be raised while the row may still be rolled back, or be lost with the
    savepoint.
    """
    session.add(Volume())
    async with session.begin_nested():
        session.add(Run())
        ear.ask(session, Run)
    assert ear.heard == []
    await session.commit()
    assert ear.heard == ["Run"]


async def test_a_rolled_back_savepoint_takes_its_hints_with_it(
    session: AsyncSession, ear: Ear
) -> None:
    """A row that was taken back would be hinted by the commit of the rest, or the rest not at
    all.
    """
    session.add(Volume())
    ear.ask(session, Volume)
    savepoint = await session.begin_nested()
    ear.ask(session, Run)
    await savepoint.rollback()
    await session.commit()
    assert ear.heard == ["Volume"]


async def test_a_savepoint_inside_a_rolled_back_one(session: AsyncSession, ear: Ear) -> None:
    """The release of the inner savepoint would rescue hints from the rollback of the outer one."""
    session.add(Volume())
    outer = await session.begin_nested()
    async with session.begin_nested():
        ear.ask(session, Run)
    await outer.rollback()
    await session.commit()
    assert ear.heard == []


async def test_a_commit_with_an_open_savepoint(session: AsyncSession, ear: Ear) -> None:
    """SQLAlchemy releases what is open at a commit; the hints in it would be lost."""
    session.add(Volume())
    await session.begin_nested()
    ear.ask(session, Run)
    await session.commit()
    assert ear.heard == ["Run"]


# ---------------------------------------------------------------- other sessions


async def test_a_plain_session(sqlite_database: TemporaryDatabase, ear: Ear) -> None:
    """A service that works in ``run_sync`` could not hint."""
    await sqlite_database.create_tables(Base.metadata)

    def work(sync: Session) -> None:
        sync.add(Volume())
        hint_after_commit(sync, Volume, hinter=ear.hinter)

    async with sqlite_database.session_factory.begin() as session:
        await session.run_sync(work)
        assert ear.heard == []
    assert ear.heard == ["Volume"]


async def test_sessions_are_apart(sqlite_database: TemporaryDatabase, ear: Ear) -> None:
    """One request's commit would raise another one's hints."""
    await sqlite_database.create_tables(Base.metadata)
    async with (
        sqlite_database.session_factory() as first,
        sqlite_database.session_factory() as second,
    ):
        ear.ask(first, Volume)
        second.add(Run())
        await second.commit()
        assert ear.heard == []


async def test_the_process_wide_hinter_is_the_default(session: AsyncSession) -> None:
    """A service would have to carry a hinter about."""
    heard: list[int] = []

    def wake() -> None:
        heard.append(1)

    pipeline_hinter.attach("Volume", wake)
    try:
        session.add(Volume())
        hint_after_commit(session, Volume)
        await session.commit()
    finally:
        pipeline_hinter.detach("Volume", wake)
    assert heard == [1]


async def test_two_hinters_are_not_one(session: AsyncSession, ear: Ear) -> None:
    """Of two hinters asked for one model, one would be left out as a repetition."""
    other = Ear()
    session.add(Volume())
    ear.ask(session, Volume)
    other.ask(session, Volume)
    await session.commit()
    assert (ear.heard, other.heard) == (["Volume"], ["Volume"])
