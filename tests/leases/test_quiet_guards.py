"""Guards of `load`, `release` and `due` whose absence the plain day of a lease does not show."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import joinedload, load_only
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock import make_due, unpark
from rowlock.database.transaction import in_transaction
from rowlock.errors import PipelineError
from rowlock.leases.claim import load_rows
from rowlock.leases.release import release, sweep
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


async def test_a_row_can_be_read_after_the_commit(database: TemporaryDatabase) -> None:
    """`process` would meet an error at the first look at its row, since its session is gone."""
    await add(database, Volume(disk_id="d"))
    (row,) = await loaded(database, VOLUMES)
    assert (row.disk_id, row.status, row.lock_owner) == ("d", "submitted", "Me")


async def test_no_option_leaves_out_what_the_outcome_is_planned_from(
    database: TemporaryDatabase,
) -> None:
    """An outcome could not be written for the want of a column that the host had no use for."""
    await add(database, Run(id=1))
    (row,) = await loaded(database, RUNS, [load_only(Run.status)])
    assert {name for name in RUNS.lease_columns if name not in row.__dict__} == set()


async def test_a_joined_collection_comes_whole(database: TemporaryDatabase) -> None:
    """A host that reads children with their parent could not load any row, or would get it once
    per child.
    """
    await add(database, Volume(attachments=[Attachment(name="a"), Attachment(name="b")]))
    (row,) = await loaded(database, VOLUMES, [joinedload(Volume.attachments)])
    assert [child.name for child in row.attachments] == ["a", "b"]


async def test_a_release_is_no_change_of_content(database_with_clock: TemporaryDatabase) -> None:
    """A shutdown would look like a change of every row that was queued."""
    database = database_with_clock
    assert database.clock is not None
    await add(database, Run(id=1))
    items = await claimed(database, RUNS)
    before = (await row_of(database, RUNS, 1)).updated_at
    database.clock.advance(5)
    assert await transact(database, lambda c: release(c, RUNS, items), RUNS) == {1}
    assert (await row_of(database, RUNS, 1)).updated_at == before


async def test_a_sweep_is_no_change_of_content(database_with_clock: TemporaryDatabase) -> None:
    """A clean-up would look like a change of the row."""
    database = database_with_clock
    assert database.clock is not None
    await add(database, Run(id=1))
    await claimed(database, RUNS)
    before = (await row_of(database, RUNS, 1)).updated_at
    database.clock.advance(3600)
    assert (
        await transact(database, lambda c: sweep(c, RUNS, older_than=timedelta(minutes=30)), RUNS)
        == 1
    )
    assert (await row_of(database, RUNS, 1)).updated_at == before


async def test_a_sweep_leaves_rows_that_nobody_owns(database_with_clock: TemporaryDatabase) -> None:
    """Every idle row of a large table would be written again and again, and those that were left
    behind never be reached.
    """
    database = database_with_clock
    assert database.clock is not None
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
