"""Tests of the host's ``version_id_col``: who moves it when an outcome or a request is written."""

from __future__ import annotations

from typing import Any

from sqlalchemy import FetchedValue, Integer, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    Apply,
    LockColumns,
    Outcome,
    Pipeline,
    PipelineItem,
    ScheduleColumns,
    request_update,
)
from rowlock.testing import TemporaryDatabase, stepping


class VersionsBase(DeclarativeBase):
    """Tables of this file alone."""


class Tenfold(LockColumns, VersionsBase):
    """Its host counts versions in tens, from what the row has."""

    __tablename__ = "tenfold"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")
    version: Mapped[str] = mapped_column(default="10")
    __mapper_args__ = {  # noqa: RUF012 - SQLAlchemy's own
        "version_id_col": version,
        "version_id_generator": lambda version: str(int(version or 0) + 10),
    }


class TenfoldPipeline(Pipeline[Any]):
    model = Tenfold
    min_processing_interval = 0

    def ready(self) -> Any:
        return self.model.status == "new"

    async def process(self, item: PipelineItem[Any]) -> Outcome:
        """Count a service's write in between, which the row as it was read does not show."""
        if item.id > 1:
            return Apply({"status": "done"})
        async with item.session() as session, session.begin():
            await session.execute(text("UPDATE tenfold SET version = '50' WHERE id = 1"))
        related = await item.lock_related(Tenfold, Tenfold.id == 101)
        written = {"status": "done"}
        return Apply(written, related=dict.fromkeys(related, written))


async def test_a_version_moves_by_the_generator_of_its_host(database: TemporaryDatabase) -> None:
    """Version columns with a generator function move by it, from the version that the row has when
    it is written: of rows written together, of related rows and by requests.
    """
    await database.create_tables(VersionsBase.metadata)
    async with database.session_factory.begin() as session:
        session.add_all(
            Tenfold(id=number, status="new" if number < 100 else "related")
            for number in (1, 2, 101, 103)
        )
    async with stepping(database.session_factory, TenfoldPipeline()) as steps:
        await steps.fetch_once()
        await steps.work_all()
    async with database.session_factory.begin() as session:
        assert await request_update(session, Tenfold, 103, {"status": "asked"})
        rows = (await session.execute(select(Tenfold.id, Tenfold.version))).all()
    assert {row.id: row.version for row in rows} == {1: "60", 2: "20", 101: "20", 103: "20"}


class Served(LockColumns, ScheduleColumns, VersionsBase):
    """The server keeps its versions, as in SQLAlchemy's own recipe for PostgreSQL."""

    __tablename__ = "served"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")
    xmin: Mapped[int] = mapped_column(Integer, system=True, server_default=FetchedValue())
    __mapper_args__ = {  # noqa: RUF012
        "version_id_col": xmin,
        "version_id_generator": False,
    }


async def test_a_version_that_the_server_keeps_is_left_alone(
    postgresql_database: TemporaryDatabase,
) -> None:
    """With ``version_id_generator=False`` outcomes and requests write the other columns."""

    class ServedPipeline(Pipeline[Any]):
        model = Served

        def ready(self) -> Any:
            return Served.status == "new"

        async def process(self, item: PipelineItem[Any]) -> Outcome:
            return Apply({"status": "done"})

    await postgresql_database.create_tables(VersionsBase.metadata)
    async with postgresql_database.session_factory.begin() as session:
        session.add_all([Served(id=1), Served(id=2)])
    async with stepping(postgresql_database.session_factory, ServedPipeline()) as steps:
        await steps.fetch_once()
        await steps.work_all()
        assert steps.run.context.counters.applied == 2
    async with postgresql_database.session_factory.begin() as session:
        assert await request_update(session, Served, 2, {"status": "asked"})
        rows = (await session.execute(select(Served.id, Served.status))).all()
    assert {row.id: row.status for row in rows} == {1: "done", 2: "asked"}
