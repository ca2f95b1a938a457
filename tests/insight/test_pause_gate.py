"""The gate of pauses: a pause is a row that every claim asks for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import MetaData, delete, insert, select, text

from rowlock import ConfigurationError, PipelineManager, Reset, database_now, events
from rowlock.insight import InsightTables, insight_tables
from rowlock.insight.tables import tables_of
from rowlock.pipelines.hooks import Seams
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from ..pipelines.scenes import add

TABLES = insight_tables(MetaData())


async def paused(
    database: TemporaryDatabase, pipeline: str | None = None, until: Any = None
) -> None:
    """Make the tables if need be, and commit a pause."""
    assert TABLES.controls is not None
    await database.create_tables(TABLES.controls.metadata)
    if pipeline is None:
        return
    row = {"paused_at": database_now(), "paused_by": "alice", "reason": "provider down"}
    async with database.engine.begin() as connection:
        await connection.execute(
            insert(TABLES.controls).values(pipeline=pipeline, until=until, **row)
        )


async def test_what_is_paused_claims_nothing(database: TemporaryDatabase) -> None:
    """A pause would not hold, or would stop pipelines that nobody has paused."""
    await add(database, Volume(), Run())
    await paused(database, "VolumePipeline")
    manager = PipelineManager(
        database.session_factory, [VolumePipeline(), RunPipeline()], gates=[TABLES.pause_gate]
    )
    with heard_events() as heard:
        async with manager:
            await heard.wait_for(events.ItemApplied)
    assert manager.statistics()["VolumePipeline"].counters["claimed"] == 0


async def test_another_pipeline_goes_on(database: TemporaryDatabase) -> None:
    """To pause one would pause all."""
    await add(database, Run(id=1))
    await paused(database, "VolumePipeline")
    async with stepping(database.session_factory, RunPipeline()) as steps:
        steps.run.context.seams = Seams(gates=(TABLES.pause_gate,))
        assert len(await steps.fetch_once()) == 1


async def test_it_ends_when_it_is_taken_back(database: TemporaryDatabase) -> None:
    """A pause would last until a restart."""
    await add(database, Volume())
    await paused(database, "VolumePipeline")
    assert TABLES.controls is not None
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        steps.run.context.seams = Seams(gates=(TABLES.pause_gate,))
        assert await steps.fetch_once() == []
        async with database.engine.begin() as connection:
            await connection.execute(delete(TABLES.controls))
        assert len(await steps.fetch_once()) == 1


async def test_until_ends_it_by_the_databases_clock(database_with_clock: TemporaryDatabase) -> None:
    """A pause for the night would last for ever, or end by the clock of whoever looks."""
    database = database_with_clock
    assert database.clock is not None
    await add(database, Volume())
    await paused(database, "VolumePipeline", database.clock.now + timedelta(hours=2))
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        steps.run.context.seams = Seams(gates=(TABLES.pause_gate,))
        database.clock.advance(2 * 3600 - 1)
        assert await steps.fetch_once() == []
        database.clock.advance(1)
        assert len(await steps.fetch_once()) == 1


async def test_a_row_that_comes_back_waits_as_well(database_with_clock: TemporaryDatabase) -> None:
    """Rows that were reset before the pause would be taken by it."""
    database = database_with_clock
    assert database.clock is not None
    await add(database, Run(id=1))
    await paused(database)
    pipeline = RunPipeline(answer=Reset())
    async with stepping(database.session_factory, pipeline) as steps:
        steps.run.context.seams = Seams(gates=(TABLES.pause_gate,))
        await steps.fetch_once()
        await steps.work_once()
        await paused(database, "RunPipeline")
        database.clock.advance(3600)
        assert await steps.fetch_once() == []


async def test_a_claim_that_is_paused_reads_no_row(postgresql_database: TemporaryDatabase) -> None:
    """A pause beside a million due rows would cost what a claim costs, again and again."""
    database = postgresql_database
    await add(database, *(Run() for _ in range(50)))
    await paused(database, "RunPipeline")
    condition = TABLES.pause_gate(RunPipeline().leased, "RunPipeline")
    claim = select(Run.id).where(Run.status == "queued", condition).order_by(Run.due_at).limit(5)
    sql = str(claim.compile(database.engine.sync_engine, compile_kwargs={"literal_binds": True}))
    async with database.engine.connect() as connection:
        explained = await connection.execute(text(f"EXPLAIN (ANALYZE, COSTS OFF) {sql}"))
        plan = "\n".join(explained.scalars())
    assert "One-Time Filter" in plan
    assert [line for line in plan.splitlines() if "on runs" in line and "never" not in line] == []


def test_the_tables_are_found_by_their_gate() -> None:
    """A command line that knows a manager could pause nothing."""
    others = InsightTables(None, None)
    assert tables_of([lambda leased, pipeline: None, TABLES.pause_gate]) is TABLES
    assert tables_of([others.is_paused, TABLES.is_paused]) is None
    assert tables_of([]) is None


def test_without_the_table_there_is_no_gate(database: TemporaryDatabase) -> None:
    """Each claim would fail, in a log."""
    tables = insight_tables(MetaData(), controls=False)
    with pytest.raises(ConfigurationError, match="controls=True"):
        PipelineManager(database.session_factory, [VolumePipeline()], gates=[tables.pause_gate])
