"""Tests of parents and children on PostgreSQL: a row is locked ``FOR NO KEY UPDATE``, or those that
refer to it get in the way.

Every insert of a child, and every update of its foreign key, locks its parent ``FOR KEY SHARE``.
That waits for a plain ``FOR UPDATE`` and makes it wait; it gets along with ``FOR NO KEY UPDATE``.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import event, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.util import await_only

from rowlock.testing import TemporaryDatabase, stepping

from ..host import HANG_S_MAX, Attachment, Base, Volume, VolumePipeline

DEADLOCK_DETECTED = "40P01"
LOCK_NOT_AVAILABLE = "55P03"


async def make(database: TemporaryDatabase, *rows: Base) -> None:
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add_all(rows)


async def lock(session: AsyncSession, volume: Volume, *, key_share: bool) -> None:
    await session.execute(
        select(Volume.id).where(Volume.id == volume.id).with_for_update(key_share=key_share)
    )


async def add_child(database: TemporaryDatabase, volume: Volume) -> None:
    async with database.engine.begin() as connection:
        await connection.execute(text("SET LOCAL lock_timeout = '1ms'"))
        await connection.execute(insert(Attachment).values(volume_id=volume.id))


def sqlstate(raised: pytest.ExceptionInfo[DBAPIError]) -> Any:
    return getattr(raised.value.orig, "sqlstate", None)


async def test_a_parent_locked_for_no_key_update_gets_children(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Every request that adds a child would wait for as long as somebody works on the parent."""
    volume = Volume()
    await make(postgresql_database, volume)
    async with postgresql_database.session_factory() as session:
        await lock(session, volume, key_share=True)
        await add_child(postgresql_database, volume)


async def test_a_parent_locked_for_update_gets_none(postgresql_database: TemporaryDatabase) -> None:
    """The test above would pass whatever the lock is."""
    volume = Volume()
    await make(postgresql_database, volume)
    async with postgresql_database.session_factory() as session:
        await lock(session, volume, key_share=False)
        with pytest.raises(DBAPIError) as raised:
            await add_child(postgresql_database, volume)
        assert sqlstate(raised) == LOCK_NOT_AVAILABLE


async def parent_then_child(database: TemporaryDatabase, *, key_share: bool) -> None:
    """Lock a volume and then an attachment, while somebody moves that attachment to that volume."""
    old, new = Volume(), Volume()
    await make(database, old, new)
    async with database.session_factory.begin() as session:
        child = Attachment(volume_id=old.id)
        session.add(child)
    of_child = update(Attachment).where(Attachment.id == child.id)

    async def move() -> None:
        async with database.engine.begin() as connection:
            await connection.execute(of_child.values(volume_id=new.id))

    async with database.session_factory() as session:
        await session.execute(text("SET LOCAL deadlock_timeout = '1ms'"))
        await lock(session, new, key_share=key_share)
        moving = asyncio.create_task(move())
        try:
            await until_it_waits_or_is_done(database, moving)
            await session.execute(of_child.values(status="active"))
        finally:
            await session.rollback()
            await moving


async def until_it_waits_or_is_done(database: TemporaryDatabase, task: asyncio.Task[None]) -> None:
    # Of this database alone: other tests use the same server.
    here = "datname = current_database() AND wait_event_type = 'Lock'"
    waiting = text(f"SELECT count(*) FROM pg_stat_activity WHERE {here}")
    # Within one transaction the view would show the same all the time.
    autocommit = database.engine.execution_options(isolation_level="AUTOCOMMIT")
    async with asyncio.timeout(HANG_S_MAX), autocommit.connect() as connection:
        while not task.done() and not await connection.scalar(waiting):  # noqa: ASYNC110 - the server does not tell
            await asyncio.sleep(0)


async def test_parent_then_child_does_not_deadlock(postgresql_database: TemporaryDatabase) -> None:
    """A service that works on a parent and its children would fail now and then, or make those
    fail who add children.
    """
    await parent_then_child(postgresql_database, key_share=True)


async def test_parent_then_child_deadlocks_under_for_update(
    postgresql_database: TemporaryDatabase,
) -> None:
    """The test above would pass because the two do not meet."""
    with pytest.raises(DBAPIError) as raised:
        await parent_then_child(postgresql_database, key_share=False)
    assert sqlstate(raised) == DEADLOCK_DETECTED


async def test_no_transaction_of_the_library_keeps_children_from_a_parent(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Requests that add a child would wait for the claim of its parent, its heartbeat or its
    result.
    """
    database = postgresql_database
    volume = Volume()
    await make(database, volume)
    engine = database.create_engine()
    added: list[str] = []

    def in_the_middle(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "UPDATE volumes" in statement:
            await_only(add_child(database, volume))
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
