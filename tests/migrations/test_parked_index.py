"""The index of parked rows: as a part of the model, as a step, and as Alembic writes it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Index, and_, inspect, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.schema import CreateIndex

from rowlock import (
    Apply,
    LockColumns,
    ModelError,
    Pipeline,
    ScheduleColumns,
    UtcDateTime,
    database_now,
    due_index,
    parked_index,
)
from rowlock.insight import Insight, Level
from rowlock.insight.status import COUNTED_MAX
from rowlock.migrations import add_parked_index, drop_parked_index
from rowlock.testing import TemporaryDatabase

from .autogenerating import WrittenTree
from .conftest import WithOp

DIALECTS = {"postgresql": postgresql.dialect(), "sqlite": sqlite.dialect()}


def host(*, has_index: bool) -> tuple[type[Any], type[Pipeline[Any]]]:
    """Return a model of its own registry, since an index is added to its table for good, and its
    pipeline; what comes with the index is a column more.
    """

    class Base(DeclarativeBase):
        pass

    class Document(LockColumns, ScheduleColumns, Base):
        __tablename__ = "documents"
        number: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str] = mapped_column(default="listed")
        if has_index:
            title: Mapped[str | None]

    class DocumentPipeline(Pipeline[Document]):
        model = Document

        def ready(self) -> Any:
            return Document.status == "listed"

        async def process(self, item: Any) -> Apply:
            return Apply()

    if has_index:
        parked_index(Document)
    return Document, DocumentPipeline


async def names_of(database: TemporaryDatabase) -> list[str]:
    async with database.engine.connect() as connection:
        found = await connection.run_sync(lambda sync: inspect(sync).get_indexes("documents"))
    return [str(one["name"]) for one in found]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_parked_rows_alone_are_in_it(dialect: str) -> None:
    """Each row would be in a further index, and each claim would have to choose between two."""
    model, _ = host(has_index=True)
    [of_model] = model.__table__.indexes
    of_table = parked_index("documents", key="number")
    sql = "CREATE INDEX ix_documents_parked_at ON documents (parked_at, number) WHERE parked_at"
    assert str(CreateIndex(of_model).compile(dialect=DIALECTS[dialect])) == f"{sql} IS NOT NULL"
    assert isinstance(of_table, Index)
    model.__table__.indexes.clear()
    model.__table__.append_constraint(of_table)
    assert str(CreateIndex(of_table).compile(dialect=DIALECTS[dialect])) == f"{sql} IS NOT NULL"


def test_what_cannot_be_is_refused() -> None:
    """A host would have an index that finds nothing, or two of one name."""
    model, pipeline = host(has_index=True)
    assert parked_index(pipeline, name="ix_of_pipeline").table is model.__table__
    with pytest.raises(ModelError, match="has an index named ix_documents_parked_at already"):
        parked_index(model)
    with pytest.raises(ModelError, match="knows the key"):
        parked_index(model, key="number")

    class Base(DeclarativeBase):
        pass

    class Plain(LockColumns, Base):
        __tablename__ = "plain"
        id: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(ModelError, match="are never parked, since it has no schedule"):
        parked_index(Plain)


async def test_alembic_writes_it_for_a_table_that_is_there(
    database: TemporaryDatabase, tmp_path: Path
) -> None:
    """Building it would hold off all writes of a large table, or commit the half of a migration;
    or the next revision would have it again.
    """
    tree = WrittenTree(tmp_path / "tree", database)
    # The pipeline is kept: without one the index would not be dropped.
    (before, _pipeline), (after, _) = host(has_index=False), host(has_index=True)
    await tree.write(before.metadata, "before")
    await tree.upgrade()
    column, written = await tree.write(after.metadata, "parked")
    assert "'title'" in column
    assert "'title'" not in written
    drop = "drop_parked_index(op, 'documents', name='ix_documents_parked_at', concurrently=True)"
    assert "add_parked_index(\n        op,\n        'documents',\n        key='number'" in written
    assert drop in written
    assert written.count("concurrently=True") == 2
    await tree.upgrade()
    await tree.check()
    assert await names_of(database) == ["ix_documents_parked_at"]
    _, gone = await tree.write(before.metadata, "gone")
    assert gone.index(drop) < gone.index("add_parked_index(\n")
    await tree.upgrade()
    assert await names_of(database) == []
    await tree.downgrade("-4")
    assert await names_of(database) == []


def strange_host() -> Any:
    """Return the metadata of a host with an index of its own that begins with the same column, and
    a model that calls the column otherwise.
    """

    class Base(DeclarativeBase):
        pass

    class Letter(LockColumns, ScheduleColumns, Base):
        __tablename__ = "letters"
        id: Mapped[int] = mapped_column(primary_key=True)
        parked_at: Mapped[datetime | None] = mapped_column("aside", UtcDateTime)

    class Document(LockColumns, ScheduleColumns, Base):
        __tablename__ = "documents"
        number: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str]

    due_index(Letter, ready=Letter.id > 0)
    parked_index(Letter)
    lost = and_(Document.status == "lost", Document.parked_at.is_not(None))
    where = {f"{name}_where": lost for name in DIALECTS}
    Index("ix_lost", Document.parked_at, Document.number, **where)
    return Base.metadata


async def test_alembic_writes_no_step_for_what_is_another_index(
    database: TemporaryDatabase, tmp_path: Path
) -> None:
    """An index of the host's would lose its condition without a word, and a migration would fail
    for a column that has another name.
    """
    tree = WrittenTree(tmp_path / "tree", database)
    [written] = await tree.write(strange_host(), "all")
    assert "add_parked_index" not in written
    assert "add_due_index" not in written
    assert "lost" in written.replace("ix_lost", "")
    await tree.upgrade()
    await tree.check()
    assert await names_of(database) == ["ix_lost"]
    await tree.downgrade("-1")


async def test_steps_of_a_migration(database: TemporaryDatabase, with_op: WithOp) -> None:
    """A migration that was written by hand would not run, or leave the index behind."""
    model, _ = host(has_index=False)
    async with database.engine.begin() as connection:
        await connection.run_sync(model.metadata.create_all)
    for concurrently in (False, True):
        named = {"name": "ix_aside", "concurrently": concurrently}
        await with_op(
            lambda op, named=named: add_parked_index(op, "documents", key="number", **named)
        )
        assert await names_of(database) == ["ix_aside"]
        await with_op(lambda op, named=named: drop_parked_index(op, "documents", **named))
        assert await names_of(database) == []


async def test_parked_rows_are_counted_by_it(database: TemporaryDatabase) -> None:
    """The advice of the check would lead to an index by which nothing is counted."""
    counted = []
    for has_index in (False, True):
        model, pipeline = host(has_index=has_index)
        async with database.engine.begin() as connection:
            await connection.run_sync(model.metadata.drop_all)
            await connection.run_sync(model.metadata.create_all)
        async with database.session_factory() as session, session.begin():
            session.add(model(number=1, parked_at=database_now()))
        insight = Insight(database.session_factory, [pipeline()])
        [one] = (await insight.status()).pipelines
        notes = [one.remedy for one in await insight.check() if one.level is Level.NOTE]
        counted.append((one.counts.parked, "parked_index(Document)" in notes))
    assert counted == [(None, True), (1, False)]


async def test_it_serves_the_count(database: TemporaryDatabase) -> None:
    """The whole table would be read for the count, in spite of the index."""
    model, _ = host(has_index=True)
    async with database.engine.begin() as connection:
        await connection.run_sync(model.metadata.create_all)
        table = model.__table__
        query = select(table.c.number).where(table.c.parked_at.is_not(None)).limit(COUNTED_MAX)
        sql = str(query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True}))
        if database.engine.dialect.name == "postgresql":
            await connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            sql = f"EXPLAIN {sql}"
        else:
            sql = f"EXPLAIN QUERY PLAN {sql}"
        plan = "\n".join(str(row[-1]) for row in (await connection.exec_driver_sql(sql)).all())
    assert "ix_documents_parked_at" in plan, plan
