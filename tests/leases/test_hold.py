"""Rows held by a service: all or none, waited for without a connection."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, insert, select

from rowlock import (
    HeldByService,
    LockWaitTimeout,
    Park,
    PipelineError,
    Reset,
    hold_rows,
    pipeline_hinter,
)
from rowlock.leases.acquire import ACQUIRED_ROWS_MAX
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Base, Run, RunPipeline, Volume, VolumePipeline
from ..pipelines.scenes import add, change, is_free, read, read_all, replica
from .holding import is_look, passing
from .transactions import checked_out


async def hold_and_read(
    database: TemporaryDatabase, *rows: Volume, **options: Any
) -> HeldByService[Volume]:
    ids = [row.id for row in rows]
    async with hold_rows(database.session_factory, Volume, ids, **options) as held:
        return held


# ---------------------------------------------------------------- what is held


async def test_held_rows_are_leased_to_the_service(database_with_clock: TemporaryDatabase) -> None:
    """Nobody could see in the table who holds a row, and until when."""
    rows = await add(database_with_clock, Volume(), Volume(), Volume())
    async with hold_rows(
        database_with_clock.session_factory, Volume, [row.id for row in rows], owner="api"
    ) as held:
        assert [row.id for row in held.rows] == sorted(row.id for row in rows)
        assert held.lock_owner.startswith("api:")
        for now in await read_all(database_with_clock, Volume):
            leased = (now.lock_token, now.lock_owner, now.lock_expires_at)
            assert leased == (
                held.lock_token,
                held.lock_owner,
                database_with_clock.clock.now + timedelta(seconds=30),
            )
            assert now.last_processed_at is None
    assert all(is_free(row) for row in await read_all(database_with_clock, Volume))


async def test_the_rows_are_fresh_and_detached(database: TemporaryDatabase) -> None:
    """A service would decide on what the row was before it had it."""
    [row] = await add(database, Volume())
    await change(database, row, status="changed")
    held = await hold_and_read(database, row)
    assert held.rows[0].status == "changed"
    assert held.rows[0] is not row
    assert held.rows[0].lock_token == held.lock_token


async def test_all_or_none(database: TemporaryDatabase) -> None:
    """A service would hold some rows while it waits for others, and two services could wait for
    each other.
    """
    busy, free = await add(database, Volume(), Volume())
    async with hold_rows(database.session_factory, Volume, [busy.id]) as held:
        with pytest.raises(LockWaitTimeout):
            await hold_and_read(database, busy, free, timeout=0)
        assert is_free(await read(database, free))
        assert (await read(database, busy)).lock_token == held.lock_token


async def test_missing_rows_are_passed_over(database: TemporaryDatabase) -> None:
    """A row that was deleted meanwhile would keep a service from the others."""
    [row] = await add(database, Volume())
    async with hold_rows(
        database.session_factory, Volume, [uuid.uuid4(), row.id, row.id], timeout=0
    ) as held:
        assert [one.id for one in held.rows] == [row.id]
        async with database.session_factory.begin() as session:
            await held.guard(session)
    assert is_free(await read(database, row))


async def test_nothing_to_hold(database: TemporaryDatabase) -> None:
    """A service that was asked about no row would fail, or hold them all."""
    [row] = await add(database, Volume())
    async with hold_rows(database.session_factory, Volume, [], timeout=0) as held:
        assert held.rows == []
        assert is_free(await read(database, row))


async def test_as_many_rows_as_are_allowed(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit would be higher than what a statement of the database takes."""
    monkeypatch.setattr("rowlock.services.hold.DATABASE_TIMEOUT", timedelta(minutes=5))
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        await session.execute(insert(Run), [{"id": number} for number in range(ACQUIRED_ROWS_MAX)])
    rows = range(ACQUIRED_ROWS_MAX)
    async with hold_rows(database.session_factory, Run, rows, lock_timeout=3600) as held:
        assert len(held.rows) == ACQUIRED_ROWS_MAX
        async with database.session_factory.begin() as session:
            await held.guard(session)
    async with database.session_factory() as session:
        assert await session.scalar(select(func.count()).where(Run.lock_token.is_not(None))) == 0


# ---------------------------------------------------------------- waiting


async def test_it_waits_for_the_outcome_of_an_item(database: TemporaryDatabase) -> None:
    """A service would get a row under the hands of a pipeline, or never."""
    [row] = await add(database, Volume())
    async with stepping(replica(database), VolumePipeline()) as steps:
        await steps.fetch_once()
        with passing(database.engine, is_look) as looks:
            waiting = asyncio.create_task(hold_and_read(database, row, timeout=60))
            await looks.wait_for(2)
            assert not waiting.done()
            assert (await read(database, row)).lock_owner == "VolumePipeline"
            await steps.work_once()
            held = await waiting
    assert held.rows[0].status == "active"


@pytest.mark.parametrize(
    ("row", "pipeline"),
    [(Volume(), VolumePipeline(answer=Reset())), (Run(id=1), RunPipeline(answer=Park("no disk")))],
    ids=["reset", "parked"],
)
async def test_a_row_that_nobody_works_on_is_to_be_had(
    database: TemporaryDatabase, row: Any, pipeline: Any
) -> None:
    """A row that was reset or set aside would be out of a service's reach."""
    [row] = await add(database, type(row)(id=row.id))
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
    before = await read(database, row)
    async with hold_rows(database.session_factory, type(row), [row.id], timeout=0) as held:
        assert len(held.rows) == 1
    after = await read(database, row)
    # A pipeline that waits for the row does so still.
    assert (after.lock_token, after.lock_expires_at, after.lock_owner) == (
        None,
        None,
        before.lock_owner,
    )


