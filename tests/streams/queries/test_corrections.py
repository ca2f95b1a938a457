"""Events are facts: a session refuses to change them, and what was changed otherwise is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, String, bindparam, delete, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import ModelError
from rowlock.streams import EventColumns, add_event_guard, drop_event_guard
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..coordinator.rounds import coordinating
from ..walk.flows import MEANT, Bank
from .test_step_inputs import done_bank

pytestmark = pytest.mark.either_database(but=["test_a_trigger_refuses_to_change_an_event"])


class Base(DeclarativeBase):
    """Of the host."""


class Reading(EventColumns, Base):
    """An event with a column that no flow reads."""

    __tablename__ = "readings"
    __stream_key__ = "meter"
    meter: Mapped[str] = mapped_column(String(50))
    units: Mapped[int]
    note: Mapped[str | None] = mapped_column(deferred=True)


async def change(session: AsyncSession, row: Reading) -> None:
    row.units += 1
    await session.flush()


async def drop(session: AsyncSession, row: Reading) -> None:
    await session.delete(row)
    await session.flush()


OWN = Reading.position == 1
CHANGES: dict[str, Callable[[AsyncSession, Reading], Any]] = {
    "a flush": change,
    "a deletion": drop,
    "update": lambda session, row: session.execute(update(Reading).where(OWN).values(units=7)),
    "delete": lambda session, row: session.execute(delete(Reading).where(OWN)),
    "by key": lambda session, row: session.execute(update(Reading), [{"position": 1, "units": 7}]),
    "a table": lambda session, row: session.execute(
        update(Reading.__table__).values(units=7)  # type: ignore[arg-type]
    ),
    "returned": lambda session, row: session.scalars(
        select(Reading).from_statement(update(Reading).values(units=7).returning(Reading))
    ),
    "parameters": lambda session, row: session.execute(
        update(Reading.__table__).where(OWN).values(units=bindparam("more")),  # type: ignore[arg-type]
        {"more": 1},
    ),
}


async def test_a_session_refuses_to_change_an_event(database: TemporaryDatabase) -> None:
    """An UPDATE or DELETE of an event raises in the session, where the change is made."""
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add(Reading(meter="a", units=1))
    for kind, change_it in CHANGES.items():
        async with database.session_factory() as session:
            row = (await session.scalars(select(Reading))).one()
            with pytest.raises(ModelError, match="add an event that corrects it") as caught:
                await change_it(session, row)
            assert caught.value.model == "readings", kind
            await session.rollback()
            assert await session.scalar(select(Reading.units)) == 1, kind


async def test_what_no_flow_has_read_may_change(database: TemporaryDatabase) -> None:
    """A row may change in the transaction that adds it, and always what no flow reads of it."""
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add_all(rows := [Reading(meter="a", units=1), Reading(meter="b", units=1)])
        await session.flush()
        rows[0].units = 2
        await session.delete(rows[1])
    async with database.session_factory.begin() as session:
        row = (await session.scalars(select(Reading))).one()
        row.note, row.bucket = "checked", None
        await session.flush()
        await session.execute(update(Reading).values(note="checked twice"))
        await session.execute(update(Reading).values(units=3).execution_options(**MEANT))
    async with database.session_factory() as session:
        assert (await session.execute(select(Reading.units, Reading.note))).one() == (
            3,
            "checked twice",
        )
        await session.execute(delete(Reading).execution_options(**MEANT))


async def with_op(database: TemporaryDatabase, step: Callable[[Any], object]) -> None:
    def run(connection: Connection) -> None:
        step(Operations(MigrationContext.configure(connection)))

    async with database.engine.begin() as connection:
        await connection.run_sync(run)


@pytest.mark.parametrize("deletes", [True, False])
async def test_a_trigger_refuses_to_change_an_event(
    database: TemporaryDatabase, deletes: bool
) -> None:
    """On request the database refuses an UPDATE or DELETE of an event, whatever sends it."""
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add(Reading(meter="a", units=1))
    columns = ["position", "meter", "units"]
    await with_op(database, lambda op: add_event_guard(op, "readings", columns, deletes=deletes))
    async with database.engine.connect() as connection:
        with pytest.raises(DBAPIError, match="neither changed nor deleted"):
            await connection.execute(text("UPDATE readings SET units = 2"))
        await connection.rollback()
        await connection.execute(text("UPDATE readings SET note = 'checked', bucket = NULL"))
        if deletes:
            with pytest.raises(DBAPIError, match="neither changed nor deleted"):
                await connection.execute(text("DELETE FROM readings"))
        else:
            await connection.execute(text("DELETE FROM readings"))
    await with_op(database, lambda op: drop_event_guard(op, "readings"))
    async with database.engine.begin() as connection:
        await connection.execute(text("UPDATE readings SET units = 2"))
        await connection.execute(text("DELETE FROM readings"))


async def raw(bank: Bank, sql: str) -> None:
    async with bank.database.engine.begin() as connection:
        await connection.execute(text(sql))


async def differs(bank: Bank) -> str | None:
    """Return what the status says once a coordinator has made its first round."""
    async with coordinating(bank) as rounds:
        await rounds.one()
    async with bank.sessions() as session:
        return (await bank.flow.status(session)).differs


@pytest.mark.parametrize(
    ("sql", "back", "words"),
    [
        (
            "UPDATE payments SET cents = cents + 1 WHERE position = 115",
            "UPDATE payments SET cents = cents - 1 WHERE position = 115",
            "digest",
        ),
        ("DELETE FROM payments WHERE position = 115", None, "rows, and had"),
    ],
)
async def test_the_coordinator_finds_events_that_were_changed(
    database: TemporaryDatabase, sql: str, back: str | None, words: str
) -> None:
    """The coordinator verifies the last steps, and the status has what it found until the events
    are as they were; rows that were deleted since all flows have done them are no difference.
    """
    bank = await done_bank(database)
    assert await differs(bank) is None
    await raw(bank, sql)
    found = await differs(bank)
    assert found is not None
    assert words in found
    assert "results stand as they were" in found
    if back is not None:
        await bank.pay(200)
        await run_until_settled(bank.sessions, bank.streams.pipelines())
        assert await differs(bank) == found
        await raw(bank, back)
        assert await differs(bank) is None
    await raw(bank, "DELETE FROM payments")
    assert await differs(bank) is None
