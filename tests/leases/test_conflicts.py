"""Transactions that PostgreSQL rolls back for another one's sake: under stricter isolation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import event, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.util import await_only

from rowlock import RelatedLockUnavailable, hold_rows
from rowlock.database.faults import is_conflict
from rowlock.database.transaction import CONFLICTS_MAX
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Attachment, Run, Volume
from ..pipelines.related_scenes import GatheringPipeline, add_volume, attachments_of, write_all
from .ground import RUNS, add, row_of
from .transactions import run_in

STRICTER = ("REPEATABLE READ", "SERIALIZABLE")


async def count_up(database: TemporaryDatabase) -> None:
    async with database.session_factory.begin() as session:
        await session.execute(update(Run).values(status=Run.status + "+"))


def stricter(database: TemporaryDatabase, isolation_level: str) -> async_sessionmaker[AsyncSession]:
    return async_sessionmaker(database.create_engine(isolation_level=isolation_level))


def interferes(
    factory: async_sessionmaker[AsyncSession], begins_with: str, act: Callable[[], Awaitable[None]]
) -> None:
    """Have `act` done after each statement of the factory's engine that begins like that."""

    def after(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(begins_with):
            await_only(act())

    event.listen(factory.kw["bind"].sync_engine, "after_cursor_execute", after)


@pytest.mark.parametrize("isolation_level", STRICTER)
async def test_a_serialization_failure_is_run_again(
    postgresql_database: TemporaryDatabase, isolation_level: str
) -> None:
    """A host's stricter engine would lose the work of every transaction that met another one."""
    database, tries = postgresql_database, 0
    await add(database, Run(id=1, status="a"))

    async def work(session: AsyncSession, connection: AsyncConnection) -> int:
        nonlocal tries
        tries += 1
        await connection.scalar(select(Run.status))
        if tries < CONFLICTS_MAX:
            await count_up(database)
        await connection.execute(update(Run).values(status=Run.status + "!"))
        return tries

    assert await run_in(stricter(database, isolation_level), work) == CONFLICTS_MAX
    assert (await row_of(database, RUNS, 1)).status == "a+++++!"


async def test_one_that_shows_at_the_commit_is_run_again(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Two that each read what the other writes are told apart at the COMMIT, whose error would
    pass for a lost answer.
    """
    database, tries = postgresql_database, 0
    await add(database, Run(id=1), Run(id=2))
    factory = stricter(database, "SERIALIZABLE")

    async def work(session: AsyncSession, connection: AsyncConnection) -> int:
        nonlocal tries
        tries += 1
        await connection.scalar(select(Run.status).where(Run.id == 2))
        await connection.execute(update(Run).where(Run.id == 1).values(status="ours"))
        if tries == 1:
            async with factory.begin() as other:
                await other.scalar(select(Run.status).where(Run.id == 1))
                await other.execute(update(Run).where(Run.id == 2).values(status="theirs"))
        return tries

    assert await run_in(factory, work) == 2
    assert [(await row_of(database, RUNS, key)).status for key in (1, 2)] == ["ours", "theirs"]


async def test_it_is_not_run_again_for_ever(postgresql_database: TemporaryDatabase) -> None:
    """A row that somebody changes all the time would keep a worker for ever."""
    database, tries = postgresql_database, 0
    await add(database, Run(id=1, status="a"))

    async def work(session: AsyncSession, connection: AsyncConnection) -> None:
        nonlocal tries
        tries += 1
        await connection.scalar(select(Run.status))
        await count_up(database)
        await connection.execute(update(Run).values(status="never"))

    with pytest.raises(DBAPIError) as caught:
        await run_in(stricter(database, "REPEATABLE READ"), work)
    assert is_conflict(caught.value)
    assert tries == CONFLICTS_MAX
    assert (await row_of(database, RUNS, 1)).status == "a" + CONFLICTS_MAX * "+"


async def test_another_error_is_raised_at_once(postgresql_database: TemporaryDatabase) -> None:
    """What the database refuses would be asked again, which costs time and says nothing new."""
    tries = 0
    await add(postgresql_database, Run(id=1))

    async def work(session: AsyncSession, connection: AsyncConnection) -> None:
        nonlocal tries
        tries += 1
        await connection.execute(text("UPDATE runs SET status = NULL"))

    with pytest.raises(DBAPIError, match="null value"):
        await run_in(stricter(postgresql_database, "SERIALIZABLE"), work)
    assert tries == 1


async def test_a_cancelled_caller_waits_for_the_last_run(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A caller that is cancelled between two runs would take its transaction for done."""
    database, tries = postgresql_database, 0
    await add(database, Run(id=1, status="a"))

    async def work(session: AsyncSession, connection: AsyncConnection) -> None:
        nonlocal tries
        tries += 1
        await connection.scalar(select(Run.status))
        if tries == 1:
            caller.cancel()
            await count_up(database)
        await connection.execute(update(Run).values(status=Run.status + "!"))

    caller = asyncio.create_task(run_in(stricter(database, "REPEATABLE READ"), work))
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (await row_of(database, RUNS, 1)).status == "a+!"


# ---------------------------------------------------------------- what hosts call


async def test_related_rows_that_change_meanwhile_are_locked(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A serialization failure would come out of `lock_related` and count as a failed attempt."""
    database, changes = postgresql_database, []
    await add_volume(database)
    factory = stricter(database, "SERIALIZABLE")

    async def change() -> None:
        if not changes:
            changes.append(1)
            async with database.session_factory.begin() as session:
                await session.execute(update(Attachment).values(status="changed"))

    pipeline = GatheringPipeline(then=write_all)
    async with stepping(factory, pipeline) as steps:
        await steps.fetch_once()
        interferes(factory, "SELECT volumes.lock_expires_at", change)
        await steps.work_once()
    assert [[row.status for row in rows] for rows in pipeline.locked] == [["changed"] * 3]
    assert {row.status for row in await attachments_of(database)} == {"gathered"}


async def test_related_rows_that_change_all_the_time_are_not_to_be_had(
    postgresql_database: TemporaryDatabase,
) -> None:
    """An attempt would fail, and be counted, for what others do to its related rows."""
    await add_volume(postgresql_database)
    factory = stricter(postgresql_database, "REPEATABLE READ")

    async def change() -> None:
        async with postgresql_database.session_factory.begin() as session:
            await session.execute(update(Attachment).values(status=Attachment.status + "+"))

    refused: list[BaseException] = []

    class Refused(GatheringPipeline):
        async def process(self, item: Any) -> Any:
            try:
                return await super().process(item)
            except RelatedLockUnavailable as error:
                refused.append(error)
                raise

    pipeline = Refused(then=write_all)
    async with stepping(factory, pipeline) as steps:
        await steps.fetch_once()
        interferes(factory, "SELECT volumes.lock_expires_at", change)
        await steps.work_once()
        assert steps.run.statistics().counters["reset"] == 1
    assert len(refused) == 1
    assert pipeline.locked == []


async def test_rows_that_change_all_the_time_are_waited_for_by_a_service(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A serialization failure would come out of `hold_rows`, which waits for rows."""
    database, changes = postgresql_database, []
    volume = Volume()
    await add(database, volume)
    factory = stricter(database, "REPEATABLE READ")

    async def change() -> None:
        changes.append(1)
        if len(changes) <= CONFLICTS_MAX + 1:
            async with database.session_factory.begin() as session:
                await session.execute(update(Volume).values(size_gb=len(changes)))

    event.listen(
        factory.kw["bind"].sync_engine,
        "begin",
        lambda begun: begun.exec_driver_sql("SELECT 'snapshot'"),
    )
    interferes(factory, "SELECT 'snapshot'", change)
    async with hold_rows(factory, Volume, [volume.id], timeout=20) as held:
        assert [row.size_gb for row in held.rows] == [CONFLICTS_MAX + 1]
