"""Rows held by a service when something goes wrong: leases that end, outages."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock import HeldByService, LeaseLost, hold_rows
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Volume, VolumePipeline
from ..pipelines.scenes import add, change, faults_of, is_free, is_renewal, read, read_all
from ..pipelines.told import Line, told
from .holding import is_let_go, is_taking, may_be_claimed
from .transactions import checked_out

AWAY = ConnectionRefusedError("the database is away")


# ---------------------------------------------------------------- renewal


@virtual_time
async def test_the_lease_is_renewed_while_the_block_runs(
    virtual_database: TemporaryDatabase,
) -> None:
    """A service that takes its time would lose its rows to a pipeline."""
    [row] = await add(virtual_database, Volume())
    async with hold_rows(
        virtual_database.session_factory, Volume, [row.id], lock_timeout=30
    ) as held:
        for _ in range(50):
            await asyncio.sleep(7)
            assert await may_be_claimed(virtual_database) == 0
            assert timedelta(seconds=17) <= held.remaining <= timedelta(seconds=27)
        async with virtual_database.session_factory.begin() as session:
            await held.guard(session)
    assert await may_be_claimed(virtual_database) == 1


@virtual_time
async def test_an_outage_that_passes_is_survived(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """One failed renewal would cost the lease, though there was time for another."""
    [row] = await add(virtual_database, Volume())
    with faults_of(virtual_database.engine) as faults:
        async with hold_rows(
            virtual_database.session_factory, Volume, [row.id], lock_timeout=30
        ) as held:
            faults.fail(AWAY)
            await asyncio.sleep(15)
            assert faults.sent
            faults.heal()
            await asyncio.sleep(60)
            async with virtual_database.session_factory.begin() as session:
                await held.guard(session)
            assert await may_be_claimed(virtual_database) == 0
    assert is_free(await read(virtual_database, row))
    assert told(caplog, "") == [
        Line("Renewing held rows failed: Volume", {"model": "Volume"}, repr(AWAY))
    ]


# ---------------------------------------------------------------- the lease is lost


@asynccontextmanager
async def held_to_the_end(
    database: TemporaryDatabase, *rows: Volume
) -> AsyncIterator[HeldByService[Volume]]:
    """Hold `rows` in a block that goes well, and at whose end the service must be told that the
    lease was lost.
    """
    holding = hold_rows(database.session_factory, Volume, [row.id for row in rows], lock_timeout=30)
    held = await holding.__aenter__()
    try:
        yield held
    except BaseException as error:
        await holding.__aexit__(type(error), error, error.__traceback__)
        raise
    with pytest.raises(LeaseLost):
        await holding.__aexit__(None, None, None)


@virtual_time
async def test_trust_ends_before_the_lease_in_an_outage(
    virtual_database: TemporaryDatabase,
) -> None:
    """A service would write to rows that another holds, since nobody could tell it that its
    lease is over.
    """
    [row] = await add(virtual_database, Volume())
    factory = virtual_database.session_factory

    async def serve() -> None:
        async with hold_rows(factory, Volume, [row.id], lock_timeout=30) as held:
            faults.fail(AWAY, when=is_renewal)
            await asyncio.sleep(26)
            async with factory.begin() as session:
                await held.guard(session)
            assert held.remaining == timedelta(seconds=1)
            await asyncio.sleep(2)
            assert held.remaining == timedelta(0)
            async with factory.begin() as session:
                with pytest.raises(LeaseLost):
                    await held.guard(session)

    lost = pytest.raises(LeaseLost, match=r"service:\w+ no longer holds the lease of row")
    with faults_of(virtual_database.engine) as faults, lost:
        await serve()


@virtual_time
async def test_a_lease_that_another_has_is_lost(virtual_database: TemporaryDatabase) -> None:
    """A service would end its work as if it had held the row, or free it for the other one."""
    [row] = await add(virtual_database, Volume())
    other: dict[str, Any] = {"lock_token": uuid.uuid4(), "lock_owner": "VolumePipeline"}
    async with held_to_the_end(virtual_database, row) as held:
        await change(virtual_database, row, **other)
        async with virtual_database.session_factory.begin() as session:
            with pytest.raises(LeaseLost) as caught:
                await held.guard(session)
        await asyncio.sleep(11)
        assert held.remaining == timedelta(0)
    assert (caught.value.pipeline, caught.value.row_id) == (held.lock_owner, str(row.id))
    after = await read(virtual_database, row)
    assert (after.lock_token, after.lock_owner) == (other["lock_token"], other["lock_owner"])
    assert after.lock_expires_at is not None


@virtual_time
async def test_one_of_several_rows_is_lost(virtual_database: TemporaryDatabase) -> None:
    """All or none would be true at the beginning only; and what is still held would not be
    freed.
    """
    lost, kept = await add(virtual_database, Volume(), Volume())
    async with held_to_the_end(virtual_database, lost, kept) as held:
        await change(virtual_database, lost, lock_token=uuid.uuid4())
        async with virtual_database.session_factory.begin() as session:
            with pytest.raises(LeaseLost):
                await held.guard(session)
        await asyncio.sleep(11)
    assert is_free(await read(virtual_database, kept))
    assert not is_free(await read(virtual_database, lost))


async def test_a_guarded_transaction_keeps_the_rows(database_with_clock: TemporaryDatabase) -> None:
    """Between the guard and the COMMIT a pipeline would take the row, and both would write it."""
    [row] = await add(database_with_clock, Volume())
    engine = database_with_clock.create_engine()
    if database_with_clock.dialect_name == "sqlite":
        event.listen(
            engine.sync_engine,
            "connect",
            lambda connection, _: connection.execute("PRAGMA busy_timeout = 1"),
        )
    factory = database_with_clock.session_factory
    async with (
        hold_rows(factory, Volume, [row.id], lock_timeout=30) as held,
        factory.begin() as session,
    ):
        await held.guard(session)
        database_with_clock.clock.advance(31)
        async with stepping(async_sessionmaker(engine), VolumePipeline()) as steps:
            try:
                claimed = await steps.fetch_once()
            except OperationalError as error:  # on SQLite the file is locked, which is as good
                claimed = [] if "locked" in str(error) else [error]
        assert claimed == []


@virtual_time
async def test_the_hold_of_no_row_is_never_lost(virtual_database: TemporaryDatabase) -> None:
    """A service whose rows are all gone would fail after half a minute, and not before."""
    await add(virtual_database, Volume())
    async with hold_rows(virtual_database.session_factory, Volume, []) as held:
        await asyncio.sleep(60)
        async with virtual_database.session_factory.begin() as session:
            await held.guard(session)


@virtual_time
async def test_a_service_may_delete_what_it_holds(virtual_database: TemporaryDatabase) -> None:
    """A service that deletes its row, as it may, would be told that its work was in vain."""
    [row] = await add(virtual_database, Volume())
    async with hold_rows(virtual_database.session_factory, Volume, [row.id]) as held:
        async with virtual_database.session_factory.begin() as session:
            await held.guard(session)
            await session.delete(held.rows[0])
        await asyncio.sleep(15)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("also", ["nothing", "the lease is lost", "the database is away"])
@virtual_time
async def test_an_error_of_the_block_comes_out(
    virtual_database: TemporaryDatabase, also: str
) -> None:
    """What went wrong in the service would be hidden behind what went wrong in letting go."""
    [row] = await add(virtual_database, Volume())

    async def serve() -> None:
        async with hold_rows(virtual_database.session_factory, Volume, [row.id], lock_timeout=30):
            if also == "the lease is lost":
                await change(virtual_database, row, lock_token=uuid.uuid4())
                await asyncio.sleep(11)
            if also == "the database is away":
                faults.fail(AWAY)
            raise LookupError("the service")

    with (
        faults_of(virtual_database.engine) as faults,
        pytest.raises(LookupError, match="the service"),
    ):
        await serve()
    assert is_free(await read(virtual_database, row)) == (also == "nothing")


async def test_rows_that_could_not_be_freed_expire(
    database_with_clock: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A service that has done its work would be told that it failed, because the lease could not
    be released.
    """
    database = database_with_clock
    [row] = await add(database, Volume())
    with faults_of(database.engine) as faults:
        async with hold_rows(database.session_factory, Volume, [row.id], lock_timeout=30):
            faults.fail(AWAY, when=is_let_go)
    text = "Held rows were not freed and stay leased until they expire: Volume"
    assert told(caplog, "") == [Line(text, {"model": "Volume"}, repr(AWAY))]
    assert await may_be_claimed(database) == 0
    database.clock.advance(30)
    assert await may_be_claimed(database) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_error_while_taking_leaves_nothing(
    database: TemporaryDatabase, moment: str
) -> None:
    """After an answer that was lost, a service would keep rows that it does not know of."""
    rows = await add(database, Volume(), Volume())
    entered = False
    with faults_of(database.engine) as faults:
        if moment == "before":
            faults.fail(ConnectionResetError("cut"), when=is_taking)
        else:
            faults.lose_answers_of_commits(when=is_taking)
        with pytest.raises(ConnectionResetError):
            async with hold_rows(database.session_factory, Volume, [row.id for row in rows]):
                entered = True
    assert not entered
    assert all(is_free(row) for row in await read_all(database, Volume))
    assert checked_out(database.engine) == 0
