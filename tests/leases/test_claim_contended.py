"""Claims under contention: replicas with pools of their own, wrong clocks, bad plans."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.util import await_only

from rowlock import PipelineItem, get_locker
from rowlock import clock as clock_module
from rowlock.clock import monotonic
from rowlock.leases.claim import claim
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Attachment, Base, Run, Volume, VolumePipeline
from .ground import LOCK_TIMEOUT, MARGIN, RUNS, VOLUMES, add, claimed, order_for, row_of

HOUR = timedelta(hours=1)


async def claimed_with(
    factory: async_sessionmaker[AsyncSession], limit: int
) -> list[PipelineItem[Any]]:
    return await claim(factory, order_for(VOLUMES, limit=limit), lease_margin=MARGIN, timeout=HOUR)


async def tokens_in(database: TemporaryDatabase) -> dict[Any, Any]:
    async with database.session_factory() as session:
        rows = await session.execute(
            select(Volume.id, Volume.lock_token).where(Volume.lock_token.is_not(None))
        )
        return {row.id: row.lock_token for row in rows}


async def test_replicas_never_share_a_row_and_leave_none(database: TemporaryDatabase) -> None:
    """Two replicas that ask at the same moment would work on one row, or get more rows than they
    have room for.
    """
    volumes = [Volume() for _ in range(60)]
    await add(database, *volumes)
    factories = [async_sessionmaker(database.create_engine()) for _ in range(4)]
    batches = await asyncio.gather(*(claimed_with(factory, 4) for factory in factories * 3))
    while batch := await claimed_with(factories[0], 7):
        batches.append(batch)
    assert max(len(batch) for batch in batches[:12]) <= 4
    items = [item for batch in batches for item in batch]
    assert sorted(item.id for item in items) == sorted(volume.id for volume in volumes)
    assert {item.id: item.lock_token for item in items} == await tokens_in(database)


async def test_no_token_comes_twice(database: TemporaryDatabase) -> None:
    """The holder of an old claim could write under the next one."""
    await add(database, *(Volume() for _ in range(30)))
    seen: list[Any] = []
    for _ in range(3):
        seen += [item.lock_token for item in await claimed(database, limit=30)]
        async with database.engine.begin() as connection:
            await connection.execute(
                update(VOLUMES.table).values(lock_token=None, lock_owner=None, lock_expires_at=None)
            )
    assert len(set(seen)) == len(seen) == 90


@pytest.mark.parametrize("skew", [HOUR, -HOUR])
async def test_the_hosts_clock_is_not_asked(
    database_with_clock: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, skew: timedelta
) -> None:
    """A replica an hour ahead would steal every lease; one behind would write leases that have
    ended.
    """
    await add(database_with_clock, Volume())
    skewed = datetime.now(UTC) + skew
    monkeypatch.setattr(clock_module, "utc_now", lambda: skewed)
    monkeypatch.setattr(time, "time", skewed.timestamp)
    (item,) = await claimed(database_with_clock)
    assert item.lock_expires_at == database_with_clock.clock.now + LOCK_TIMEOUT
    assert await claimed(database_with_clock) == []
    database_with_clock.clock.advance(LOCK_TIMEOUT)
    assert [again.id for again in await claimed(database_with_clock)] == [item.id]


async def test_the_limit_holds_under_any_plan(postgresql_database: TemporaryDatabase) -> None:
    """A table that grew since it was analyzed is taken for a small one, and the locking SELECT is
    run once per row.

    As a subquery it then leases every row, each time skipping those of the time before.
    """
    await add(postgresql_database, Volume())
    autocommit = postgresql_database.create_engine(isolation_level="AUTOCOMMIT")
    async with autocommit.connect() as connection:
        await connection.exec_driver_sql("ALTER TABLE volumes SET (autovacuum_enabled = off)")
        await connection.exec_driver_sql("VACUUM ANALYZE volumes")
    await add(postgresql_database, *(Volume() for _ in range(40)))
    engine = postgresql_database.create_engine()

    @event.listens_for(engine.sync_engine, "connect")
    def force_a_nested_loop(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for name in ("hashjoin", "mergejoin", "material", "memoize"):
            cursor.execute(f"SET enable_{name} = off")
        cursor.close()
        connection.commit()

    assert len(await claimed_with(async_sessionmaker(engine), 3)) == 3
    assert len(await tokens_in(postgresql_database)) == 3


async def test_nobody_locks_a_key_while_a_claim_is_under_way(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A service would lock a row between the look at the lockset and the commit, and both would
    have it.
    """
    volume = Volume()
    await add(sqlite_database, volume)
    story: list[str] = []
    takers: list[asyncio.Task[None]] = []

    async def take() -> None:
        async with get_locker("sqlite").lock_ctx("volumes", [volume.id]):
            story.append("taken")

    def begin_to_take(*_: Any) -> None:
        takers.append(asyncio.get_running_loop().create_task(take()))

    sync_engine = sqlite_database.engine.sync_engine
    event.listen(sync_engine, "before_cursor_execute", begin_to_take, once=True)
    event.listen(sync_engine, "commit", lambda _: story.append("committed"), once=True)
    assert len(await claimed(sqlite_database)) == 1
    await asyncio.gather(*takers)
    assert story == ["committed", "taken"]