@virtual_time
async def test_it_waits_no_longer_than_it_was_told(virtual_database: TemporaryDatabase) -> None:
    """A request would time out at its client before the service gave up, or the service would
    give up too early.
    """
    [row] = await add(virtual_database, Volume())
    loop = asyncio.get_running_loop()
    async with hold_rows(virtual_database.session_factory, Volume, [row.id]):
        for timeout in (0, 2.5, timedelta(seconds=7)):
            began = loop.time()
            with pytest.raises(LockWaitTimeout) as caught:
                await hold_and_read(virtual_database, row, timeout=timeout)
            wanted = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
            assert loop.time() - began == pytest.approx(wanted)
            assert caught.value.timeout_s == wanted


@virtual_time
async def test_the_last_moment_counts(virtual_database: TemporaryDatabase) -> None:
    """A row that becomes free just before the time is up would be refused."""
    [row] = await add(virtual_database, Volume())
    loop = asyncio.get_running_loop()
    async with hold_rows(virtual_database.session_factory, Volume, [row.id]):
        waiting = asyncio.create_task(hold_and_read(virtual_database, row, timeout=10.05))
        await asyncio.sleep(10.04)
    freed_at = loop.time()
    await waiting
    assert loop.time() - freed_at <= 0.02


@virtual_time
async def test_no_connection_is_held_while_it_waits_and_inside(
    virtual_database: TemporaryDatabase,
) -> None:
    """A few slow requests would empty the pool of the whole service."""
    [row] = await add(virtual_database, Volume())
    engine = virtual_database.engine
    async with hold_rows(virtual_database.session_factory, Volume, [row.id]):
        waiting = asyncio.create_task(hold_and_read(virtual_database, row, timeout=60))
        for _ in range(200):
            await asyncio.sleep(0.0637)
            assert checked_out(engine) == 0
    await waiting
    assert checked_out(engine) == 0


# ---------------------------------------------------------------- pipelines


@virtual_time
async def test_it_looks_often_at_first_and_then_less(virtual_database: TemporaryDatabase) -> None:
    """Services that wait would keep the database busy with asking; or one that waits for a
    moment would wait for long.
    """
    [row] = await add(virtual_database, Volume())
    async with hold_rows(virtual_database.session_factory, Volume, [row.id]):
        with passing(virtual_database.engine, is_look) as looks:

            async def wait() -> None:
                async with hold_rows(
                    virtual_database.session_factory, Volume, [row.id], timeout=60
                ):
                    pytest.fail("it is held")

            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0.2)
            assert 3 <= looks.count <= 5
            with pytest.raises(LockWaitTimeout):
                await waiting
            assert 120 <= looks.count <= 160, "twice a second, give or take a fifth"


@pytest.mark.parametrize("lock_timeout", [0.1, timedelta(seconds=0.1), 3600])
@virtual_time
async def test_how_long_the_lease_lasts_is_the_services_to_say(
    virtual_database: TemporaryDatabase, lock_timeout: timedelta | float
) -> None:
    """A service that dies would keep its rows for longer than it said, or lose them at once."""
    [row] = await add(virtual_database, Volume())
    wanted = (
        lock_timeout if isinstance(lock_timeout, timedelta) else timedelta(seconds=lock_timeout)
    )
    async with hold_rows(
        virtual_database.session_factory, Volume, [row.id], lock_timeout=lock_timeout
    ) as held:
        assert held.remaining == pytest.approx(wanted * 0.9, abs=timedelta(microseconds=10))
        [kept] = held.rows
        assert kept.lock_expires_at - virtual_database.clock.now == wanted


async def test_the_guard_shows_what_is_there(database: TemporaryDatabase) -> None:
    """A service that had read the row before it was held would compute from what it was."""
    [row] = await add(database, Volume())
    async with database.session_factory() as session:
        before = await session.get(Volume, row.id)
        await session.commit()
        await change(database, row, size_gb=50)
        async with hold_rows(database.session_factory, Volume, [row.id]) as held:
            [fresh] = await held.guard(session)
            assert fresh is before
            assert fresh.size_gb == 50
            await session.commit()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_transaction_that_is_still_open_is_an_error(
    database: TemporaryDatabase, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What is committed after the block was not written under the lease; and letting go, which
    would wait for that transaction, is left to the end of the lease, however the block ends.
    """
    [row] = await add(database, Volume())
    async with database.session_factory() as session:

        async def serve() -> None:
            async with hold_rows(database.session_factory, Volume, [row.id]) as held:
                await held.guard(session)
                if fails:
                    raise PipelineError("no")

        with pytest.raises(PipelineError) as raised:
            await serve()
        await session.rollback()
    assert str(raised.value).startswith("no" if fails else "a guarded transaction is still open")
    assert not is_free(await read(database, row))
    assert caplog.records == []


async def test_pipelines_are_hinted_when_the_rows_are_free(database: TemporaryDatabase) -> None:
    """A hint that came while the rows were held has found nothing; they would wait for a poll."""
    [row] = await add(database, Volume())
    hinted: list[bool] = []

    def look() -> None:
        hinted.append(True)

    pipeline_hinter.attach("Volume", look)
    try:
        async with hold_rows(database.session_factory, Volume, [row.id]):
            assert not hinted
    finally:
        pipeline_hinter.detach("Volume", look)
    assert hinted == [True]


async def test_a_service_may_guard_again_after_it_has_deleted_a_row(
    database: TemporaryDatabase,
) -> None:
    """A service that deletes one of two rows could not go on with the other."""
    rows = [Volume(), Volume()]
    await add(database, *rows)
    async with hold_rows(database.session_factory, Volume, [row.id for row in rows]) as held:
        for row in rows:
            async with database.session_factory.begin() as session:
                await held.guard(session)
                await session.delete(await session.get(Volume, row.id))
