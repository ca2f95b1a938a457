"""Verification: rows that are no longer as they were when their step was done are found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import delete, insert, text, update
from sqlalchemy.exc import StatementError
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock import ModelError
from rowlock.stream_errors import NotProcessedYet, StepExpired
from rowlock.streams.computing.hashing import BUCKETS, bucket_of
from rowlock.streams.inputs import step_inputs as verification
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..walk.flows import MEANT, Bank, add_up, open_bank, pay
from .test_step_inputs import done_bank, inputs


async def last_step(bank: Bank) -> int:
    return int((await bank.flow_row()).next_step) - 1


async def test_a_row_that_was_changed_is_found(database: TemporaryDatabase) -> None:
    """Somebody would correct a fact, and results silently be of another one; or a difference be
    found where there is none.
    """
    bank = await done_bank(database)
    last = await last_step(bank)
    found = await bank.flow.verify(bank.sessions, 0, last)
    assert (found.steps, found.rows, found.differences) == (last + 1, 120, [])
    row = (await inputs(bank, 1)).rows[3]
    async with bank.sessions.begin() as session:
        own = bank.payment.position == row.position
        await session.execute(
            update(bank.payment)
            .execution_options(**MEANT)
            .where(own)
            .values(cents=row.value.cents + 1)
        )
    found = await bank.flow.verify(bank.sessions, 0, last)
    (difference,) = found.differences
    assert difference.step == 1
    assert difference.lo <= bucket_of(row.key) < difference.hi
    assert "digest" in difference.text


@pytest.mark.either_database
async def test_a_row_that_was_deleted_is_found(database: TemporaryDatabase) -> None:
    """A fact would be gone, and its part of the result stay unexplained."""
    bank = await done_bank(database)
    row = (await inputs(bank, 1)).rows[3]
    async with bank.sessions.begin() as session:
        await session.execute(
            delete(bank.payment)
            .execution_options(**MEANT)
            .where(bank.payment.position == row.position)
        )
    found = await bank.flow.verify(bank.sessions, 0, await last_step(bank))
    (difference,) = found.differences
    assert difference.step == 1
    assert difference.lo <= bucket_of(row.key) < difference.hi
    assert "rows, and had" in difference.text
    assert found.rows == 119


async def flushed(session: AsyncSession, row: object) -> None:
    """Add a row as a unit of work does."""
    session.add(row)
    await session.flush()


async def test_a_row_that_came_below_the_cut_is_refused_or_found(
    database: TemporaryDatabase,
) -> None:
    """A fact would be there that no flow ever counts, and nobody would know."""
    bank = await open_bank(database)
    add_up(bank)
    await bank.pay(120)
    free = 60
    async with bank.sessions.begin() as session:
        await session.execute(
            delete(bank.payment).execution_options(**MEANT).where(bank.payment.position == free)
        )
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    row = {"position": free, "account": "late", "cents": 1}
    given: list[Callable[[AsyncSession], Awaitable[object]]] = [
        lambda session: flushed(session, bank.payment(**row)),
        lambda session: session.execute(insert(bank.payment), [row, {**row, "position": 61}]),
        lambda session: session.execute(insert(bank.payment).values([row, row])),
    ]
    for add in given:
        async with bank.sessions() as session:
            with pytest.raises(StatementError) as caught:
                await add(session)
        assert isinstance(caught.value.orig, ModelError)
        assert "payments.position is given as 60" in str(caught.value.orig)
    assert (await bank.flow.verify(bank.sessions, 0, await last_step(bank))).differences == []
    async with bank.sessions.begin() as session:
        overriding = "OVERRIDING SYSTEM VALUE" * (database.dialect_name == "postgresql")
        columns = "payments (position, account, cents)"
        statement = f"INSERT INTO {columns} {overriding} VALUES ({free}, 'late', 1)"
        await session.execute(text(statement))
    found = await bank.flow.verify(bank.sessions, 0, await last_step(bank))
    assert {one.step for one in found.differences} == {1}
    assert "late" not in await bank.balances()


@pytest.mark.either_database
async def test_a_row_that_belongs_to_another_shard_now(database: TemporaryDatabase) -> None:
    """A shard without a part in a step would not be looked at."""
    bank = await open_bank(database, shards=2)
    add_up(bank)
    one, other = (next(k for k in map(str, range(99)) if bucket_of(k) >> 15 == n) for n in (0, 1))
    await pay(bank.sessions, bank.payment, [(one, 1), (one, 2)])
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    async with bank.sessions.begin() as session:
        moved = update(bank.payment).execution_options(**MEANT).where(bank.payment.position == 2)
        await session.execute(moved.values(account=other, bucket=bucket_of(other)))
    found = await bank.flow.verify(bank.sessions, 0, 0)
    assert [(d.lo, d.hi) for d in found.differences] == [(0, BUCKETS // 2), (0, BUCKETS)]
    assert found.differences[1].text == "1 rows belong to shards that had none"


@pytest.mark.either_database
async def test_only_what_is_done_and_kept_is_verified(database: TemporaryDatabase) -> None:
    """A step would seem to be wrong that shards are still at; or one that is gone be sound."""
    bank = await done_bank(database)
    last = await last_step(bank)
    with pytest.raises(NotProcessedYet, match=f"step {last + 1}"):
        await bank.flow.verify(bank.sessions, 0, last + 1)
    shards, steps = bank.streams.tables.shards, bank.streams.tables.steps
    async with bank.sessions.begin() as session:
        await session.execute(update(shards).where(shards.c.lo == 0).values(step=last))
    with pytest.raises(NotProcessedYet, match=f"shards are at step {last}"):
        await bank.flow.verify(bank.sessions, 0, last)
    assert (await bank.flow.verify(bank.sessions, 0, last - 1)).differences == []
    async with bank.sessions.begin() as session:
        await session.execute(delete(steps).where(steps.c.step < 0))
    with pytest.raises(StepExpired):
        await bank.flow.verify(bank.sessions, 0, last - 1)


@pytest.mark.either_database
async def test_a_table_that_was_changed_all_over(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verification would gather millions of differences."""
    monkeypatch.setattr(verification, "DIFFERENCES_MAX", 5)
    bank = await done_bank(database)
    async with bank.sessions.begin() as session:
        await session.execute(
            update(bank.payment).execution_options(**MEANT).values(cents=bank.payment.cents + 1)
        )
    found = await bank.flow.verify(bank.sessions, 0, await last_step(bank))
    assert len(found.differences) == 5
    assert found.steps == 2
