"""A table that is not what the model says: a clear error in `health`, other pipelines go on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

import pytest
from sqlalchemy import ColumnElement, ForeignKey, text
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, undefer
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock import (
    Apply,
    LockColumns,
    Pipeline,
    PipelineItem,
    PipelineManager,
    ScheduleColumns,
    events,
)
from rowlock.testing import TemporaryDatabase, stepping

from ..host import (
    HANG_S_MAX,
    Attachment,
    AttachmentPipeline,
    Base,
    Run,
    RunPipeline,
    Volume,
    VolumePipeline,
    heard_events,
)
from ..pipelines.scenes import add, counted, is_free, read_all
from .patience import QUICK, HeldWork, until_healthy


async def migrate(database: TemporaryDatabase, *statements: str) -> None:
    """Change the schema while everything runs; SQLite lets nobody do that beside an open
    statement, so it is tried again.
    """
    for statement in statements:
        async with database.engine.begin() as connection:
            await connection.execute(text(statement))


class LookingPipeline(RunPipeline):
    """Says how its rows are read, so that each is read when work on it begins."""

    def options(self) -> Sequence[LoaderOption]:
        return [undefer(Run.status)]


MISSING: list[tuple[str, str, str]] = [
    ("a column of the host", "ALTER TABLE runs RENAME COLUMN result TO outcome", "result"),
    ("a lock column", "ALTER TABLE runs RENAME COLUMN lock_token TO token", "lock_token"),
    ("a schedule column", "ALTER TABLE runs RENAME COLUMN due_at TO due", "due_at"),
    ("the table", "ALTER TABLE runs RENAME TO walks", "runs"),
]
BACK = {
    "result": "ALTER TABLE runs RENAME COLUMN outcome TO result",
    "lock_token": "ALTER TABLE runs RENAME COLUMN token TO lock_token",
    "due_at": "ALTER TABLE runs RENAME COLUMN due TO due_at",
    "runs": "ALTER TABLE walks RENAME TO runs",
}


@pytest.mark.databases_in_turn
@pytest.mark.parametrize("read_later", [False, True], ids=["read with the claim", "read later"])
@pytest.mark.parametrize(
    ("statement", "name"), [case[1:] for case in MISSING], ids=[case[0] for case in MISSING]
)
async def test_a_migration_that_was_not_run_yet(
    database: TemporaryDatabase, statement: str, name: str, read_later: bool
) -> None:
    """A new release that starts before its migration would have to be started again, or take
    other pipelines along.
    """
    await add(database, *(Run(id=number) for number in range(5)), Volume())
    await migrate(database, statement)
    runs = LookingPipeline(**QUICK) if read_later else RunPipeline(**QUICK)
    with heard_events() as heard:
        async with PipelineManager(
            database.session_factory, [runs, VolumePipeline(**QUICK)]
        ) as manager:
            await heard.wait_for(events.FetchFailed, count=8)
            await heard.wait_for(events.ItemApplied)
            health = {one.pipeline: one for one in manager.health().pipelines}
            assert not health[runs.name].healthy
            assert name in (health[runs.name].last_error or "")
            counters = runs.statistics().counters
            # What the fetch under way has claimed is counted before its failure is.
            failed = counters["fetches_failed"] + 1
            assert counters["claimed"] <= (2 * failed + 5 if read_later else 0)
            assert health["VolumePipeline"].last_error is None
            await migrate(database, BACK[name])
            await heard.wait_for(events.ItemApplied, count=6)
            await until_healthy(manager)
            assert heard.of(events.LoopReplaced) == []
    rows = await read_all(database, Run)
    assert [(row.status, row.attempts, is_free(row)) for row in rows] == [("done", 0, True)] * 5


async def test_columns_that_the_model_does_not_know_are_left_alone(
    database: TemporaryDatabase,
) -> None:
    """During a rolling release the old replicas would fail on the columns of the new ones, or
    empty them.
    """
    await add(database, Run(id=1))
    await migrate(database, "ALTER TABLE runs ADD COLUMN colour VARCHAR DEFAULT 'red' NOT NULL")
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [RunPipeline(**QUICK)]):
            await heard.wait_for(events.ItemApplied)
    async with database.engine.connect() as connection:
        assert tuple((await connection.execute(text("SELECT status, colour FROM runs"))).one()) == (
            "done",
            "red",
        )


async def test_a_column_whose_type_changes_meanwhile(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Statements that the driver has prepared would fail for ever after a migration, or cost
    rows their attempts.
    """
    database = postgresql_database
    await add(database, *(Run(id=number) for number in range(3)))
    # One connection, which has prepared everything before; and rows are read apart from their
    # claims.
    engine = database.create_engine(pool_size=1, max_overflow=0)
    runs = LookingPipeline(**QUICK)
    with heard_events() as heard:
        async with PipelineManager(async_sessionmaker(engine), [runs]) as manager:
            await heard.wait_for(events.ItemApplied, count=3)
            await migrate(database, "ALTER TABLE runs ALTER COLUMN id TYPE bigint")
            async with async_sessionmaker(database.create_engine()).begin() as session:
                session.add_all([Run(id=10 + number) for number in range(3)])
            await heard.wait_for(events.ItemApplied, count=6)
            await until_healthy(manager)
            assert heard.of(events.LoopReplaced) == []
    assert {(row.status, row.attempts) for row in await read_all(database, Run)} == {("done", 0)}
    assert len(runs.items) == 6
    assert heard.of(events.ItemFailed) == []


