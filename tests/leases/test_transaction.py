"""Transactions that end: whoever is cancelled, no lock and no connection is left behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.errors import PipelineError
from rowlock.leases.claim import claim
from rowlock.testing import TemporaryDatabase

from ..host import Run, Volume
from ..pipelines.told import Line, told
from .ground import MARGIN, RUNS, VOLUMES, add, order_for, row_of
from .transactions import (
    BOUNDARIES,
    CANCELS_IN_A_ROW,
    TIMEOUT,
    checked_out,
    may_write,
    run_in,
    write_both,
)


@pytest.fixture
def without_collector() -> Iterator[None]:
    """The garbage collector is off: it would clean up what the code under test leaves behind."""
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
    """Run `step` and cancel it when its engine passes boundary number `at`; return whether it
    was struck, and whether cancelled.
    """
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
    """Cancel `step` at each boundary in turn until there is none left; return how many there
    were.
    """
    at = 0
    while True:
        hit, cancelled = await struck(database, step, at=at, times=times)
        assert cancelled is hit, (
            "a cancelled caller must not go on, and nobody else must be cancelled"
        )
        await check()
        if not hit:
            return at
        at += 1


@pytest.mark.databases_in_turn
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
                text(
                    "UPDATE volumes SET lock_token = NULL, lock_owner = NULL, lock_expires_at ="
                    " NULL"
                )
            )

    assert await strike_everywhere(database, step, check, times=1) >= 4


async def test_cancelled_before_it_runs(database: TemporaryDatabase) -> None:
    """A cancellation in the first turn of the loop would leave a transaction that nobody waits
    for.
    """
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


@pytest.mark.parametrize("writes", [True, False])
async def test_the_error_of_a_cancelled_callers_transaction_is_told(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, *, writes: bool
) -> None:
    """A failure would vanish because its caller was stopped meanwhile; or a viewer who went away
    would leave a traceback in the log, though nothing was lost.
    """
    await add(database, Run(id=1))
    entered = asyncio.Event()
    go = asyncio.Event()

    async def fail(session: AsyncSession, connection: AsyncConnection) -> None:
        entered.set()
        await go.wait()
        raise LookupError("host")

    caplog.set_level("WARNING", "rowlock")
    task = asyncio.ensure_future(run_in(database.session_factory, fail, writes=writes))
    await entered.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    text = "The transaction of a cancelled caller failed: take a step"
    line = Line(text, {"purpose": "take a step"}, "LookupError('host')")
    assert told(caplog, "") == ([line] if writes else [])


async def test_a_cancellation_from_within_is_an_error(database: TemporaryDatabase) -> None:
    """A worker would die of a cancellation that was not its own."""
    await add(database, Run(id=1))

    async def cancelled(session: AsyncSession, connection: AsyncConnection) -> None:
        raise asyncio.CancelledError

    with pytest.raises(
        PipelineError, match="the transaction to take a step was cancelled from within"
    ):
        await run_in(database.session_factory, cancelled)
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0
    assert checked_out(database.engine) == 0
