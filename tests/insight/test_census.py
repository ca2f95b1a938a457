"""The census: exact counts, by one replica of all, that harm nothing."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import ColumnElement, MetaData, delete, insert

from rowlock import PipelineManager
from rowlock.insight import Observer, insight_tables, replica_mark
from rowlock.insight.census import Census
from rowlock.telemetry.metrics import METRICS, read_metrics
from rowlock.testing import TemporaryDatabase

from .shop import DEAD_TOKEN, NOW, TOKEN, Fleet, Scene, Volume, VolumePipeline, at, furnish

TABLES = insight_tables(MetaData(), controls=False)
STATES: tuple[dict[str, Any], ...] = (
    {"due_at": at(-60)},
    {"due_at": at(-90)},
    {"due_at": at(500)},
    {"due_at": at(-60), "parked_at": at(-5)},
    {"status": "active"},
    {"lock_token": TOKEN, "lock_owner": "VolumePipeline", "lock_expires_at": at(9)},
    {"lock_token": DEAD_TOKEN, "lock_owner": "VolumePipeline", "lock_expires_at": at(-9)},
)


class FleetCounted(VolumePipeline):
    model = Fleet
    max_attempts = None

    def ready(self) -> ColumnElement[bool]:
        return Fleet.status == "growing"


async def shop(database: TemporaryDatabase, *pipelines: Any) -> PipelineManager:
    """Return a manager before rows in each state, and an empty table of replicas."""
    await furnish(database, Scene(volume=None, fleets=({"id": 3, "status": "growing"},)))
    assert TABLES.replicas is not None
    await database.create_tables(TABLES.replicas.metadata)
    async with database.engine.begin() as connection:
        for number, state in enumerate(STATES):
            values = {"id": number, "status": "submitted", "due_at": at(-1)} | state
            await connection.execute(insert(Volume).values(values))
    return PipelineManager(database.session_factory, pipelines or [VolumePipeline()])


def values_of(observer: Observer, pipeline: str = "VolumePipeline") -> dict[str, Any]:
    """Return what the metrics of the census say of a pipeline."""
    names = {metric.name for metric in METRICS if "census" in metric.help}
    assert len(names) == 7
    read = {one.metric.name: one.values for one in read_metrics([observer])}
    return {name: read[name][pipeline,] for name in names if (pipeline,) in read[name]}


async def test_the_counts_are_exact(database_with_clock: TemporaryDatabase) -> None:
    """An alert would fire on rows that rest, or be silent about those that wait."""
    manager = await shop(database_with_clock, VolumePipeline(), FleetCounted())
    observer = Observer(manager, tables=TABLES, census=True)
    assert values_of(observer) == {}
    await observer.beat()
    assert observer._census is not None
    await observer._census.count()
    told = values_of(observer)
    assert told.pop("census_age_seconds") >= 0
    assert told == {
        "due_rows": 3,  # the row of the dead replica is free again
        "oldest_due_seconds": 90,
        "resting_rows": 1,
        "ended_leases": 1,
        "parked_rows": 1,
        "replicas_running": 0,  # it is registered, and was not started
    }
    of_fleets = values_of(observer, "FleetCounted")
    assert of_fleets["due_rows"] == 1
    assert {"parked_rows", "oldest_due_seconds"}.isdisjoint(of_fleets)
    async with database_with_clock.engine.begin() as connection:
        await connection.execute(delete(Volume))
    await observer._census.count()
    assert values_of(observer)["oldest_due_seconds"] == 0


@pytest.mark.parametrize(
    ("other", "is_counted"),
    [
        ({"mark": "00000000"}, False),
        ({"mark": "00000000", "seen_at": NOW - timedelta(seconds=16)}, True),
        ({"mark": "00000000", "draining": True}, True),
        ({"mark": "00000000", "report": {"census": False}}, True),
        ({"mark": "00000000", "report": {}}, True),
        ({"mark": "ffffffff"}, True),
    ],
)
async def test_one_replica_of_all_counts(
    database_with_clock: TemporaryDatabase, other: dict[str, Any], is_counted: bool
) -> None:
    """A hundred replicas would each scan every table; or none would, since each waits for one that
    died or was not asked to.
    """
    database = database_with_clock
    manager = await shop(database)
    observer = Observer(manager, tables=TABLES, census=True)
    await observer.beat()
    census = observer._census
    assert census is not None
    await census.count()
    assert set(census.counted) == {"VolumePipeline"}
    assert "00000000" < replica_mark() < "ffffffff"
    row = {"name": "web", "host": "web", "pid": 1, "version": "1", "draining": False}
    row |= {"seen_at": NOW, "started_at": NOW, "report": {"census": True}}
    assert TABLES.replicas is not None
    async with database.engine.begin() as connection:
        await connection.execute(insert(TABLES.replicas).values(row | other))
    await census.count()
    assert bool(census.counted) is is_counted


async def test_a_census_that_fails_says_so_once_and_keeps_what_it_knew(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Metrics would vanish when they are needed, or the log be flooded."""
    manager = await shop(database)
    census = Census((manager,), None)
    await census.count()
    before = census.counted["VolumePipeline"]
    assert before.replicas is None
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql("DROP TABLE volumes")
    with caplog.at_level(logging.WARNING):
        await census.count()
        await census.count()
    assert census.counted["VolumePipeline"] is before
    assert [one.getMessage()[:32] for one in caplog.records] == ["The census of VolumePipeline fai"]