async def test_what_was_prepared_before_a_migration_is_prepared_anew(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A row that was claimed before a migration, and read after it, would be counted as failed."""
    await add(postgresql_database, *(Run(id=number) for number in range(2)))
    engine = postgresql_database.create_engine(pool_size=1, max_overflow=0)
    async with stepping(async_sessionmaker(engine), RunPipeline(**QUICK)) as steps:
        for _ in range(2):
            await steps.fetch_once(1)
            if steps.queued[0].id == 1:
                await migrate(postgresql_database, "ALTER TABLE runs ALTER COLUMN id TYPE bigint")
            await steps.work_all()
        assert (counted(steps)["applied"], counted(steps)["retried"]) == (2, 0)


async def test_a_table_that_vanishes_while_its_rows_are_at_work(
    database: TemporaryDatabase,
) -> None:
    """What was in hand would never end, or stop the pipelines beside it."""
    await add(database, Volume())
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        volume = Volume(status="active")
        session.add(volume)
        await session.flush()
        session.add(Attachment(volume_id=volume.id))
    work = HeldWork()
    attachments = AttachmentPipeline(answer=work, **QUICK)
    with heard_events() as heard:
        async with PipelineManager(
            database.session_factory, [attachments, VolumePipeline(**QUICK)]
        ) as manager:
            await work.started.wait()
            await migrate(database, "DROP TABLE attachments")
            work.go_on.set()
            await heard.wait_for(events.ItemFailed)
            async with asyncio.timeout(HANG_S_MAX):
                while manager.statistics()["AttachmentPipeline"].tracked:  # noqa: ASYNC110 - figures set no event
                    await asyncio.sleep(0.01)
            assert manager.health().pipelines[1].last_error is None
            async with database.session_factory.begin() as session:
                session.add(Volume())
            await heard.wait_for(events.ItemApplied, count=2)


async def test_one_kind_that_cannot_be_read_does_not_stop_the_others(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A row whose own table lacks a column would be released and claimed for ever, and all
    others wait behind it.
    """

    class OwnBase(DeclarativeBase):
        """A host with a table for each kind."""

    class Doc(LockColumns, ScheduleColumns, OwnBase):
        __tablename__ = "docs"
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str] = mapped_column(default="doc")
        status: Mapped[str] = mapped_column(default="new")
        __mapper_args__: ClassVar = {"polymorphic_on": "kind", "polymorphic_identity": "doc"}

    class Special(Doc):
        __tablename__ = "specials"
        id: Mapped[int] = mapped_column(ForeignKey("docs.id"), primary_key=True)
        extra: Mapped[str | None]
        __mapper_args__: ClassVar = {
            "polymorphic_identity": "special",
            "polymorphic_load": "selectin",
        }

    class DocPipeline(Pipeline[Doc]):
        model = Doc
        fetch_delays = (0.05,)
        retry_delay = 0.05

        def ready(self) -> ColumnElement[bool]:
            return Doc.status == "new"

        async def process(self, item: PipelineItem[Doc]) -> Apply:
            return Apply({"status": "done"})

    await sqlite_database.create_tables(OwnBase.metadata)
    async with sqlite_database.session_factory.begin() as session:
        session.add(Special(id=1))
        await session.flush()
        session.add_all([Doc(id=number) for number in range(2, 8)])
    await migrate(sqlite_database, "ALTER TABLE specials DROP COLUMN extra")
    statement = text(
        "SELECT count(*), max(CASE WHEN id = 1 THEN attempts END) FROM docs WHERE status = 'new'"
    )
    async with (
        PipelineManager(sqlite_database.session_factory, [DocPipeline()]),
        asyncio.timeout(HANG_S_MAX),
    ):
        left: tuple[int, int] = (7, 0)
        while left[0] > 1 or not left[1]:
            async with sqlite_database.session_factory() as session:
                left = tuple((await session.execute(statement)).one())  # type: ignore[assignment]
            await asyncio.sleep(0.02)
