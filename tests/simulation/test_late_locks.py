"""Locks that are taken too late: when the outcome is on its way, or when the main row is no
longer the item's.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from rowlock import LeaseLost, Outcome, PipelineItem, Retry
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from .busy import BusyFleets, put
from .tables import Fleet, Instance

TURNS = 45
"""More than a transaction that locks rows and one that writes an outcome take together."""


async def owners(database: TemporaryDatabase) -> list[str | None]:
    async with database.session_factory() as session:
        return list(await session.scalars(select(Instance.lock_owner)))


async def lock_after(turns: int, item: PipelineItem[Any]) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    await item.lock_related(Instance, Instance.fleet_id == item.id)


@pytest.mark.parametrize("outcome", [None, Retry(error="planned")])
@pytest.mark.parametrize("lock_goes_first", [True, False])
@virtual_time
async def test_a_lock_that_process_leaves_behind_is_freed_with_the_outcome(
    virtual_database: TemporaryDatabase, outcome: Outcome | None, lock_goes_first: bool
) -> None:
    """A lock that is taken while the outcome is written would stay until it expires, whichever
    comes first.
    """
    left: list[asyncio.Task[Any]] = []
    await put(virtual_database, Fleet(id=1), Instance(id=1, fleet_id=1))

    for turns in range(TURNS):

        async def leave(item: PipelineItem[Any], turns: int = turns) -> Outcome | None:
            left.append(asyncio.create_task(lock_after(0 if lock_goes_first else turns, item)))
            for _ in range(turns if lock_goes_first else 0):
                await asyncio.sleep(0)
            return outcome

        async with stepping(virtual_database.session_factory, BusyFleets(leave)) as steps:
            assert await steps.fetch_once(), turns
            await steps.work_once()
            await asyncio.wait(left)
            assert await owners(virtual_database) == [None], f"after {turns} turns"
        await asyncio.sleep(10)
    ends = [task.exception() for task in left]
    assert any(end is None for end in ends)
    assert any(isinstance(end, LeaseLost) for end in ends) is not lock_goes_first


@virtual_time
async def test_an_attempt_that_was_left_behind_locks_nothing_more(
    virtual_database: TemporaryDatabase,
) -> None:
    """Code that ignores its cancellation would lock rows until its lease ends, though nothing
    comes of it any more.
    """
    await put(virtual_database, Fleet(id=1), Instance(id=1, fleet_id=1))
    is_abandoned, refusals = asyncio.Event(), list[LeaseLost]()

    async def ignore(item: PipelineItem[Any]) -> None:
        await item.lock_related(Instance, Instance.fleet_id == 0)
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await is_abandoned.wait()
        with pytest.raises(LeaseLost) as refused:
            await item.lock_related(Instance, Instance.fleet_id == item.id)
        refusals.append(refused.value)

    pipeline = BusyFleets(ignore, process_timeout=1, cancel_grace=1)
    async with stepping(virtual_database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        item = await steps.work_once()
        assert item.is_trusted()
        is_abandoned.set()
        await asyncio.sleep(1)
    assert len(refusals) == 1
    assert await owners(virtual_database) == [None]


@pytest.mark.parametrize(
    "statement", [delete(Fleet), update(Fleet).values(lock_token=uuid.UUID(int=1))]
)
@virtual_time
async def test_nothing_is_locked_for_a_main_row_that_is_not_the_items_any_more(
    virtual_database: TemporaryDatabase, statement: Any
) -> None:
    """Related rows would be locked under a token that no main row has, and that nobody would
    free.
    """
    refusals: list[LeaseLost] = []
    await put(virtual_database, Fleet(id=1), Instance(id=1, fleet_id=1))

    async def lock_late(item: PipelineItem[Any]) -> None:
        async with virtual_database.session_factory.begin() as session:
            await session.execute(statement)
        with pytest.raises(LeaseLost) as refused:
            await item.lock_related(Instance, Instance.fleet_id == item.id)
        refusals.append(refused.value)

    async with stepping(virtual_database.session_factory, BusyFleets(lock_late)) as steps:
        await steps.fetch_once()
        await steps.work_once()
    assert len(refusals) == 1
    assert await owners(virtual_database) == [None]


@virtual_time
async def test_a_holder_that_lost_its_main_row_frees_what_it_had_locked(
    virtual_database: TemporaryDatabase,
) -> None:
    """Children of a row that was deleted would wait for an expiry, although their holder knows
    that it holds nothing.
    """
    await put(virtual_database, Fleet(id=1), Instance(id=1, fleet_id=1))
    locked = asyncio.Event()

    async def hang(item: PipelineItem[Any]) -> None:
        await item.lock_related(Instance, Instance.fleet_id == item.id)
        locked.set()
        await asyncio.Event().wait()

    async with stepping(virtual_database.session_factory, BusyFleets(hang)) as steps:
        await steps.fetch_once()
        working = asyncio.create_task(steps.work_once())
        await locked.wait()
        async with virtual_database.session_factory.begin() as session:
            await session.execute(delete(Fleet))
        await asyncio.sleep(3)
        await steps.beat_once()
        await working
    assert await owners(virtual_database) == [None]
