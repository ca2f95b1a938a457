"""Services that are cancelled while they take, hold or let go of rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock import get_locker, hold_rows
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Volume
from ..pipelines.scenes import add, faults_of, is_free, is_renewal, read, read_all, turns
from .holding import passing
from .transactions import BOUNDARIES, checked_out


async def use(factory: Any, ids: list[Any]) -> None:
    """Hold rows as a service does. Its own transactions are not there: on SQLite, to cancel one
    is to lock the file.
    """
    async with hold_rows(factory, Volume, ids, timeout=30):
        await turns(3)


async def _nothing_is_left(database: TemporaryDatabase, factory: Any) -> None:
    assert checked_out(factory.kw["bind"]) == 0
    assert all(is_free(row) for row in await read_all(database, Volume))
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("rowlock")] == []
    if database.dialect_name == "sqlite":
        assert len(get_locker("sqlite").get_lockset("volumes")[1]) == 0
    async with database.session_factory.begin() as session:
        await session.execute(text("UPDATE volumes SET size_gb = size_gb"))


@pytest.mark.parametrize("times", [1, 10])
@virtual_time
async def test_cancelled_in_any_turn_of_the_loop(
    virtual_database: TemporaryDatabase, times: int
) -> None:
    """A request that is cancelled would leave its rows leased for a whole lock_timeout, or a
    connection in use.
    """
    rows = await add(virtual_database, Volume(), Volume())
    ids = [row.id for row in rows]
    turns_before = 0
    while True:
        task = asyncio.create_task(use(virtual_database.session_factory, ids))
        await turns(turns_before)
        if task.done():
            break
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        await _nothing_is_left(virtual_database, virtual_database.session_factory)
        turns_before += 1
    await task
    assert turns_before > 40  # taking and letting go are two transactions of many turns


async def test_cancelled_at_every_statement(database: TemporaryDatabase) -> None:
    """Right before or after a COMMIT, a cancelled request would forget what it has taken."""
    rows = await add(database, Volume(), Volume())
    ids = [row.id for row in rows]
    assert await _cancelled_everywhere(database, lambda factory: use(factory, ids)) > 10


async def test_a_cancelled_transaction_of_the_service(
    postgresql_database: TemporaryDatabase,
) -> None:
    """The row lock of a guard would stand in the way of letting go."""
    [row] = await add(postgresql_database, Volume())

    async def serve(factory: Any) -> None:
        async with hold_rows(factory, Volume, [row.id]) as held, factory.begin() as session:
            await held.guard(session)
            await session.execute(text("UPDATE volumes SET size_gb = size_gb + 1"))

    assert await _cancelled_everywhere(postgresql_database, serve) > 15


async def _cancelled_everywhere(
    database: TemporaryDatabase, serve: Callable[[Any], Awaitable[None]]
) -> int:
    """Cancel `serve` at each boundary of a statement in turn, and return at how many; nothing
    may be left each time.
    """
    struck_at, hit = 0, True
    while hit:
        factory = async_sessionmaker(database.create_engine())
        task = asyncio.ensure_future(serve(factory))
        was_hit = _cancel_at(factory, task, boundary=struck_at)
        await asyncio.wait({task})
        hit = was_hit()
        assert task.cancelled() is hit
        await _nothing_is_left(database, factory)
        await factory.kw["bind"].dispose()
        struck_at += 1
    return struck_at


def _cancel_at(factory: Any, task: asyncio.Future[Any], *, boundary: int) -> Callable[[], bool]:
    passed = 0

    def strike(*_: Any) -> None:
        nonlocal passed
        passed += 1
        if passed == boundary + 1:
            task.cancel()

    for name in BOUNDARIES:
        event.listen(factory.kw["bind"].sync_engine, name, strike)
    return lambda: passed > boundary


@virtual_time
async def test_cancelled_while_it_waits(virtual_database: TemporaryDatabase) -> None:
    """Who gives up waiting would take the row all the same, or free it under the holder's hands."""
    [row] = await add(virtual_database, Volume())
    async with hold_rows(virtual_database.session_factory, Volume, [row.id]) as held:
        for number in range(40):
            task = asyncio.create_task(use(virtual_database.session_factory, [row.id]))
            await asyncio.sleep(number * 0.0301)
            await turns(number % 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await read(virtual_database, row)).lock_token == held.lock_token
            assert checked_out(virtual_database.engine) == 0


@virtual_time
async def test_cancelled_in_the_middle_of_a_renewal(virtual_database: TemporaryDatabase) -> None:
    """A connection would be in use after the request that used it has ended."""
    [row] = await add(virtual_database, Volume())
    leave = asyncio.Event()

    async def hold() -> None:
        async with hold_rows(virtual_database.session_factory, Volume, [row.id], lock_timeout=3):
            await leave.wait()

    engine = virtual_database.engine
    with passing(engine, is_renewal) as renewals, faults_of(engine) as faults:
        faults.hang(when=is_renewal)
        task = asyncio.create_task(hold())
        await renewals.wait_for(1)
        leave.set()
        await turns()
        task.cancel()
        await asyncio.wait({task})
        left = checked_out(engine)
        faults.heal()
    await asyncio.sleep(30)
    assert left == 0
