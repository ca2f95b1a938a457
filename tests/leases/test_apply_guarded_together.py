"""Outcomes under guards in one statement: each is compared as it would be alone."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import CHAR, JSON, Numeric, String
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from rowlock import LockColumns, UtcDateTime
from rowlock.leases.apply import RowWrite, Written, apply_locked, lock_for_apply, write_free
from rowlock.rows.lease_values import unlocked_values
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from ..host import Run
from ..pipelines.scenes import faults_of
from .ground import RUNS, add, apply, claimed, row_of, transact
from .test_apply_together import TIME


class Base(DeclarativeBase):
    """The tables of this module alone."""


class Gauge(LockColumns, Base):
    """A host's table with values that are easily compared in the wrong way."""

    __tablename__ = "gauges"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    name: Mapped[str | None]
    code: Mapped[str | None] = mapped_column(CHAR(5))
    price: Mapped[Decimal | None] = mapped_column(Numeric(10, 2))
    height: Mapped[float | None]
    is_on: Mapped[bool | None]
    seen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    mark: Mapped[uuid.UUID | None]
    notes: Mapped[Any | None] = mapped_column(JSON)


GAUGES = LeasedTable.of(Gauge)


FULL: dict[str, Any] = {
    "name": "it's",
    "code": "ab",
    "price": Decimal("1.10"),
    "height": 0.1,
    "is_on": True,
    "seen_at": TIME,
    "mark": uuid.UUID(int=7),
    "notes": {"a": [1]},
}


OTHER: dict[str, Any] = {
    "name": "It's",
    "code": "abc",
    "price": Decimal("1.11"),
    "height": 0.2,
    "is_on": False,
    "seen_at": TIME + timedelta(microseconds=1000),
    "mark": uuid.UUID(int=8),
    "notes": {"a": [2]},
}


@pytest.mark.parametrize("name", sorted(FULL))
async def test_guards_are_compared_together_as_they_are_alone(
    database: TemporaryDatabase, name: str
) -> None:
    """What a service has written would be overwritten; or a row that nobody touched be worked on
    for ever.
    """
    found = [FULL[name], None, OTHER[name], None, FULL[name]]
    read = [FULL[name], None, FULL[name], FULL[name], None]
    await add(
        database, *(Gauge(id=number + 1, **{name: value}) for number, value in enumerate(found))
    )
    items = await claimed(database, GAUGES)
    column, status = GAUGES.column(name), GAUGES.column("status")
    # As it is read of this database: CHAR comes with its blanks.
    blank = (await row_of(database, GAUGES, 1)).code if name == "code" else FULL[name]
    writes = [
        (
            item,
            RowWrite(
                {status: f"written {number}", **unlocked_values(GAUGES)},
                unless_changed={column: blank if read[number] is not None else None},
                when_changed={status: "overtaken", **unlocked_values(GAUGES)},
            ),
        )
        for number, item in enumerate(items)
    ]

    async def work(connection: AsyncConnection) -> list[Written]:
        await lock_for_apply(connection, GAUGES, items)
        return await apply_locked(connection, GAUGES, writes)

    if database.dialect_name == "postgresql" and name != "notes":
        guarded = [((item.id, item.lock_token), w.values, w.unless_changed) for item, w in writes]
        async with database.engine.connect() as connection:  # rolled back
            assert await write_free(connection, GAUGES, guarded) == {0, 1}
    expected = 2 * [Written.APPLIED] + 3 * [Written.CHANGED]
    assert await transact(database, work, GAUGES) == expected
    rows = [await row_of(database, GAUGES, item.id) for item in items]
    assert [row.status for row in rows] == ["written 0", "written 1"] + 3 * ["overtaken"]


