"""COMMITs whose answer is lost, where the stamp is not kept as it was sent."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import ColumnElement, DateTime, Dialect, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from rowlock import Apply, LockColumns, database_now
from rowlock.leases.apply import Written, processed_at
from rowlock.rows.lease_values import processed_values
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, stepping

from ..conformance.test_dialects import claimed, transact
from ..host import RecordingPipeline
from ..pipelines.scenes import counted
from .test_lost_answers import committed_or_not, lost_answers

ELSEWHERE = timezone(timedelta(hours=5))
DAY_FIRST = (
    "%(day)02d.%(month)02d.%(year)04d %(hour)02d:%(minute)02d:%(second)02d.%(microsecond)06d"
)
DAY_FIRST_READ = (
    r"(?P<day>\d+)\.(?P<month>\d+)\.(?P<year>\d+)"
    r" (?P<hour>\d+):(?P<minute>\d+):(?P<second>\d+)\.(?P<microsecond>\d+)"
)


class LocalTime(TypeDecorator[datetime]):
    """Keeps times as the clock on the wall shows them."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(ELSEWHERE)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return (
            value if value is None or value.tzinfo is not None else value.replace(tzinfo=ELSEWHERE)
        )


class Base(DeclarativeBase):
    """The metadata of these models."""


class Job(LockColumns, Base):
    """Has the mixin's columns; a migration may have made them otherwise."""

    __tablename__ = "Jobs done"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="queued")


class Milliseconds(LockColumns, Base):
    __tablename__ = "milliseconds"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="queued")
    last_processed_at: Mapped[datetime | None] = mapped_column(
        DateTime(timezone=True).with_variant(TIMESTAMP(timezone=True, precision=3), "postgresql")
    )


class Seconds(LockColumns, Base):
    __tablename__ = "seconds"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="queued")
    last_processed_at: Mapped[datetime | None] = mapped_column(
        DateTime(timezone=True)
        .with_variant(TIMESTAMP(timezone=True, precision=0), "postgresql")
        .with_variant(sqlite.DATETIME(timezone=True, truncate_microseconds=True), "sqlite")
    )


class DayFirst(LockColumns, Base):
    __tablename__ = "day_first"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="queued")
    last_processed_at: Mapped[datetime | None] = mapped_column(
        DateTime(timezone=True).with_variant(
            sqlite.DATETIME(timezone=True, storage_format=DAY_FIRST, regexp=DAY_FIRST_READ),
            "sqlite",
        )
    )


class Elsewhere(LockColumns, Base):
    __tablename__ = "elsewhere"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="queued")
    last_processed_at: Mapped[datetime | None] = mapped_column(LocalTime)


class Ending(RecordingPipeline):
    def __init__(self, model: type[Any]) -> None:
        self.model = model
        super().__init__(answer=Apply({"status": "done"}))

    def ready(self) -> ColumnElement[bool]:
        ready: ColumnElement[bool] = self.model.status == "queued"
        return ready


each_type = pytest.mark.parametrize(
    "model", [Job, Milliseconds, Seconds, DayFirst, Elsewhere], ids=lambda model: model.__name__
)


async def told_after_a_lost_answer(
    database: TemporaryDatabase, model: type[Any], *, committed: bool, session_factory: Any = None
) -> tuple[int, int, int]:
    """Have one row processed, lose the answer to its COMMIT, and return what was told: applied,
    stale, and `on_stale`.
    """
    session_factory = session_factory or database.session_factory
    async with session_factory.begin() as session:
        session.add(model(id=1))
    pipeline = Ending(model)
    with lost_answers(database, committed=committed, times=1) as lost:
        async with stepping(session_factory, pipeline) as steps:
            await steps.fetch_once()
            await steps.work_once()
            told = counted(steps)
    assert len(lost) == 1
    async with session_factory() as session:
        assert (await session.get_one(model, 1)).status == "done"
    return told["applied"], told["stale"], len(pipeline.stale)


@committed_or_not
@each_type
async def test_what_the_column_s_type_makes_of_the_stamp_settles_it(
    database: TemporaryDatabase, model: type[Any], committed: bool
) -> None:
    """What the row points to would be cleaned up as that of a stale result."""
    await database.create_tables(Base.metadata)
    assert await told_after_a_lost_answer(database, model, committed=committed) == (1, 0, 0)


@committed_or_not
@pytest.mark.parametrize("type_", ["timestamptz(3)", "timestamptz(0)", '"Stamp"'])
async def test_what_the_database_makes_of_the_stamp_settles_it(
    postgresql_database: TemporaryDatabase, type_: str, committed: bool
) -> None:
    """The same, where a migration has made the column and the model does not tell."""
    database = postgresql_database
    await database.create_tables(Base.metadata)
    async with database.engine.begin() as connection:
        await connection.execute(text('CREATE DOMAIN "Stamp" AS timestamptz(1)'))
        await connection.execute(
            text(f'ALTER TABLE "Jobs done" ALTER last_processed_at TYPE {type_}')
        )
    assert await told_after_a_lost_answer(database, Job, committed=committed) == (1, 0, 0)


async def test_the_column_is_that_of_the_tenant(postgresql_database: TemporaryDatabase) -> None:
    """The same, where the schema is not that of the model; the table of another tenant may have
    been migrated before.
    """
    await postgresql_database.create_tables(Base.metadata)
    async with postgresql_database.engine.begin() as connection:
        await connection.execute(text('CREATE SCHEMA "Tenant"'))
        await connection.execute(
            text('CREATE TABLE "Tenant"."Jobs done" (LIKE public."Jobs done" INCLUDING ALL)')
        )
        await connection.execute(
            text('ALTER TABLE "Tenant"."Jobs done" ALTER last_processed_at TYPE timestamptz(0)')
        )
    engine = postgresql_database.engine.execution_options(schema_translate_map={None: "Tenant"})
    factory = async_sessionmaker(engine, expire_on_commit=False)
    assert await told_after_a_lost_answer(
        postgresql_database, Job, committed=True, session_factory=factory
    ) == (1, 0, 0)


@each_type
async def test_another_stamp_is_not_taken_for_it(
    database: TemporaryDatabase, model: type[Any]
) -> None:
    """An outcome that was lost would be told as applied, because another one is in the row."""
    await database.create_tables(Base.metadata)
    leased = LeasedTable.of(model)
    async with database.session_factory.begin() as session:
        session.add(model(id=1))
    (item,) = await claimed(database, leased)

    async def write(connection: Any) -> datetime:
        stamp = await connection.scalar(database_now().select())
        await connection.execute(leased.table.update().values(processed_values(leased, stamp)))
        assert isinstance(stamp, datetime)
        return stamp

    stamp = await transact(database, leased, write)
    others = {stamp + timedelta(hours=5), stamp + timedelta(seconds=2)}
    for asked, end in ((frozenset({stamp}), Written.APPLIED), (frozenset(others), Written.STALE)):
        found = await transact(
            database, leased, lambda c, s=asked: processed_at(c, leased, [item], stamps=s)
        )
        assert found == {1: end}
