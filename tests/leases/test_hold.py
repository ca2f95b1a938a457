"""Rows held by a service: all or none, waited for without a connection, left alone by pipelines,
free after the block.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import (
    ConfigurationError,
    HeldByService,
    LockWaitTimeout,
    ModelError,
    Park,
    Reset,
    hold_rows,
)
from rowlock.leases.acquire import ACQUIRED_ROWS_MAX
from rowlock.locks.locker import get_locker
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Attachment, Base, Run, RunPipeline, Volume, VolumePipeline
from ..pipelines.scenes import add, change, is_free, read, read_all, replica
from .holding import is_look, may_be_claimed, passing
from .transactions import checked_out


async def hold_and_read(
    database: TemporaryDatabase, *rows: Volume, **options: Any
) -> HeldByService[Volume]:
    """Hold `rows` for a moment, and return what was held."""
    ids = [row.id for row in rows]
    async with hold_rows(database.session_factory, Volume, ids, **options) as held:
        return held


# ---------------------------------------------------------------- what is held


async def test_held_rows_are_leased_to_the_service(database_with_clock: TemporaryDatabase) -> None:
    """Nobody could see in the table who holds a row, and until when."""
    database = database_with_clock
    assert database.clock is not None
    rows = await add(database, Volume(), Volume(), Volume())
    async with hold_rows(
        database.session_factory, Volume, [row.id for row in rows], owner="api"
    ) as held:
        assert [row.id for row in held.rows] == sorted(row.id for row in rows)
        assert held.lock_owner.startswith("api:")
        for now in await read_all(database, Volume):
            leased = (now.lock_token, now.lock_owner, now.lock_expires_at)
            assert leased == (
                held.lock_token,
                held.lock_owner,
                database.clock.now + timedelta(seconds=30),
            )
            assert now.last_processed_at is None
    assert all(is_free(row) for row in await read_all(database, Volume))


async def test_the_rows_are_fresh_and_detached(database: TemporaryDatabase) -> None:
    """A service would decide on what the row was before it had it."""
    [row] = await add(database, Volume())
    await change(database, row, status="changed")
    held = await hold_and_read(database, row)
    assert held.rows[0].status == "changed"
    assert held.rows[0] is not row
    assert held.rows[0].lock_token == held.lock_token


async def test_two_holds_of_one_service_are_two_holders(database: TemporaryDatabase) -> None:
    """Two requests to one API would work on a row at once."""
    [row] = await add(database, Volume())
    async with hold_rows(database.session_factory, Volume, [row.id]):
        with pytest.raises(LockWaitTimeout):
            await hold_and_read(database, row, timeout=0)
    await hold_and_read(database, row, timeout=0)


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


async def test_as_many_rows_as_are_allowed(database: TemporaryDatabase) -> None:
    """The limit would be higher than what a statement of the database takes."""
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        await session.execute(insert(Run), [{"id": number} for number in range(ACQUIRED_ROWS_MAX)])
    async with hold_rows(database.session_factory, Run, range(ACQUIRED_ROWS_MAX)) as held:
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


async def test_others_work_meanwhile_with_the_only_connection(database: TemporaryDatabase) -> None:
    """Who waits for a row, or holds one, would keep the last connection from everybody else."""
    [row] = await add(database, Volume())
    engine = database.create_engine(pool_size=1, max_overflow=0, pool_timeout=5)
    factory = async_sessionmaker(engine, expire_on_commit=False)
    order: list[str] = []

    async def wait_for_the_row() -> None:
        async with hold_rows(factory, Volume, [row.id], timeout=60):
            order.append("held")

    with passing(engine, is_look) as looks:
        async with hold_rows(factory, Volume, [row.id]):
            waiting = asyncio.create_task(wait_for_the_row())
            await looks.wait_for(2)
            for number in range(10):
                async with factory.begin() as session:
                    (await session.get_one(Volume, row.id)).size_gb = number
            order.append("worked")
        await waiting
    assert order == ["worked", "held"]


# ---------------------------------------------------------------- who holds it


async def test_the_refusal_says_who_and_for_how_long(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A host could not tell its client when to come back; by its own clock it would tell it
    wrongly.
    """
    database = database_with_clock
    assert database.clock is not None
    [row] = await add(database, Volume())
    async with stepping(database.session_factory, VolumePipeline(lock_timeout=30)) as steps:
        await steps.fetch_once()
        database.clock.advance(4)
        with pytest.raises(LockWaitTimeout, match="held by VolumePipeline") as caught:
            await hold_and_read(database, row, timeout=0)
    assert (caught.value.holder, caught.value.seconds_left) == ("VolumePipeline", 26.0)
    assert (caught.value.namespace, caught.value.keys) == ("Volume", (row.id,))


