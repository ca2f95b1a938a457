"""Tests of transactions that hang: they end in time, and say so."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import tasks as shielding
from rowlock.errors import TransactionTimeout
from rowlock.tasks import finish
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Run
from ..pipelines.told import Line, told
from .ground import RUNS, add, row_of
from .transactions import checked_out, file_may_be_written, run_in

# ---------------------------------------------------------------- bounded in time


async def hang(session: AsyncSession, connection: AsyncConnection) -> None:
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
    assert shielding._overdue == set()


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
        sleeping = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state ="
            " 'active'"
        )
        assert await connection.scalar(text(sleeping)) == 0


@virtual_time
async def test_what_ignores_its_cancellation_is_left_behind(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver that does not listen would hang the pipeline all the same; its late error would
    be told by nobody.
    """
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
    assert loop.time() - started_at == 7 + shielding.CANCEL_WAIT_S_MAX
    (overdue,) = shielding._overdue
    answered.set()
    with pytest.raises(LookupError):
        await overdue
    await asyncio.sleep(0)
    assert shielding._overdue == set()
    text = "An overdue transaction failed in the end: rowlock: take a step"
    assert told(caplog, "") == [Line(text, {"task": "rowlock: take a step"}, "LookupError('late')")]


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

    assert (
        await run_in(virtual_database.session_factory, late, timeout=timedelta(seconds=7)) == "late"
    )
    assert (await row_of(virtual_database, RUNS, 1)).status == "written"


@virtual_time
async def test_a_cancelled_caller_of_a_hanging_transaction_is_cancelled(
    virtual_database: TemporaryDatabase,
) -> None:
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

        task = asyncio.ensure_future(
            run_in(virtual_database.session_factory, hang_twice, timeout=timedelta(seconds=7))
        )
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
