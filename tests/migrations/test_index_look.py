"""A pipeline looks at its indexes once, and says what no index of the table does for it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

import pytest
from sqlalchemy import ColumnElement, String, Uuid, and_, cast, exists, func, insert, literal, true
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import DeclarativeBase, Mapped, aliased, mapped_column
from sqlalchemy.types import UserDefinedType

from rowlock import Apply, LockColumns, Pipeline, PipelineManager, ScheduleColumns, due_index
from rowlock.pipelines import run
from rowlock.pipelines.fetcher import ClaimBuilder
from rowlock.pipelines.run import log_indexes
from rowlock.testing import TemporaryDatabase, stepping


class Base(DeclarativeBase):
    """Tables of their own: their indexes are made by hand."""


class Volume(LockColumns, Base):
    __tablename__ = "volumes"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(index=True)
    is_wanted: Mapped[bool]


class Document(LockColumns, ScheduleColumns, Base):
    """Claimed by the due time; a lock column has another name in the table."""

    __tablename__ = "odd documents"
    lock_token: Mapped[uuid.UUID | None] = mapped_column("held under", Uuid, default=None)
    number: Mapped[int] = mapped_column(primary_key=True)
    is_listed: Mapped[bool]


class VolumePipeline(Pipeline[Volume]):
    """Has a condition of several kinds of parts."""

    model = Volume

    def ready(self) -> ColumnElement[bool]:
        """Wanted volumes with a status, if there is another one."""
        other = aliased(Volume)
        return and_(
            Volume.is_wanted,
            Volume.status.in_(["it's 50 % :new", "old"]),
            exists().where(other.id != Volume.id),
            func.now().is_not(None),
        )

    async def process(self, item: Any) -> Apply:
        return Apply()


class DocumentPipeline(Pipeline[Document]):
    model = Document

    def ready(self) -> ColumnElement[bool]:
        return Document.is_listed

    async def process(self, item: Any) -> Apply:
        return Apply()


async def told(
    database: TemporaryDatabase,
    pipeline: Pipeline[Any],
    caplog: pytest.LogCaptureFixture,
    *indexes: str,
) -> list[str]:
    """Make the tables and `indexes`, and return what a pipeline says of them."""
    async with database.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        for index in indexes:
            await connection.exec_driver_sql(index)
        # A small table, and the planner knows it.
        await connection.execute(insert(Volume).values(status="old", is_wanted=True))
        await connection.execute(insert(Document).values(is_listed=True))
        await connection.exec_driver_sql("ANALYZE")
    caplog.clear()
    async with stepping(database.session_factory, pipeline) as steps:
        context = steps.run.context
        assert await log_indexes(context, ClaimBuilder(context).next(1)) is not None
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


class EveryVolume(VolumePipeline):
    def ready(self) -> ColumnElement[bool]:
        return true()


class Unspoken(UserDefinedType[str]):
    """A type without literals, as those of extensions are."""

    cache_ok = True

    def get_col_spec(self, **options: Any) -> str:
        return "TEXT"


class UnspokenPipeline(VolumePipeline):
    """Compares with a value that no SQL text can hold."""

    def ready(self) -> ColumnElement[bool]:
        return and_(Volume.is_wanted, Volume.status != literal("x", Unspoken()))


class ArrayPipeline(VolumePipeline):
    """Compares with values whose text is of another type to PostgreSQL."""

    def ready(self) -> ColumnElement[bool]:
        texts = cast(["a"], ARRAY(String))
        return and_(Volume.is_wanted, texts.contains(["a"]))


@pytest.mark.parametrize("pipeline", [UnspokenPipeline, ArrayPipeline])
async def test_values_without_a_text_are_bound(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, pipeline: type[Pipeline[Any]]
) -> None:
    """A host with such values would never hear that its claims have no index."""
    if pipeline is ArrayPipeline and database.dialect_name == "sqlite":
        pytest.skip("SQLite has no arrays")
    (warning,) = await told(database, pipeline(), caplog)
    assert warning.startswith(f"{pipeline.__name__}: no index serves the claim of ")
    caplog.clear()
    whole = "CREATE INDEX whole ON volumes (last_processed_at NULLS FIRST, id)"
    if database.dialect_name == "sqlite":
        whole = whole.replace(" NULLS FIRST", "")
    assert await told(database, pipeline(), caplog, whole) == []


@pytest.mark.parametrize("pipeline", [VolumePipeline, DocumentPipeline, EveryVolume])
async def test_the_index_of_a_pipeline_serves_it(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, pipeline: type[Pipeline[Any]]
) -> None:
    """A host that did everything right would be warned, or its index would serve no claim."""
    index = due_index(pipeline, name="made of the pipeline")
    try:
        assert await told(database, pipeline(), caplog) == []
    finally:
        index.table.indexes.discard(index)  # type: ignore[union-attr]
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql('DROP INDEX "made of the pipeline"')
    (warning,) = await told(database, pipeline(), caplog)
    assert f"due_index({pipeline.__name__})" in warning
    assert warning.startswith(f"{pipeline.__name__}: no index serves the claim of ")
    assert ", since" not in warning


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("(last_processed_at, id) WHERE status = 'other'", "VolumePipeline, since odd does not;"),
        ("(last_processed_at DESC, id)", "VolumePipeline, since odd does not;"),
        ("(status, last_processed_at)", "no index serves the claim of VolumePipeline;"),
    ],
)
async def test_an_index_that_cannot_serve_is_named(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, columns: str, problem: str
) -> None:
    """A host would believe its claims served: the index is there, and its condition or its order
    is another.
    """
    if "DESC" in columns and database.dialect_name == "sqlite":
        pytest.skip("SQLite reads an index both ways, with the nulls at the right end")
    warnings = await told(
        database, VolumePipeline(), caplog, f"CREATE INDEX odd ON volumes {columns}"
    )
    assert len(warnings) == 1
    assert problem in warnings[0]


async def test_an_index_that_finds_rows_and_orders_none_is_named(
    postgresql_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Each claim would read all rows that want work, and sort them."""
    warnings = await told(
        postgresql_database,
        VolumePipeline(),
        caplog,
        "CREATE INDEX odd ON volumes (last_processed_at DESC, id) WHERE is_wanted",
        "INSERT INTO volumes (id, status, is_wanted)"
        " SELECT -number, 'other', false FROM generate_series(1, 5000) AS number",
    )
    assert len(warnings) == 1
    assert "no index serves the claim of VolumePipeline, since odd does not" in warnings[0]