async def test_the_refusal_names_who_holds_longest(database_with_clock: TemporaryDatabase) -> None:
    """A client would come back when the first of several holders has gone, in vain."""
    database = database_with_clock
    assert database.clock is not None
    short, long, free = await add(database, Volume(), Volume(), Volume())
    expired = database.clock.now - timedelta(hours=1)
    await change(
        database, free, lock_token=uuid.uuid4(), lock_owner="long gone", lock_expires_at=expired
    )
    factory = database.session_factory
    async with (
        hold_rows(factory, Volume, [short.id], lock_timeout=20, owner="short"),
        hold_rows(factory, Volume, [long.id], lock_timeout=50, owner="long") as held,
    ):
        with pytest.raises(LockWaitTimeout) as caught:
            await hold_and_read(database, short, long, free, timeout=0)
        assert (caught.value.holder, caught.value.seconds_left) == (held.lock_owner, 50.0)


async def test_a_lockset_holds_rows_too(sqlite_database: TemporaryDatabase) -> None:
    """On SQLite a row would be changed by a service while others of the process hold its lock."""
    row, other = await add(sqlite_database, Volume(), Volume())
    async with get_locker("sqlite").lock_ctx("volumes", [row.id]):
        with pytest.raises(LockWaitTimeout) as caught:
            await hold_and_read(sqlite_database, row, timeout=0)
        assert (caught.value.holder, caught.value.seconds_left) == (None, None)
        await hold_and_read(sqlite_database, other, timeout=0)
    await hold_and_read(sqlite_database, row, timeout=0)


@virtual_time
async def test_whoever_is_inside_the_lockset_decides_alone(
    virtual_database: TemporaryDatabase,
) -> None:
    """A service would take a row that somebody inside the lockset has just seen to be free."""
    [row] = await add(virtual_database, Volume())
    lock, _ = get_locker("sqlite").get_lockset("volumes")
    async with lock:
        waiting = asyncio.create_task(hold_and_read(virtual_database, row))
        await asyncio.sleep(3)
        assert is_free(await read(virtual_database, row))
        assert not waiting.done()
        with pytest.raises(LockWaitTimeout):
            await hold_and_read(virtual_database, row, timeout=0)
    await waiting


async def test_a_locked_row_is_held_by_somebody(postgresql_database: TemporaryDatabase) -> None:
    """A request would hang in the database for as long as somebody's transaction lasts."""
    [row] = await add(postgresql_database, Volume())
    async with postgresql_database.session_factory.begin() as session:
        await session.execute(select(Volume).with_for_update())
        with pytest.raises(LockWaitTimeout) as caught:
            await hold_and_read(postgresql_database, row, timeout=0)
        assert (caught.value.holder, caught.value.seconds_left) == (None, None)


