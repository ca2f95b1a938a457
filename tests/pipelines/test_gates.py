"""Gates: conditions of the host's in every claim of every pipeline of a manager."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, MetaData, String, Table, insert, select, true

from rowlock import ConfigurationError, PipelineManager, events
from rowlock.leases.claim_request import Position
from rowlock.pipelines.attempt import Seams
from rowlock.pipelines.fetcher import ClaimBuilder
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import add

pytestmark = pytest.mark.either_database(but=["test_a_closed_gate_keeps_its_pipeline_alone"])

PAUSES = Table("pauses", MetaData(), Column("pipeline", String(100), primary_key=True))


def is_not_paused(leased: LeasedTable, pipeline: str) -> Any:
    return ~select(PAUSES).where(PAUSES.c.pipeline == pipeline).exists()


async def pause(database: TemporaryDatabase, *pipelines: str) -> None:
    async with database.engine.begin() as connection:
        await connection.run_sync(PAUSES.metadata.create_all)
        for pipeline in pipelines:
            await connection.execute(insert(PAUSES).values(pipeline=pipeline))


async def test_a_closed_gate_keeps_its_pipeline_alone(database: TemporaryDatabase) -> None:
    """A pause would not hold, or would stop pipelines that nobody has paused."""
    await add(database, Volume(), Run())
    await pause(database, "VolumePipeline")
    manager = PipelineManager(
        database.session_factory, [VolumePipeline(), RunPipeline()], gates=[is_not_paused]
    )
    with heard_events() as heard:
        async with manager:
            await heard.wait_for(events.ItemApplied)
    assert manager.statistics()["VolumePipeline"].counters["claimed"] == 0


async def test_a_gate_that_opens_lets_rows_through(database: TemporaryDatabase) -> None:
    """A pause that has ended would last until a restart."""
    await add(database, Volume())
    await pause(database, "VolumePipeline")
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        steps.run.context.seams = Seams(gates=(is_not_paused,))
        assert await steps.fetch_once() == []
        async with database.engine.begin() as connection:
            await connection.execute(PAUSES.delete())
        assert len(await steps.fetch_once()) == 1


async def test_a_claim_that_resumes_asks_the_gates(database: TemporaryDatabase) -> None:
    """Rows behind those of an earlier claim would be taken through a closed gate."""
    await add(database, *(Volume() for _ in range(3)))
    await pause(database)
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        context = steps.run.context
        context.seams = Seams(gates=(is_not_paused,))
        builder = ClaimBuilder(context)
        for after in (None, Position(None, 0), Position("2000-01-01", 0)):
            request = builder.next(1, after=after)
            assert "pauses" in str(request.eligible)


@pytest.mark.parametrize("wrong", [None, "sql", lambda: True, 7, [7]])
def test_what_is_no_gate_is_refused(database: TemporaryDatabase, wrong: Any) -> None:
    """The mistake would show at the first claim, in a log."""
    for name in ("gates", "surround"):
        with pytest.raises(ConfigurationError, match=f"{name} is a list of functions"):
            PipelineManager(database.session_factory, [VolumePipeline()], **{name: wrong})


@pytest.mark.parametrize("wrong", [None, True, "1 = 1"])
def test_a_gate_that_returns_no_condition_is_refused(
    database: TemporaryDatabase, wrong: Any
) -> None:
    """Python's own operators give something else, which every claim would stumble over."""

    def is_open(leased: LeasedTable, pipeline: str) -> Any:
        return wrong

    with pytest.raises(ConfigurationError, match=r"the gate .*is_open must return one SQL"):
        PipelineManager(database.session_factory, [VolumePipeline()], gates=[is_open])


async def test_gates_are_all_asked(database: TemporaryDatabase) -> None:
    """The second of two gates would keep nobody."""
    await add(database, Volume())
    await pause(database, "VolumePipeline")

    def is_open(leased: LeasedTable, pipeline: str) -> Any:
        return true()

    async with stepping(database.session_factory, VolumePipeline()) as steps:
        steps.run.context.seams = Seams(gates=(is_open, is_not_paused))
        assert await steps.fetch_once() == []
