"""Tests of work that is cancelled by its key: before it begins, while it runs, and when it is
too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import PipelineManager
from rowlock.dispatch import (
    COMPLETED,
    FAILED,
    PENDING,
    AttemptEvent,
    Completed,
    DispatchPipeline,
    Progress,
    StageDone,
    Task,
)
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX
from .renders import (
    Base,
    Fleet,
    Render,
    Scenes,
    all_renders,
    one_render,
    pipeline_of,
    settled,
    submit,
)

QUICK: Any = {"fetch_delays": (0.05, 0.1)}


async def cancel(
    database: TemporaryDatabase, renders: DispatchPipeline[Render], key: str
) -> Render | None:
    """Cancel what a key is about, in a transaction of its own."""
    async with database.session_factory.begin() as session:
        return await renders.cancel(session, dedup_key=key)


async def given_up(fleet: Fleet, database: TemporaryDatabase) -> Render:
    """Wait until nothing runs and the only row is free, and return it."""
    async with asyncio.timeout(HANG_S_MAX):
        while fleet.running or (await one_render(database)).lock_token is not None:  # noqa: ASYNC110 - the database says nothing by itself
            await asyncio.sleep(0.02)
    return await one_render(database)


class Gates:
    """A handler that tells when it has begun, and goes on when it is let."""

    def __init__(self) -> None:
        self.begun, self.gate, self.steps = asyncio.Event(), asyncio.Event(), list[str]()

    async def __call__(self, task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("begun")
        self.begun.set()
        await self.gate.wait()
        if task.row.scene != "silent":
            yield StageDone("raw", "x")
        self.steps.append(task.row.scene)
        yield Completed({"url": "x"})


async def test_what_waits_is_not_begun(database: TemporaryDatabase) -> None:
    """A client that changed its mind would wait for work that nobody wants, and others would be
    refused for it.
    """
    fleet = Fleet(1)
    renders = pipeline_of(fleet, Scenes(0), max_active=2, **QUICK)
    await submit(database, renders, "a", "b")
    row = await cancel(database, renders, "a")
    assert row is not None
    assert (row.status, row.error) == (FAILED, "cancelled: it is not wanted any more")
    assert row.finished_at is not None
    assert await cancel(database, renders, "a") is None
    await submit(database, renders, "c")  # its place is free
    async with PipelineManager(database.session_factory, [renders]):
        rows = await settled(database, every_s=0.02)
    assert {row.dedup_key: row.status for row in rows} == {
        "a": FAILED,
        "b": COMPLETED,
        "c": COMPLETED,
    }
    assert fleet.begun.keys() == {"b", "c"}


@pytest.mark.parametrize("scene", ["talks", "silent"])
async def test_what_runs_is_closed_and_nothing_more_is_written(
    database: TemporaryDatabase, scene: str
) -> None:
    """A result would come after the answer that there will be none; or the worker would be busy
    with it for ever.
    """
    fleet, gates = Fleet(1), Gates()
    renders = DispatchPipeline(Render, handler=gates, engine=fleet, **QUICK)
    async with PipelineManager(database.session_factory, [renders]), asyncio.timeout(HANG_S_MAX):
        await submit(database, renders, scene)
        await gates.begun.wait()
        row = await cancel(database, renders, scene)
        assert row is not None
        assert row.status == FAILED
        gates.gate.set()
        row = await given_up(fleet, database)
    assert (row.status, row.error, row.url) == (
        FAILED,
        "cancelled: it is not wanted any more",
        None,
    )
    assert (row.stages, row.losses, row.lock_owner, row.lock_expires_at) == ({}, 0, None, None)
    assert gates.steps == ([scene] if scene == "silent" else [])


async def test_it_joins_the_callers_transaction(database: TemporaryDatabase) -> None:
    """Work would be lost though the cancellation was undone, or the caller's transaction would
    be ended.
    """
    renders = pipeline_of(Fleet(1), Scenes(0), **QUICK)
    [(mine, _)] = await submit(database, renders, "a")
    async with database.session_factory() as session:
        read = await session.get_one(Render, mine.id)
        assert read.status == PENDING
        row = await renders.cancel(session, dedup_key="a", reason="of /etc/passwd")
        assert row is read
        assert (read.status, read.error) == (FAILED, "cancelled: of passwd")
        assert session.in_transaction()
        await session.rollback()
    async with PipelineManager(database.session_factory, [renders]):
        [row] = await settled(database, every_s=0.02)
    assert (row.status, row.error) == (COMPLETED, None)


async def test_the_key_is_free_at_once(database: TemporaryDatabase) -> None:
    """Who cancels to begin anew would get the row that was cancelled."""
    fleet, gates = Fleet(2), Gates()
    renders = DispatchPipeline(Render, handler=gates, engine=fleet, **QUICK)
    async with PipelineManager(database.session_factory, [renders]), asyncio.timeout(HANG_S_MAX):
        [(first, _)] = await submit(database, renders, "a")
        await gates.begun.wait()
        async with database.session_factory.begin() as session:
            await renders.cancel(session, dedup_key="a")
            second, fresh = await renders.submit(session, dedup_key="a")
            assert fresh
        renders.hint()
        gates.gate.set()
        await settled(database, every_s=0.02)
    rows = {row.id: row.status for row in await all_renders(database)}
    assert rows == {first.id: FAILED, second.id: COMPLETED}


async def test_what_is_settled_stays(database: TemporaryDatabase) -> None:
    """A picture that is there would be shown as cancelled."""
    renders = pipeline_of(Fleet(1), Scenes(0), **QUICK)
    async with PipelineManager(database.session_factory, [renders]):
        await submit(database, renders, "a")
        await settled(database, every_s=0.02)
        assert await cancel(database, renders, "a") is None
    assert (await one_render(database)).status == COMPLETED


async def test_a_session_may_have_an_engine_for_each_class(database: TemporaryDatabase) -> None:
    """A host with several databases could not cancel."""
    renders = pipeline_of(Fleet(), Scenes())
    await submit(database, renders, "a")
    sessions = async_sessionmaker(binds={Base: database.engine}, expire_on_commit=False)
    async with sessions.begin() as session:
        assert await renders.cancel(session, dedup_key="a") is not None


@pytest.mark.parametrize("act", ["submit", "cancel"])
async def test_what_the_host_has_not_written_yet_is_kept(
    database: TemporaryDatabase, act: str
) -> None:
    """A change that a session without autoflush still has in hand would be gone, without a word."""
    renders = pipeline_of(Fleet())
    [(made, _)] = await submit(database, renders, "a")
    async with async_sessionmaker(database.engine, autoflush=False)() as session:
        row = await session.get_one(Render, made.id)
        row.url = "mine"
        if act == "submit":
            assert (await renders.submit(session, dedup_key="a"))[0] is row
        else:
            assert await renders.cancel(session, dedup_key="a") is row
        await session.commit()
    assert (await one_render(database)).url == "mine"


async def test_many_at_once(database: TemporaryDatabase) -> None:
    """On SQLite those who cancel beside others would be told that the database is locked."""
    renders = pipeline_of(Fleet())
    keys = [f"{number:02}" for number in range(20)]
    await submit(database, renders, *keys)
    hasty = {"timeout": 0.05} if database.dialect_name == "sqlite" else {}
    sessions = async_sessionmaker(database.create_engine(connect_args=hasty))
    async with sessions.begin() as session:
        assert await renders.cancel(session, dedup_key=keys[0])
        clients = [asyncio.create_task(_cancel(renders, sessions, key)) for key in keys[1:]]
        # For much longer than SQLite has patience here.
        done, _ = await asyncio.wait(clients, timeout=0.5, return_when=asyncio.FIRST_EXCEPTION)
        assert [each for each in done if each.exception()] == []
    await asyncio.gather(*clients)
    assert {row.status for row in await all_renders(database)} == {FAILED}


async def _cancel(
    renders: DispatchPipeline[Render], sessions: async_sessionmaker[AsyncSession], key: str
) -> None:
    async with sessions.begin() as session:
        assert await renders.cancel(session, dedup_key=key)
