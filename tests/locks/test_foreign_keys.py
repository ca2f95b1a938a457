"""Tests of parents and children on PostgreSQL: a row is locked ``FOR NO KEY UPDATE``, or those that
refer to it get in the way.

Every insert of a child, and every update of its foreign key, locks its parent ``FOR KEY SHARE``.
That waits for a plain ``FOR UPDATE`` and makes it wait; it gets along with ``FOR NO KEY UPDATE``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event, insert, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.util import await_only

from rowlock.testing import TemporaryDatabase, stepping

from ..host import Attachment, Base, Volume, VolumePipeline


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
