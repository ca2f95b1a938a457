"""The gate of pauses: a pause is a row that every claim asks for."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import MetaData, insert

from rowlock import ConfigurationError, PipelineManager, Reset, database_now, events
from rowlock.insight import InsightTables, insight_tables
from rowlock.insight.tables import tables_of
from rowlock.pipelines.attempt import Seams
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
