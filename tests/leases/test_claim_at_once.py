"""Claims that are one statement: a round trip on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Time, event, text
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Mapped, mapped_column

from rowlock import LockColumns, PipelineItem
from rowlock.leases.claim import claim
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.lock_tokens import deaths_of
from rowlock.testing import TemporaryDatabase

from ..host import Base, Run, Volume
from .ground import MARGIN, RUNS, TIMEOUT, VOLUMES, add, order_for


class Clocked(LockColumns, Base):
    """Has a column in which ``24:00`` may stand, which Python has no value for."""

    __tablename__ = "clocked"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    at: Mapped[Any] = mapped_column(Time, nullable=True)


async def autocommits_of_claims(
    engine: AsyncEngine, model: type[Any]
) -> tuple[list[PipelineItem[Any]], set[bool]]:
    """Claim rows with all that is in them, and return them with whether that was done under
    AUTOCOMMIT.
    """
    autocommits: set[bool] = set()

    def note(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("WITH rowlock_line"):
            autocommits.add(connection.connection.dbapi_connection.autocommit)

    event.listen(engine.sync_engine, "before_cursor_execute", note)
    order = replace(order_for(LeasedTable.of(model)), with_rows=True)
    items = await claim(async_sessionmaker(engine), order, lease_margin=MARGIN, timeout=TIMEOUT)
    return items, autocommits


@pytest.mark.parametrize("model", [Volume, Run, Clocked])
async def test_a_claim_is_one_statement_whatever_the_types(
    postgresql_database: TemporaryDatabase, model: type[Any]
) -> None:
    """Each claim would take three round trips."""
    await add(postgresql_database, *(model() for _ in range(3)))
    items, autocommits = await autocommits_of_claims(postgresql_database.engine, model)
    assert len(items) == 3
    assert autocommits == {True}


async def test_a_claim_whose_answer_cannot_be_read_releases_its_own_rows_alone(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Its rows would stay leased for a lease, or another claim of the same process would lose its
    own; and what is known of a dead holder must stand.
    """
    database, leased = postgresql_database, LeasedTable.of(Clocked)
    await add(database, *(Clocked(id=number) for number in (1, 2, 3)))
    order = replace(order_for(leased), limit=1)

    async def claimed() -> PipelineItem[Any]:
        [item] = await claim(database.session_factory, order, lease_margin=MARGIN, timeout=TIMEOUT)
        return item

    async def end_leases(key: int) -> None:
        async with database.session_factory.begin() as session:
            ended = "lock_expires_at = '2020-01-01', at = '24:00'"
            await session.execute(text(f"UPDATE clocked SET {ended} WHERE id = {key}"))

    dead, held = await claimed(), await claimed()
    await end_leases(dead.id)
    with pytest.raises((ValueError, DBAPIError)):
        await autocommits_of_claims(database.engine, Clocked)
    async with database.engine.connect() as connection:
        rows = dict(
            map(tuple, await connection.execute(text("SELECT id, lock_token FROM clocked")))
        )
    assert (rows[held.id], rows[3]) == (held.lock_token, None)
    again = await claimed()
    assert (again.id, again.prev_lock_expired) == (dead.id, True)
    assert deaths_of(again.lock_token).counted == 1


async def test_a_claim_that_is_refused_looks_for_no_rows_of_its_own(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Nothing was leased, and each such look reads the whole table."""
    database, sent = postgresql_database, []

    @event.listens_for(database.engine.sync_engine, "before_cursor_execute")
    def record(*args: Any) -> None:
        sent.append(args[2])

    with pytest.raises(ProgrammingError):
        await autocommits_of_claims(database.engine, Clocked)
    assert len([statement for statement in sent if "UPDATE clocked" in statement]) == 1


async def test_what_the_host_sets_at_the_begin_is_set_for_claims(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A tenant that is ``SET LOCAL`` at the begin of a transaction would be gone before the
    claim.
    """
    await add(postgresql_database, Volume())
    event.listen(postgresql_database.engine.sync_engine, "begin", lambda _: None)
    _, autocommits = await autocommits_of_claims(postgresql_database.engine, Volume)
    assert autocommits != {True}


@pytest.mark.parametrize(("leased", "name"), [(VOLUMES, "active_at"), (RUNS, "deadline_at")])
async def test_a_time_that_python_has_not_costs_its_own_row_alone(
    postgresql_database: TemporaryDatabase, leased: LeasedTable, name: str
) -> None:
    """One such time in a column of the host's would keep all rows that are claimed with it from
    being worked on.
    """
    await add(postgresql_database, *(leased.model() for _ in range(3)))
    async with postgresql_database.session_factory.begin() as session:
        table = leased.table.name
        some = f"(SELECT min(CAST(id AS text)) FROM {table})"
        await session.execute(
            text(f"UPDATE {table} SET {name} = '0044-03-15 BC' WHERE CAST(id AS text) = {some}")
        )
    items, _ = await autocommits_of_claims(postgresql_database.engine, leased.model)
    assert sorted(item.has_row for item in items) == [False, True, True]
