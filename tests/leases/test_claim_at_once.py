"""Claims that are one statement, and statements that need no transaction around them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Time, event, select, text, update
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import LockColumns, PipelineItem
from rowlock.database.transaction import in_transaction
from rowlock.leases.claim import claim
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.lock_tokens import deaths_of
from rowlock.testing import TemporaryDatabase

from ..host import Run, Volume
from .ground import MARGIN, RUNS, TIMEOUT, VOLUMES, add, order_for


class Base(DeclarativeBase):
    """The tables of this module alone."""


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


async def in_how_many_transactions(session: AsyncSession, connection: AsyncConnection) -> bool:
    """Return whether two statements see one transaction; on PostgreSQL its time says so."""
    first = await connection.scalar(text("SELECT now()"))
    return bool(first == await connection.scalar(text("SELECT now()")))


@pytest.mark.parametrize("autocommit", [True, False])
async def test_it_is_spared_its_transaction(
    postgresql_database: TemporaryDatabase, autocommit: bool
) -> None:
    """Every read and every claim would cost two round trips more; or a transaction would be
    none.
    """
    together = await in_transaction(
        postgresql_database.session_factory,
        VOLUMES,
        in_how_many_transactions,
        purpose="look",
        timeout=TIMEOUT,
        autocommit=autocommit,
    )
    assert together is not autocommit


async def test_the_hosts_own_set_up_may_begin_a_transaction(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Every claim on a new connection would fail for a host that prepares its connections by a
    statement.
    """
    engine = postgresql_database.create_engine()
    prepared = 0

    @event.listens_for(engine.sync_engine, "checkout")
    def prepare(connection: Any, *_: object) -> None:
        nonlocal prepared
        connection.cursor().execute("SELECT 1")
        prepared += 1

    async def look(session: AsyncSession, connection: AsyncConnection) -> int:
        return len((await connection.execute(select(Volume.id))).all())

    await add(postgresql_database, Volume())
    sessions = async_sessionmaker(engine)
    found = await in_transaction(
        sessions, VOLUMES, look, purpose="look", timeout=TIMEOUT, writes=False, autocommit=True
    )
    assert found == 1
    assert prepared > 0


async def test_the_next_transaction_on_the_connection_is_one(database: TemporaryDatabase) -> None:
    """A connection that went back to the pool without transactions would commit half of what
    comes next.
    """
    await add(database, Volume())
    sessions = async_sessionmaker(database.create_engine(pool_size=1, max_overflow=0))

    async def look(session: AsyncSession, connection: AsyncConnection) -> None:
        await connection.execute(select(Volume.id))

    async def write_and_fail(session: AsyncSession, connection: AsyncConnection) -> None:
        await connection.execute(update(Volume).values(status="half written"))
        raise ValueError("in the middle")

    await in_transaction(
        sessions, VOLUMES, look, purpose="look", timeout=TIMEOUT, writes=False, autocommit=True
    )
    with pytest.raises(ValueError, match="in the middle"):
        await in_transaction(sessions, VOLUMES, write_and_fail, purpose="fail", timeout=TIMEOUT)
    async with sessions() as session:
        assert (await session.scalars(select(Volume.status))).all() == ["submitted"]
