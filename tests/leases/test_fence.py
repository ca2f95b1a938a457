"""Writes of a holder while its lease goes on: each row under its own token, or not at all."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from sqlalchemy import event, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import LeaseLost, PipelineError, PipelineItem
from rowlock.leases.apply import Fenced, fence
from rowlock.testing import TemporaryDatabase

from ..host import Volume
from ..pipelines.scenes import change, read, read_all, ticket
from .ground import VOLUMES, add, claimed, transact

SIZE, STATUS = VOLUMES.column("size_gb"), VOLUMES.column("status")


async def leased_volumes(database: TemporaryDatabase, count: int) -> list[PipelineItem[Any]]:
    """Add so many volumes and lease them; in the order of their keys."""
    await add(database, *(Volume(id=numbered(number)) for number in range(1, count + 1)))
    return sorted(await claimed(database, limit=count), key=lambda item: item.id.int)


def numbered(number: int) -> uuid.UUID:
    return uuid.UUID(int=number)


async def take_over(database: TemporaryDatabase, item: PipelineItem[Any]) -> None:
    await change(database, Volume(id=item.id), lock_token=uuid.uuid4(), lock_owner="Another")


async def until_blocked(database: TemporaryDatabase, task: asyncio.Task[Any]) -> None:
    """Return when a transaction waits for another, or `task` has ended without that."""
    waits = text(
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity a USING (pid)"
        " WHERE a.datname = current_database() AND NOT granted"
    )
    async with database.create_engine().connect() as connection:
        while not (task.done() or await connection.scalar(waits)):  # noqa: ASYNC110 - a server's state sets no event
            await asyncio.sleep(0)


async def sizes(database: TemporaryDatabase) -> dict[int, int]:
    return {row.id.int: row.size_gb for row in await read_all(database, Volume)}


# ---------------------------------------------------------------- one row


async def test_a_guarded_transaction_writes_under_the_lease(database: TemporaryDatabase) -> None:
    """A holder could not write as it goes, or would compute from what the row was."""
    [item] = await leased_volumes(database, 1)
    async with database.session_factory() as session:
        before = await session.get(Volume, item.id)
        await session.commit()
        await change(database, Volume(id=item.id), size_gb=50)
        row = await item.guard(session)
        assert row is before
        assert row.size_gb == 50
        row.size_gb += 1
        await session.commit()
    after = await read(database, Volume(id=item.id))
    assert (after.size_gb, after.lock_token) == (51, item.lock_token)


async def test_a_holder_that_lost_its_row_is_refused(database: TemporaryDatabase) -> None:
    """What was computed under a lease that is gone would be written over another's work."""
    [item] = await leased_volumes(database, 1)
    await take_over(database, item)
    with pytest.raises(LeaseLost):
        async with database.session_factory.begin() as session:
            await item.guard(session)


async def test_a_holder_that_may_not_trust_its_lease_is_refused(
    database: TemporaryDatabase,
) -> None:
    """The row may be another's before the transaction ends."""
    [item] = await leased_volumes(database, 1)
    item.lose()
    with pytest.raises(LeaseLost):
        async with database.session_factory.begin() as session:
            await item.guard(session)


