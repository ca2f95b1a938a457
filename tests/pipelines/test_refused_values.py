"""Tests of values that only the driver or the database refuses: the column is named."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import ARRAY, JSON, LargeBinary, Numeric, Text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Outcome, Pipeline, PipelineItem, ScheduleColumns
from rowlock.testing import TemporaryDatabase, stepping

from .scenes import read_all


class KindsBase(DeclarativeBase):
    """Tables of this file alone."""


class Kind(LockColumns, ScheduleColumns, KindsBase):
    """A column of each kind; those of the host stand behind one that is always written."""

    __tablename__ = "kinds"
    id: Mapped[int] = mapped_column(primary_key=True)
    phase: Mapped[str] = mapped_column(default="new")
    number: Mapped[Any] = mapped_column("how_many", type_=Numeric(4, 2), nullable=True)
    count: Mapped[int | None]
    note: Mapped[Any] = mapped_column(Text, nullable=True)
    day: Mapped[date | None]
    at: Mapped[datetime | None]
    is_open: Mapped[bool | None]
    code: Mapped[uuid.UUID | None]
    data: Mapped[Any] = mapped_column(LargeBinary, nullable=True)
    papers: Mapped[Any] = mapped_column(JSON, nullable=True)
    numbers: Mapped[Any] = mapped_column(
        ARRAY(Numeric(4, 2)).with_variant(JSON, "sqlite"), nullable=True
    )


class KindPipeline(Pipeline[Any]):
    """Writes the values of each row, or writes them to a related one."""

    model = Kind
    values: Mapping[int, Mapping[str, Any]]

    def ready(self) -> Any:
        return Kind.phase == "new"

    async def process(self, item: PipelineItem[Any]) -> Outcome:
        values = {"phase": "done", **self.values[item.id]}
        if item.id % 2:
            return Apply(values)
        [related] = await item.lock_related(Kind, Kind.id == 1000)
        return Apply({"phase": "done"}, related={related: values})


ON_POSTGRESQL: list[tuple[str, Any]] = [
    ("how_many", Decimal("123456.5")),
    ("count", 2**40),
    ("count", {"secret": 77}),
    ("note", "a-secret\x00"),
    ("numbers", ["a-secret"]),
]
"""Columns and what PostgreSQL refuses in them, or its drivers."""
EVERYWHERE: list[tuple[str, Any]] = [
    ("count", 2**70),
    ("note", "a-secret \ud800"),
    ("day", "a-secret"),
    ("at", "a-secret"),
    ("is_open", "a-secret"),
    ("code", "a-secret"),
    ("data", 77),
    ("papers", {"secret": {77}}),
]


@pytest.mark.parametrize("driver", ["usual", "psycopg"])
async def test_a_refused_value_is_named_by_its_column(
    database: TemporaryDatabase, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused value is mapped to `table.column` in `last_error` and in the log, with the value
    hidden: of the row and of a related one, whether the driver names it by a number or not at all.
    """
    engine = database.engine
    if driver == "psycopg":
        if database.dialect_name == "sqlite":
            pytest.skip("a driver of PostgreSQL")
        pytest.importorskip("psycopg")
        engine = create_async_engine(database.url.set(drivername="postgresql+psycopg"))
    await database.create_tables(KindsBase.metadata)
    cases = EVERYWHERE + (ON_POSTGRESQL if database.dialect_name == "postgresql" else [])
    async with database.session_factory.begin() as session:
        session.add(Kind(id=1000, phase="related"))
        session.add_all(Kind(id=number) for number in range(1, len(cases) + 1))
    pipeline = KindPipeline(workers_num=50)
    names = {column.name: attribute for attribute, column in pipeline.leased.attributes.items()}
    pipeline.values = {n: {names[column]: value} for n, (column, value) in enumerate(cases, 1)}
    async with stepping(async_sessionmaker(engine), pipeline) as steps:
        await steps.fetch_once()
        await steps.work_all()
    if engine is not database.engine:
        await engine.dispose()
    rows = {row.id: row for row in await read_all(database, Kind)}
    for number, (column, value) in enumerate(cases, 1):
        said = rows[number].last_error
        assert f"(of kinds.{column})" in (said or ""), (column, value, said)
        assert "secret" not in said
    # The log counts errors that come often, and shows the first of them.
    assert "(of kinds." in caplog.text
    assert "secret" not in caplog.text


async def test_a_constraint_names_no_other_column(database: TemporaryDatabase) -> None:
    """What is refused for a constraint, and not for a value, names no column that is not at
    fault.
    """
    await database.create_tables(KindsBase.metadata)
    async with database.session_factory.begin() as session:
        session.add(Kind(id=1))
    pipeline = KindPipeline()
    pipeline.values = {1: {"phase": None, "count": 5}}
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
    [row] = await read_all(database, Kind)
    assert "(of " not in (row.last_error or "(of ")
