"""Rows that cannot be held by a service, and what holding them means to others."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock import ConfigurationError, LockWaitTimeout, ModelError, get_locker, hold_rows
from rowlock.leases.acquire import ACQUIRED_ROWS_MAX
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, Volume, VolumePipeline
from ..pipelines.scenes import add, change, is_free, read
from .holding import may_be_claimed
from .test_hold import hold_and_read


async def test_the_refusal_says_who_and_for_how_long(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A host could not tell its client when to come back; by its own clock it would tell it
    wrongly.
    """
    database = database_with_clock
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
    [row] = await add(database_with_clock, Volume())
    async with hold_rows(database_with_clock.session_factory, Volume, [row.id], lock_timeout=30):
        left = await read(database_with_clock, row)
    # As it was in the middle of the block, when the process died.
    await change(
        database_with_clock,
        row,
        lock_token=left.lock_token,
        lock_owner=left.lock_owner,
        lock_expires_at=left.lock_expires_at,
    )
    database_with_clock.clock.advance(29)
    assert await may_be_claimed(database_with_clock) == 0
    database_with_clock.clock.advance(1)
    async with stepping(database_with_clock.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        assert (item.id, item.attempt, item.prev_lock_expired) == (row.id, 1, False)
        await steps.work_once()
    assert (await read(database_with_clock, row)).status == "active"


async def test_a_row_without_a_live_lease_may_be_anybodys(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A service would wait for ever for a pipeline that died, or that is not deployed any more."""
    [row] = await add(database_with_clock, Volume())
    await change(
        database_with_clock,
        row,
        lock_token=uuid.uuid4(),
        lock_owner="Gone",
        lock_expires_at=database_with_clock.clock.now,
    )
    held = await hold_and_read(database_with_clock, row, timeout=0)
    assert held.rows[0].lock_token == held.lock_token


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