@pytest.mark.parametrize(
    "index", ['("held under")', '(number) WHERE "held under" IS NULL', "(lower(lock_owner))"]
)
async def test_an_index_that_heartbeats_write_is_named(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, index: str
) -> None:
    """Every heartbeat would write every index of the table, and nobody would know."""
    serving = 'CREATE INDEX serving ON "odd documents" (due_at, number)'
    warnings = await told(
        database,
        DocumentPipeline(),
        caplog,
        serving,
        f'CREATE INDEX busy ON "odd documents" {index}',
    )
    assert len(warnings) == 1
    assert warnings[0].startswith("DocumentPipeline: index busy contains")


@pytest.mark.parametrize("check_indexes", [True, False])
async def test_a_manager_looks_once(
    database: TemporaryDatabase,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    check_indexes: bool,
) -> None:
    """Nobody would be told, or a host that knows could not turn it off."""
    began, looked = asyncio.Event(), asyncio.Event()

    async def look(*given: Any) -> None:
        began.set()
        await log_indexes(*given)
        looked.set()

    monkeypatch.setattr(run, "LOOK_AFTER_S", 0)
    monkeypatch.setattr(run, "log_indexes", look)
    async with database.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with PipelineManager(
        database.session_factory, [DocumentPipeline()], check_indexes=check_indexes
    ):
        for _ in range(10):
            await asyncio.sleep(0)
        assert began.is_set() is check_indexes
        if check_indexes:
            await looked.wait()
    warnings = [one for one in caplog.records if "due_index(DocumentPipeline)" in one.getMessage()]
    assert len(warnings) == check_indexes


async def test_a_look_that_fails_harms_nobody(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipeline would warn of a table that is not there yet, or fail for it."""
    async with stepping(database.session_factory, DocumentPipeline()) as steps:
        context = steps.run.context
        assert await log_indexes(context, ClaimBuilder(context).next(1)) is None
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
