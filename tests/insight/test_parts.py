"""The parts of an explanation are those of a claim: over rows in any state, with pipelines that
lock such rows, and gates.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import ColumnElement, delete, insert, literal, select

from rowlock import Pipeline, PipelineManager
from rowlock.insight import Insight, Verdict
from rowlock.pipelines.fetcher import ClaimBuilder
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from ..lengths import at_length
from .shop import (
    DEAD_TOKEN,
    NOW,
    TOKEN,
    BackupPipeline,
    Base,
    Fleet,
    FleetPipeline,
    Volume,
    VolumePipeline,
)

EXAMPLES: Final = int(os.environ.get("ROWLOCK_EXPLAINED_STATES", at_length(15, 40)))
"""How many states of rows are drawn; 10,000 and more at night."""
CLAIMABLE: Final = frozenset(
    {Verdict.NOBODY_RUNS, Verdict.LEFT_BY_DEAD, Verdict.TOUCHED, Verdict.IN_LINE}
)
"""Verdicts of rows that the next claim may have."""

TIMES_S = st.sampled_from(
    (-3600.0, -301.0, -300.0, -15.0, -6.0, -0.001, 0.0, 0.001, 1.0, 15.0, 3600.0)
)
OFFSETS_S = st.none() | TIMES_S
OWNERS = st.sampled_from(
    (None, "VolumePipeline", "BackupPipeline", "FleetPipeline", "FleetPipeline:3", "api:1", "Old")
)
LEASE = {
    "lock_token": st.sampled_from((None, TOKEN, DEAD_TOKEN)),
    "lock_owner": OWNERS,
    "lock_expires_at": OFFSETS_S,
    "last_processed_at": OFFSETS_S,
}
VOLUMES = st.fixed_dictionaries(
    {
        **LEASE,
        "status": st.sampled_from(("submitted", "active")),
        "secret": st.sampled_from((None, "s")),
        "due_at": TIMES_S,
        "parked_at": OFFSETS_S,
        "attempts": st.integers(0, 3),
        "fleet_id": st.sampled_from((None, 3, 4)),
    }
)
FLEETS = st.fixed_dictionaries({**LEASE, "status": st.sampled_from(("growing", "grown"))})


def is_open(leased: LeasedTable, pipeline: str) -> ColumnElement[bool]:
    if leased.model is not Volume:
        return literal(value=True)
    return Volume.secret.is_(None)


def times(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what was drawn with times in place of seconds."""
    return {
        name: NOW + timedelta(seconds=value) if isinstance(value, float) else value
        for name, value in facts.items()
    }


@pytest.fixture
async def tables(database_with_clock: TemporaryDatabase) -> TemporaryDatabase:
    await database_with_clock.create_tables(Base.metadata)
    assert database_with_clock.clock is not None
    database_with_clock.clock.set(NOW)
    return database_with_clock


async def claimable(database: TemporaryDatabase, pipeline: Pipeline[Any], *beside: Any) -> bool:
    """Return whether the condition of the pipeline's own claims is true of volume 17."""
    manager = PipelineManager(database.session_factory, [pipeline, *beside], gates=[is_open])
    run = pipeline.build_run(database.session_factory, manager.hinter, manager._lock_graph)
    run.context.seams = manager._seams
    condition = ClaimBuilder(run.context).next(1).eligible
    async with database.engine.connect() as connection:
        found = await connection.scalar(select(Volume.id).where(condition, Volume.id == 17))
    return found is not None


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(volume=VOLUMES, fleet=FLEETS)
async def test_parts_conjoined_are_the_condition_of_a_claim(
    tables: TemporaryDatabase, volume: dict[str, Any], fleet: dict[str, Any]
) -> None:
    """An explanation would say that nothing keeps a row which no claim takes, or the reverse."""
    async with tables.engine.begin() as connection:
        await connection.execute(delete(Volume))
        await connection.execute(delete(Fleet))
        await connection.execute(insert(Fleet), {"id": 3, **times(fleet)})
        await connection.execute(insert(Fleet).values(id=4, status="growing"))
        await connection.execute(insert(Volume).values(id=17, **times(volume)))
    pipelines = [VolumePipeline(), BackupPipeline(), FleetPipeline()]
    manager = PipelineManager(tables.session_factory, pipelines, gates=[is_open])
    answer = await Insight.of(manager).explain(Volume, 17)
    for one in answer.pipelines:
        assert one.parts is not None
        again = {"VolumePipeline": VolumePipeline, "BackupPipeline": BackupPipeline}[one.pipeline]()
        others = [each for each in pipelines if each.name != one.pipeline]
        takes = await claimable(tables, again, *others)
        assert all(one.parts.values()) == takes
        assert (one.verdict in CLAIMABLE) == takes, one.verdict
