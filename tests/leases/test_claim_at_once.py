"""Claims that are one statement: a round trip on PostgreSQL, wherever no row can keep its claim
from being read.
"""

from __future__ import annotations

import enum
import json
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import JSON, Enum, String, Time, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from rowlock import LockColumns, PipelineItem
from rowlock.leases.claim import claim
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from ..host import Base, Run, Volume
from .ground import MARGIN, RUNS, TIMEOUT, VOLUMES, add, order_for


class Size(enum.Enum):
    """What fits."""

    SMALL = "small"


class Spoken(TypeDecorator[str]):
    """A host's own type, which may refuse what it reads."""

    impl = String
    cache_ok = True


class Sized(LockColumns, Base):
    """Has a column that not every value fits."""

    __tablename__ = "sized"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    size: Mapped[Size] = mapped_column(Enum(Size, native_enum=False, length=20), default=Size.SMALL)


class Said(LockColumns, Base):
    """Has a column of the host's own type."""

    __tablename__ = "said"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    words: Mapped[str | None] = mapped_column(Spoken)


class Clocked(LockColumns, Base):
    """Has a column in which ``24:00`` may stand, which Python has no value for."""

    __tablename__ = "clocked"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    at: Mapped[Any] = mapped_column(Time, nullable=True)


class Noted(LockColumns, Base):
    """Has a document."""

    __tablename__ = "noted"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    note: Mapped[Any] = mapped_column(JSON, nullable=True)


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


@pytest.mark.parametrize(
    ("model", "is_sure"),
    [(Volume, True), (Run, True), (Noted, True), (Sized, False), (Said, False), (Clocked, False)],
)
async def test_a_claim_is_a_transaction_only_where_it_may_fail(
    postgresql_database: TemporaryDatabase, model: type[Any], *, is_sure: bool
) -> None:
    """Each claim would take three round trips; or, where one row cannot be read, the others be
    leased to nobody.
    """
    await add(postgresql_database, *(model() for _ in range(3)))
    items, autocommits = await autocommits_of_claims(postgresql_database.engine, model)
    assert len(items) == 3
    assert (autocommits == {True}) == is_sure


async def test_documents_that_the_host_reads_itself_may_not_be_readable(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A deserializer of the host's that refuses one document would leave the other rows leased
    to nobody.
    """
    await add(postgresql_database, Noted(), Noted())
    engine = postgresql_database.create_engine(json_deserializer=json.loads)
    items, autocommits = await autocommits_of_claims(engine, Noted)
    assert len(items) == 2
    assert autocommits != {True}
    await engine.dispose()


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