async def test_guarded_writes_of_one_shape_share_statements(database: TemporaryDatabase) -> None:
    """A batch of guarded outcomes would cost a round trip for each: five hundred of them, far
    from the database.
    """
    await add(database, *(Gauge(id=number, name=f"n{number}") for number in range(1, 51)))
    items = await claimed(database, GAUGES, limit=50)
    status, name = GAUGES.column("status"), GAUGES.column("name")
    writes = [
        (
            item,
            RowWrite(
                {status: f"done {item.id}", **unlocked_values(GAUGES)},
                unless_changed={
                    name: f"n{item.id if item.id % 2 else 0}",
                    GAUGES.column("price"): None,
                },
                when_changed={status: "overtaken", **unlocked_values(GAUGES)},
            ),
        )
        for item in items
    ]
    with faults_of(database.engine) as faults:

        async def work(connection: AsyncConnection) -> list[Written]:
            await lock_for_apply(connection, GAUGES, items)
            return await apply_locked(connection, GAUGES, writes)

        written = await transact(database, work, GAUGES)
        assert len(faults.sent) <= 4, "to lock, to compare, to write, and to write what was changed"
    assert [Written.APPLIED if item.id % 2 else Written.CHANGED for item in items] == written
    for item in items:
        status_of_row = (await row_of(database, GAUGES, item.id)).status
        assert status_of_row == (f"done {item.id}" if item.id % 2 else "overtaken")


class Unlike:
    """What a host's type reads: equal to nothing, itself neither."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


class Opaque(TypeDecorator[Any]):
    """A host's type whose values cannot be compared in Python."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str:
        return "opaque"

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return Unlike()


class Sealed(LockColumns, Base):
    __tablename__ = "sealed"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    seal: Mapped[Any] = mapped_column(Opaque, default="any")


async def test_guards_of_the_hosts_own_types_are_compared_by_the_database(
    database: TemporaryDatabase,
) -> None:
    """A row would count as changed for ever, and be worked on again and again, since its host's
    values are never equal.
    """
    leased = LeasedTable.of(Sealed)
    await add(database, *(Sealed(id=number) for number in range(1, 4)))
    items = await claimed(database, leased)
    seal, status = leased.column("seal"), leased.column("status")
    writes = [
        (
            item,
            RowWrite({status: "done", **unlocked_values(leased)}, unless_changed={seal: Unlike()}),
        )
        for item in items
    ]

    async def work(connection: AsyncConnection) -> list[Written]:
        await lock_for_apply(connection, leased, items)
        return await apply_locked(connection, leased, writes)

    assert await transact(database, work, leased) == [Written.APPLIED] * 3


RESULT, STATUS = RUNS.column("result"), RUNS.column("status")


@pytest.mark.parametrize(
    ("read", "found", "written"),
    [
        (None, None, Written.APPLIED),
        (None, "null", Written.APPLIED),
        (None, '{"a": 1}', Written.CHANGED),
        (None, "0", Written.CHANGED),
        ({"a": 1}, '{"a":1}', Written.APPLIED),
        ({"a": 1}, '{"a": 2}', Written.CHANGED),
        ({"a": 1}, "null", Written.CHANGED),
        ({"a": 1}, None, Written.CHANGED),
        ([1, 2], "[2, 1]", Written.CHANGED),
    ],
)
async def test_a_document_is_compared_by_what_it_says(
    sqlite_database: TemporaryDatabase, read: Any, found: str | None, written: Written
) -> None:
    """What a service has written meanwhile would be overwritten; or a row that nobody touched be
    worked on for ever.
    """
    database = sqlite_database
    await add(database, Run(id=1))
    (item,) = await claimed(database, RUNS)
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE runs SET result = ?", (found,))
    write = RowWrite(
        {STATUS: "written"}, unless_changed={RESULT: read}, when_changed={STATUS: "overtaken"}
    )
    assert await transact(database, lambda c: apply(c, RUNS, item, write=write), RUNS) is written
    after = await row_of(database, RUNS, 1)
    assert after.status == {Written.APPLIED: "written", Written.CHANGED: "overtaken"}[written]