async def test_trust_begins_when_the_claim_is_sent_not_when_it_waits(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A claim that waited long for a service's locks would come with a trust that is used up
    already.
    """
    await add(sqlite_database, Volume())
    lock, _lockset = get_locker("sqlite").get_lockset("volumes")
    async with lock:
        claiming = asyncio.create_task(claimed(sqlite_database))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not claiming.done()
        free_at = monotonic()
    (item,) = await claiming
    assert item.trusted_until >= free_at + (LOCK_TIMEOUT - MARGIN).total_seconds()


# -------------------- what an earlier holder left in the row


async def test_who_comes_back_has_made_no_attempt(database_with_clock: TemporaryDatabase) -> None:
    """A row that waits for a related lock would be parked for attempts that nobody made."""
    await add(database_with_clock, Run(id=1, lock_owner="Mine", attempts=2))
    (item,) = await claimed(database_with_clock, RUNS, owner="Mine")
    assert (item.prev_lock_expired, item.attempt) == (False, 3)
    assert (await row_of(database_with_clock, RUNS, 1)).attempts == 2


async def test_a_token_without_an_expiry_counts_as_a_dead_holder(
    database: TemporaryDatabase,
) -> None:
    """A row whose expiry somebody cleared by hand would be locked for ever."""
    await add(database, Volume(lock_token=VOLUMES.new_token(), lock_owner="Me"))
    (item,) = await claimed(database)
    assert item.prev_lock_expired


async def make(database: TemporaryDatabase, *rows: Base) -> None:
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add_all(rows)


async def add_child(database: TemporaryDatabase, volume: Volume) -> None:
    async with database.engine.begin() as connection:
        await connection.execute(text("SET LOCAL lock_timeout = '1ms'"))
        await connection.execute(insert(Attachment).values(volume_id=volume.id))


async def test_no_transaction_of_the_library_keeps_children_from_a_parent(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Requests that add a child would wait for the claim of its parent, its heartbeat or its
    result.
    """
    volume = Volume()
    await make(postgresql_database, volume)
    engine = postgresql_database.create_engine()
    added: list[str] = []

    def in_the_middle(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "UPDATE volumes" in statement:
            await_only(add_child(postgresql_database, volume))
            added.append(statement)

    event.listen(engine.sync_engine, "after_cursor_execute", in_the_middle)
    pipeline = VolumePipeline(lock_timeout=30, heartbeat_trigger=15)
    async with stepping(async_sessionmaker(engine), pipeline) as steps:
        (item,) = await steps.fetch_once()
        await steps.work_once()
    assert item.id == volume.id
    assert len(added) == 2  # the claim and the result


async def test_children_that_are_being_added_hide_no_parent(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A parent to which children are added all the time would never be claimed, or its result
    never written.
    """
    volume = Volume()
    await make(postgresql_database, volume)
    async with postgresql_database.session_factory() as session:
        await session.execute(insert(Attachment).values(volume_id=volume.id))
        async with stepping(postgresql_database.session_factory, VolumePipeline()) as steps:
            assert [item.id for item in await steps.fetch_once()] == [volume.id]
            await steps.work_once()
        async with postgresql_database.session_factory() as other:
            assert await other.scalar(select(Volume.status)) == "active"
