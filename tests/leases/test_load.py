"""Loading: the row as it is when work begins; and what a plain day does not show of other steps."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, inspect
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, joinedload, load_only, mapped_column
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock import LockColumns, PipelineItem, make_due, unpark
from rowlock.database.transaction import in_transaction
from rowlock.errors import PipelineError
from rowlock.leases.claim import load_rows
from rowlock.leases.release import release, sweep
from rowlock.leases.renew import renew
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from ..host import Attachment, Run, Volume
from .ground import RUNS, TIMEOUT, VOLUMES, add, change, claimed, row_of, transact


class Base(DeclarativeBase):
    """The tables of this module alone."""


class Memo(LockColumns, Base):
    """A host's table with a text that is read only where it is asked for."""

    __tablename__ = "memos"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    text: Mapped[str] = mapped_column(default="", deferred=True)


MEMOS = LeasedTable.of(Memo)


async def _load(
    database: TemporaryDatabase,
    items: list[PipelineItem[Any]],
    *options: Any,
    leased: Any = VOLUMES,
    compared: Sequence[Any] = (),
) -> Any:
    async def work(session: AsyncSession, connection: AsyncConnection) -> list[Any]:
        return await load_rows(session, leased, items, options=options, compared=compared)

    return await in_transaction(
        database.session_factory, leased, work, purpose="test", timeout=TIMEOUT, writes=False
    )


async def test_rows_come_in_the_order_of_their_items(database: TemporaryDatabase) -> None:
    """A worker would be given somebody else's row."""
    await add(database, *(Volume(size_gb=size) for size in range(5)))
    items = list(reversed(await claimed(database)))
    assert [row.id for row in await _load(database, items)] == [item.id for item in items]


async def test_a_row_under_another_token_is_not_handed_out(database: TemporaryDatabase) -> None:
    """Work would begin on a row that somebody else holds."""
    await add(database, Volume(), Volume())
    taken, mine = await claimed(database)
    await change(database, VOLUMES, taken.id, lock_token=uuid.uuid4())
    rows = await _load(database, [taken, mine])
    assert rows[0] is None
    assert rows[1].id == mine.id


async def test_two_claims_of_one_row_are_told_apart(database: TemporaryDatabase) -> None:
    """An item that waited for longer than its lease would get the row that its own replica has
    claimed anew.
    """
    await add(database, Volume())
    (mine,) = await claimed(database)
    late = copy.copy(mine)
    late.lock_token = uuid.uuid4()
    assert [row and row.id for row in await _load(database, [late, mine])] == [None, mine.id]


async def test_a_deleted_row_is_none(database: TemporaryDatabase) -> None:
    """A worker would fail on a row that is no longer there."""
    await add(database, Volume())
    (item,) = await claimed(database)
    async with database.session_factory.begin() as session:
        await session.execute(delete(Volume))
    assert await _load(database, [item]) == [None]


async def test_the_row_is_what_it_is_now(database: TemporaryDatabase) -> None:
    """An outcome would be computed from what the row was when it was claimed."""
    await add(database, Volume(size_gb=1))
    (item,) = await claimed(database)
    await change(database, VOLUMES, item.id, size_gb=7)
    (row,) = await _load(database, [item])
    assert row.size_gb == 7
    assert inspect(row).detached


async def test_what_the_outcome_is_planned_from_is_always_loaded(
    database: TemporaryDatabase,
) -> None:
    """A host's load_only would make every outcome fail."""
    await add(database, Run(id=1))
    (item,) = await claimed(database, RUNS)
    (row,) = await _load(database, [item], load_only(Run.status), leased=RUNS)
    assert row.lock_token == item.lock_token
    assert RUNS.value_as_read(row, RUNS.column("due_at")) is not None
    assert RUNS.value_as_read(row, RUNS.column("deadline_at")) is None


async def test_what_is_compared_is_read_with_the_row(database: TemporaryDatabase) -> None:
    """An outcome could not be held against what was read; or a long text be read for pipelines
    that have no use for it.
    """
    await add(database, Memo(id=1, text="long"))
    (item,) = await claimed(database, MEMOS)
    for compared in ((), (MEMOS.column("text"),), ()):
        for options in ((), (load_only(Memo.status),)):
            (row,) = await _load(database, [item], *options, leased=MEMOS, compared=compared)
            assert ("text" in row.__dict__) == bool(compared)


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