async def test_a_guarded_row_stays_held_until_the_transaction_ends(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Another could take the row over between the guard and the commit."""
    [item] = await leased_volumes(postgresql_database, 1)
    async with postgresql_database.session_factory.begin() as session:
        await item.guard(session)
        taking = asyncio.create_task(take_over(postgresql_database, item))
        row = await session.get_one(Volume, item.id)
        row.size_gb = 7
        await session.flush()
        await until_blocked(postgresql_database, taking)
        assert not taking.done()
    await taking
    after = await read(postgresql_database, Volume(id=item.id))
    assert (after.size_gb, after.lock_owner) == (7, "Another")


async def test_an_item_of_no_pipeline_says_so(database: TemporaryDatabase) -> None:
    """A ticket that was made by hand would fail somewhere within."""
    async with database.session_factory() as session:
        with pytest.raises(PipelineError, match="not claimed by a pipeline"):
            await ticket().guard(session)


# ---------------------------------------------------------------- many rows


async def test_each_row_is_fenced_by_its_own_token(database: TemporaryDatabase) -> None:
    """One lost lease would let another's row be written, or keep all others from being written."""
    items = await leased_volumes(database, 5)
    await take_over(database, items[1])
    await change(database, Volume(id=items[2].id), status="deleted")
    items[3].lose()

    async def work(connection: AsyncConnection) -> frozenset[Any]:
        return await fence(
            connection,
            VOLUMES,
            [Fenced(item, {SIZE: 100 + item.id.int}, {STATUS: "submitted"}) for item in items],
        )

    tokens = await transact(database, work)
    assert tokens == {items[0].lock_token, items[4].lock_token}
    was = Volume.__table__.c.size_gb.default.arg
    assert await sizes(database) == {1: 101, 2: was, 3: was, 4: was, 5: 105}
    assert (await read(database, Volume(id=numbered(1)))).lock_token == items[0].lock_token


async def test_a_row_may_be_fenced_without_being_written(database: TemporaryDatabase) -> None:
    """Who only wants to know would have to write something."""
    items = await leased_volumes(database, 2)
    await take_over(database, items[1])

    async def work(connection: AsyncConnection) -> frozenset[Any]:
        return await fence(connection, VOLUMES, [Fenced(item, {}) for item in items])

    assert await transact(database, work) == {items[0].lock_token}


async def test_a_row_with_a_guard_of_its_own_shape_is_compared(database: TemporaryDatabase) -> None:
    """A guard that no other row has would be taken for kept."""
    items = await leased_volumes(database, 3)

    async def work(connection: AsyncConnection) -> frozenset[Any]:
        return await fence(
            connection,
            VOLUMES,
            [
                Fenced(items[0], {SIZE: 1}),
                Fenced(items[1], {SIZE: 2}, {STATUS: "submitted"}),
                Fenced(items[2], {SIZE: 3}, {SIZE: -1}),
            ],
        )

    assert await transact(database, work) == {items[0].lock_token, items[1].lock_token}


async def test_a_locked_row_is_left_out_or_waited_for(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A heartbeat that holds one row for a moment would hold up all others, or be fatal."""
    items = await leased_volumes(postgresql_database, 2)
    fenced = [Fenced(item, {SIZE: 9}) for item in items]
    touch = (
        update(Volume.__table__)
        .where(Volume.__table__.c.id == numbered(1))
        .values(status="submitted")
    )
    async with postgresql_database.engine.connect() as other:
        await other.execute(touch)
        tokens = await transact(postgresql_database, lambda own: fence(own, VOLUMES, fenced))
        assert tokens == {items[1].lock_token}
        waiting = asyncio.create_task(
            transact(postgresql_database, lambda own: fence(own, VOLUMES, fenced, waits=True))
        )
        await until_blocked(postgresql_database, waiting)
        await other.commit()
    assert await waiting == {item.lock_token for item in items}


async def test_rows_of_one_shape_share_statements(postgresql_database: TemporaryDatabase) -> None:
    """A replica with a thousand rows would send thousands of statements."""
    database, sent = postgresql_database, []
    items = await leased_volumes(database, 50)
    event.listen(
        database.engine.sync_engine, "before_cursor_execute", lambda *said: sent.append(said[2])
    )

    async def work(connection: AsyncConnection) -> frozenset[Any]:
        sent.clear()
        rows = [Fenced(item, {SIZE: item.id.int}, {STATUS: "submitted"}) for item in items]
        return await fence(connection, VOLUMES, rows)

    assert len(await transact(database, work)) == 50
    assert len(sent) == 3, "locked, compared, written"
