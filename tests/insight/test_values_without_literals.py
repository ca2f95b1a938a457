"""Hosts whose `ready` compares with values that no SQL text can hold as they are."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import ColumnElement, String, and_, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import UserDefinedType

from rowlock import Apply, LockColumns, Outcome, Pipeline, PipelineItem, ScheduleColumns, due_index
from rowlock.insight import Insight, questions
from rowlock.testing import TemporaryDatabase

from .shop import UNTIMED


class Unspoken(UserDefinedType[str]):
    """A type without literals, as those of extensions are."""

    cache_ok = True

    def get_col_spec(self, **options: Any) -> str:
        return "TEXT"


class Base(DeclarativeBase):
    """The host's mapped classes."""


class Scan(LockColumns, ScheduleColumns, Base):
    """Is made of a thing of a certain kind."""

    __tablename__ = "scans"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")
    kind: Mapped[str] = mapped_column(Unspoken(), default="x")


class TaggedBase(DeclarativeBase):
    """The mapped classes of a host on PostgreSQL."""


class Tagged(LockColumns, ScheduleColumns, TaggedBase):
    """Has tags; a literal array of texts is not one of the type of the column."""

    __tablename__ = "tagged"
    id: Mapped[int] = mapped_column(primary_key=True)
    tags: Mapped[list[str]] = mapped_column(ARRAY(String), default=lambda: ["urgent"])


class ScanPipeline(Pipeline[Scan]):
    model = Scan

    def ready(self) -> ColumnElement[bool]:
        return and_(Scan.status == "new", Scan.kind == "x")

    async def process(self, item: PipelineItem[Scan]) -> Outcome:
        return Apply()


class TaggedPipeline(Pipeline[Tagged]):
    model = Tagged

    def ready(self) -> ColumnElement[bool]:
        return Tagged.tags.contains(["urgent"])

    async def process(self, item: PipelineItem[Tagged]) -> Outcome:
        return Apply()


SERVING = "CREATE INDEX ix_scans_due_at ON scans (due_at, id) WHERE status = 'new'"


async def test_a_value_without_a_literal_is_bound(
    database: TemporaryDatabase, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An explanation of a large table would raise, and a check in CI would call claims refused that
    work.
    """
    monkeypatch.setattr(questions, "LARGE_ROWS", 2)
    await database.create_tables(Base.metadata)
    async with database.session_factory() as session:
        session.add_all(Scan() for _ in range(3))
        await session.commit()
    insight = Insight(database.session_factory, [ScanPipeline()], limits=UNTIMED)
    told = (await insight.explain(Scan, 1)).text()
    assert "IN LINE: 1st" in told
    assert "! every claim reads the whole table" in told
    plan = await insight.explain_claim("ScanPipeline")
    assert (plan.refused, plan.served_by) == ("", None)
    assert plan.wanted.endswith("WHERE status = 'new' AND parked_at IS NULL")
    assert any("no index serves" in one.what for one in await insight.check())
    if database_name == "postgresql":
        # SQLite compares the condition of an index with values in the text alone.
        async with database.session_factory() as session:
            await session.execute(text(SERVING))
            await session.commit()
        assert (await insight.explain_claim("ScanPipeline")).served_by == "ix_scans_due_at"


async def test_a_literal_of_another_type_refuses_no_claim(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A check in CI would call claims refused that ask for a tag of an array."""
    await postgresql_database.create_tables(TaggedBase.metadata)
    insight = Insight(postgresql_database.session_factory, [TaggedPipeline()], limits=UNTIMED)
    plan = await insight.explain_claim("TaggedPipeline")
    assert plan.refused == ""
    assert plan.wanted
    assert not [one for one in await insight.check() if "refused" in one.what]


async def test_an_index_over_an_array_is_accepted(postgresql_database: TemporaryDatabase) -> None:
    """`create_all` would fail for a host whose `ready` asks for a tag, and the step that a check
    prints would be refused.
    """

    class Hosts(DeclarativeBase):
        pass

    class Named(LockColumns, ScheduleColumns, Hosts):
        __tablename__ = "named"
        id: Mapped[int] = mapped_column(primary_key=True)
        tags: Mapped[list[str]] = mapped_column(ARRAY(String), default=lambda: ["urgent"])

    class NamedPipeline(Pipeline[Named]):
        model = Named

        def ready(self) -> ColumnElement[bool]:
            return Named.tags.contains(["urgent"])

        async def process(self, item: PipelineItem[Named]) -> Outcome:
            return Apply()

    due_index(NamedPipeline)
    await postgresql_database.create_tables(Hosts.metadata)
    insight = Insight(postgresql_database.session_factory, [NamedPipeline()], limits=UNTIMED)
    plan = await insight.explain_claim("NamedPipeline")
    assert (plan.served_by, plan.refused) == ("ix_named_due_at", "")
