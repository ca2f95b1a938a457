"""Tests of the mixins: what a host's table gets by mixing them in."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from sqlalchemy import inspect, select

from rowlock import LockColumns, ScheduleColumns
from rowlock.rows.leased_table import LOCK_COLUMNS, SCHEDULE_COLUMNS
from rowlock.testing import TemporaryDatabase

from ..host import Base, Run, Volume


def test_the_mixins_have_the_columns_that_are_looked_for() -> None:
    """A model with the mixin would be refused for the want of a column, or carry one that nobody
    knows.
    """
    assert tuple(name for name in vars(LockColumns) if not name.startswith("__")) == LOCK_COLUMNS
    assert (
        tuple(name for name in vars(ScheduleColumns) if not name.startswith("__"))
        == SCHEDULE_COLUMNS
    )


def test_no_column_of_ours_is_indexed() -> None:
    """Every heartbeat would write an index of the host's table."""
    for model in (Volume, Run):
        ours = [
            model.__table__.columns[name]
            for name in (*LOCK_COLUMNS, *SCHEDULE_COLUMNS)
            if name in model.__table__.c
        ]
        assert [column.name for column in ours if column.index or column.unique] == []


async def test_a_new_row_is_free_and_was_never_processed(database: TemporaryDatabase) -> None:
    """A row would be born locked, or behind others."""
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add(Volume())
    async with database.session_factory() as session:
        row = (await session.scalars(select(Volume))).one()
    assert [getattr(row, name) for name in LOCK_COLUMNS] == [None] * 4


async def test_a_new_row_is_due_now(database_with_clock: TemporaryDatabase) -> None:
    """A new row would have to be made due by hand, or would carry attempts that nobody made."""
    await database_with_clock.create_tables(Base.metadata)
    async with database_with_clock.session_factory.begin() as session:
        session.add(Run(id=1))
    async with database_with_clock.engine.begin() as connection:
        await connection.exec_driver_sql(
            "INSERT INTO runs (id, status, updated_at) SELECT 2, status, updated_at FROM runs"
        )
    async with database_with_clock.session_factory() as session:
        by_orm, by_sql = (await session.scalars(select(Run).order_by(Run.id))).all()
    on_sqlite = database_with_clock.dialect_name == "sqlite"
    assert by_orm.due_at == database_with_clock.clock.now
    assert by_sql.due_at == (
        datetime(1970, 1, 1, tzinfo=UTC) if on_sqlite else database_with_clock.clock.now
    )
    for row in (by_orm, by_sql):
        assert [row.attempts, row.last_error, row.parked_at, row.deadline_at] == [
            0,
            None,
            None,
            None,
        ]


async def test_tokens_are_read_as_uuid(database: TemporaryDatabase) -> None:
    """A token could not be compared with the one in the ticket."""
    await database.create_tables(Base.metadata)
    token = uuid.uuid4()
    async with database.session_factory.begin() as session:
        session.add(Volume(lock_token=token))
    async with database.session_factory() as session:
        assert await session.scalar(select(Volume.lock_token)) == token


def test_an_instance_has_its_lock_columns_before_the_flush() -> None:
    """A host that looks at a new row would meet an error."""
    assert set(LOCK_COLUMNS) <= set(inspect(Volume).columns.keys())
