"""Guards of `load`, `release` and `due` whose absence the plain day of a lease does not show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import joinedload
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock import make_due, unpark
from rowlock.database.transaction import in_transaction
from rowlock.errors import PipelineError
from rowlock.leases.claim import load_rows
from rowlock.leases.release import release, sweep
from rowlock.leases.renew import renew
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from ..host import Attachment, Run, Volume
from .ground import RUNS, TIMEOUT, VOLUMES, add, claimed, row_of, transact


async def loaded(
    database: TemporaryDatabase, leased: LeasedTable, options: Sequence[LoaderOption] = ()
) -> list[Any]:
    """Claim and load with sessions as a host makes them: what they hold expires with the commit."""
    items = await claimed(database, leased)

    async def work(session: AsyncSession, connection: AsyncConnection) -> list[Any]:
        return await load_rows(session, leased, items, options=options)

    factory = async_sessionmaker(database.engine)
    return await in_transaction(
        factory, leased, work, purpose="load rows", timeout=TIMEOUT, writes=False
    )


async def test_a_joined_collection_comes_whole(database: TemporaryDatabase) -> None:
    """A host that reads children with their parent could not load any row, or would get it once
    per child.
    """
    await add(database, Volume(attachments=[Attachment(name="a"), Attachment(name="b")]))
    (row,) = await loaded(database, VOLUMES, [joinedload(Volume.attachments)])
    assert [child.name for child in row.attachments] == ["a", "b"]


async def _claim(database: TemporaryDatabase) -> None:
    assert await claimed(database, RUNS)


async def _renew(database: TemporaryDatabase) -> None:
    items = await claimed(database, RUNS)
    assert await transact(database, lambda c: renew(c, RUNS, items, lock_timeout=TIMEOUT), RUNS)


async def _release(database: TemporaryDatabase) -> None:
    items = await claimed(database, RUNS)
    assert await transact(database, lambda c: release(c, RUNS, items), RUNS) == {1}


async def _sweep(database: TemporaryDatabase) -> None:
    await claimed(database, RUNS)
    database.clock.advance(3600)
    long = timedelta(minutes=30)
    assert await transact(database, lambda c: sweep(c, RUNS, older_than=long), RUNS) == 1


async def _make_due(database: TemporaryDatabase) -> None:
    async with database.session_factory.begin() as session:
        await make_due(session, await session.get_one(Run, 1))


@pytest.mark.parametrize("act", [_claim, _renew, _release, _sweep, _make_due])
async def test_it_is_no_change_of_content(
    database_with_clock: TemporaryDatabase, act: Callable[[TemporaryDatabase], Awaitable[None]]
) -> None:
    """A column that stamps itself on every update would say that somebody changed the row."""
    await add(database_with_clock, Run(id=1, due_at=database_with_clock.clock.now))
    before = (await row_of(database_with_clock, RUNS, 1)).updated_at
    database_with_clock.clock.advance(5)
    await act(database_with_clock)
    assert (await row_of(database_with_clock, RUNS, 1)).updated_at == before


async def test_a_sweep_leaves_rows_that_nobody_owns(database_with_clock: TemporaryDatabase) -> None:
    """Every idle row of a large table would be written again and again, and those that were left
    behind never be reached.
    """
    database = database_with_clock
    await add(database, Volume(last_processed_at=database.clock.now), Volume())
    database.clock.advance(3600)
    assert (
        await transact(database, lambda c: sweep(c, VOLUMES, older_than=timedelta(minutes=30))) == 0
    )


@pytest.mark.parametrize("say", [make_due, unpark])
async def test_a_row_that_was_deleted_cannot_be_made_due(
    database: TemporaryDatabase, say: Any
) -> None:
    """A service would believe that its request was heard."""
    await add(database, Run(id=1))
    async with database.session_factory() as session:
        row = await session.get_one(Run, 1)
        await session.commit()
        async with database.session_factory.begin() as other:
            await other.execute(delete(Run))
        with pytest.raises(
            PipelineError, match="Run 1 is no longer there; it was deleted by another transaction"
        ):
            await say(session, row)