async def test_a_new_child_of_the_row_holds_nobody_up(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Whoever inserts a child shares the key of its parent; a full lock would wait for that
    transaction.
    """
    [row] = await add(postgresql_database, Volume())
    async with postgresql_database.session_factory.begin() as session:
        session.add(Attachment(volume_id=row.id))
        await session.flush()
        factory = postgresql_database.session_factory
        async with (
            hold_rows(factory, Volume, [row.id], timeout=0) as held,
            factory.begin() as another,
        ):
            await held.guard(another)


# ---------------------------------------------------------------- pipelines


async def test_a_pipeline_leaves_held_rows_alone(database: TemporaryDatabase) -> None:
    """A pipeline would work on a row while a service changes what it works on."""
    rows = await add(database, Volume(), Volume())
    factory = database.session_factory
    async with (
        hold_rows(factory, Volume, [rows[0].id]),
        stepping(factory, VolumePipeline()) as steps,
    ):
        assert [item.id for item in await steps.fetch_once()] == [rows[1].id]
    assert await may_be_claimed(database) == 2


async def test_a_dead_service_holds_until_its_lease_ends(
    database_with_clock: TemporaryDatabase,
) -> None:
    """The rows of a service that died would be lost for good, or cost an attempt that was never
    made.
    """
    database = database_with_clock
    assert database.clock is not None
    [row] = await add(database, Volume())
    async with hold_rows(database.session_factory, Volume, [row.id], lock_timeout=30):
        left = await read(database, row)
    # As it was in the middle of the block, when the process died.
    await change(
        database,
        row,
        lock_token=left.lock_token,
        lock_owner=left.lock_owner,
        lock_expires_at=left.lock_expires_at,
    )
    database.clock.advance(29)
    assert await may_be_claimed(database) == 0
    database.clock.advance(1)
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        assert (item.id, item.attempt, item.prev_lock_expired) == (row.id, 1, False)
        await steps.work_once()
    assert (await read(database, row)).status == "active"


async def test_a_row_without_a_live_lease_may_be_anybodys(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A service would wait for ever for a pipeline that died, or that is not deployed any more."""
    database = database_with_clock
    assert database.clock is not None
    [row] = await add(database, Volume())
    await change(
        database,
        row,
        lock_token=uuid.uuid4(),
        lock_owner="Gone",
        lock_expires_at=database.clock.now,
    )
    held = await hold_and_read(database, row, timeout=0)
    assert held.rows[0].lock_token == held.lock_token


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("ids", ["abc", b"abc", 5, None], ids=repr)
async def test_ids_are_a_collection(sqlite_database: TemporaryDatabase, ids: Any) -> None:
    """The letters of one id would be taken for ids, and nothing would be held."""
    with pytest.raises(TypeError, match="pass a list"):
        async with hold_rows(sqlite_database.session_factory, Volume, ids):
            pytest.fail("nothing can be held")


async def test_too_many_rows_are_refused(sqlite_database: TemporaryDatabase) -> None:
    """The database would refuse the statement, with an error about its parameters."""
    with pytest.raises(
        ValueError,
        match=f"at most {ACQUIRED_ROWS_MAX} rows can be held at once, not {ACQUIRED_ROWS_MAX + 1}",
    ):
        async with hold_rows(sqlite_database.session_factory, Run, range(ACQUIRED_ROWS_MAX + 1)):
            pytest.fail("nothing can be held")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"timeout": -1}, ValueError, "timeout must be"),
        ({"timeout": float("nan")}, ValueError, "timeout must be"),
        ({"timeout": None}, ValueError, "hold_rows waits for a limited time"),
        ({"lock_timeout": 0.05}, ValueError, "lock_timeout must be 0.1 to"),
        ({"lock_timeout": timedelta(days=2)}, ValueError, "lock_timeout must be"),
        ({"lock_timeout": float("nan")}, ValueError, "lock_timeout must be"),
        ({"owner": "x" * 300}, ModelError, "does not fit"),
    ],
)
async def test_settings_out_of_bounds(
    sqlite_database: TemporaryDatabase, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """A lease that ends before it can be renewed, or a wait without end, would be found in
    production.
    """
    with pytest.raises(error, match=text):
        async with hold_rows(sqlite_database.session_factory, Volume, [uuid.uuid4()], **options):
            pytest.fail("nothing can be held")


async def test_a_model_or_a_factory_that_cannot_be_leased(
    sqlite_database: TemporaryDatabase,
) -> None:
    """An AttributeError from deep inside would not say what to change."""

    class Unmapped:
        """No table behind it."""

    unmapped: Any = Unmapped
    with pytest.raises(ModelError, match="not a mapped class"):
        async with hold_rows(sqlite_database.session_factory, unmapped, [1]):
            pytest.fail("nothing can be held")
    session: Any = AsyncSession(sqlite_database.engine)
    with pytest.raises(ConfigurationError, match="async_sessionmaker"):
        async with hold_rows(session, Volume, [uuid.uuid4()]):
            pytest.fail("nothing can be held")
