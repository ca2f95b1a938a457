"""Tests of health: what counts as healthy, for one pipeline and for all of a manager."""

from __future__ import annotations

import asyncio
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from rowlock import (
    ConfigurationError,
    ItemView,
    ManagerHealth,
    PipelineHealth,
    PipelineManager,
    PipelineStatistics,
    events,
)
from rowlock.pipelines.statistics import Counters, Histograms
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Run, RunPipeline, VolumePipeline
from .scenes import add, hang, read_all, until

pytestmark = pytest.mark.either_database

WELL: dict[str, Any] = {
    "pipeline": "VolumePipeline",
    "state": "running",
    "loops_alive": {"fetcher": True, "worker 1": True},
    "fetch_failures": 0,
    "renewal_failures": 0,
    "last_error": None,
    "abandoned": 0,
}
ILL = [
    {"state": "new"},
    {"state": "stopping"},
    {"state": "stopped"},
    {"loops_alive": {"fetcher": False, "worker 1": True}},
    {"fetch_failures": 1},
    {"renewal_failures": 1},
]


@pytest.mark.parametrize("ill", ILL)
def test_what_is_wrong_shows(ill: dict[str, Any]) -> None:
    """A probe would say that all is well while nothing is worked on."""
    well, unwell = PipelineHealth(**WELL), PipelineHealth(**WELL | ill)
    assert well.healthy
    assert not unwell.healthy
    assert ManagerHealth((well, well)).healthy
    assert not ManagerHealth((well, unwell)).healthy


def test_a_manager_of_nothing_is_not_healthy() -> None:
    """A host that forgot to register its pipelines would look well."""
    assert not ManagerHealth(()).healthy


def test_snapshots_do_not_change() -> None:
    """A figure would change between two lines of a report."""
    with pytest.raises(FrozenInstanceError):
        PipelineHealth(**WELL).state = "stopped"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        PipelineStatistics("VolumePipeline", 0, 0, 0).queued = 1  # type: ignore[misc]


def test_counters_begin_at_zero() -> None:
    """A pipeline would start with somebody else's figures."""
    assert all(getattr(Counters(), counter.name) == 0 for counter in fields(Counters))


def test_each_value_is_told_to_whoever_wants_it() -> None:
    """A distribution that is exported would be of other values than the process counts."""
    heard: list[events.ValueCounted] = []
    unasked: list[events.Event] = []

    def broken(_counted: events.ValueCounted) -> None:
        raise OSError("no meter")

    ends = [
        events.subscribe(broken, events.ValueCounted),
        events.subscribe(heard.append, events.ValueCounted),
        events.subscribe(unasked.append),
    ]
    histograms = Histograms("VolumePipeline")
    histograms.process.add(0.5)
    histograms.fetch_rows.add(3)
    for end in (*ends, *ends):
        end()
    histograms.process.add(0.25)
    assert heard == [
        events.ValueCounted("VolumePipeline", "process", 0.5),
        events.ValueCounted("VolumePipeline", "fetch_rows", 3),
    ]
    assert unasked == [], "of several for each row"
    snapshot = histograms.snapshot()
    assert (snapshot["process"].count, snapshot["process"].sum) == (2, 0.75)


ONE_WORKER = {"workers_num": 1, "queue_upper_limit_factor": 5.0}


@virtual_time
async def test_items_show_what_runs_and_what_is_queued(virtual_database: TemporaryDatabase) -> None:
    """An operator would not know why a row that is claimed is not worked on."""
    rows = await add(virtual_database, *(Run() for _ in range(3)))
    pipeline = RunPipeline(**ONE_WORKER, answer=hang)
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        await until(lambda: len(manager.items()) == 3)
        await asyncio.sleep(2)
        running, *queued = manager.items()
        assert running == ItemView(
            "RunPipeline", rows[0].id, "running", None, running.since_s, 1, running.lock_token
        )
        assert [(view.state, view.place, view.row_id) for view in queued] == [
            ("queued", 0, rows[1].id),
            ("queued", 1, rows[2].id),
        ]
        assert all(2 <= view.since_s < 3 for view in (running, *queued))
        statistics = manager.statistics()["RunPipeline"]
        assert (statistics.capacity, statistics.workers, statistics.settling) == (5, 1, 0)
        assert 2 <= statistics.longest_running_s < 3
        assert [view.row_id for view in manager.items(2)] == [rows[0].id, rows[1].id]
        await manager.drain(0)
    assert manager.items() == []


async def test_items_show_nothing_before_the_start(database: TemporaryDatabase) -> None:
    """A page that is asked for while a service starts would fail."""
    pipeline = VolumePipeline()
    manager = PipelineManager(database.session_factory, [pipeline])
    assert manager.items() == []
    assert await manager.return_queued("VolumePipeline") == 0
    assert manager.pipelines == (pipeline,)
    assert manager.session_factory is database.session_factory


@virtual_time
async def test_what_is_queued_is_given_back(virtual_database: TemporaryDatabase) -> None:
    """Rows of a pipeline that was paused would stay leased for as long as the row before them is
    worked on.
    """
    await add(virtual_database, *(Run() for _ in range(3)))
    pipeline = RunPipeline(**ONE_WORKER, answer=hang)
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        await until(lambda: len(manager.items()) == 3)
        pipeline.run.fetcher.stop()
        assert await manager.return_queued("RunPipeline") == 2
        assert [view.state for view in manager.items()] == ["running"]
        assert manager.statistics()["RunPipeline"].tracked == 1
        first, *others = await read_all(virtual_database, Run)
        assert first.lock_token is not None
        assert [(row.lock_token, row.attempts) for row in others] == [(None, 0), (None, 0)]
        await manager.drain(0)


async def test_an_unknown_pipeline_has_nothing_queued(database: TemporaryDatabase) -> None:
    """A misspelt name would look like a pipeline without queued rows."""
    manager = PipelineManager(database.session_factory, [VolumePipeline()])
    with pytest.raises(ConfigurationError, match="no pipeline 'Volumes'; it has: VolumePipeline"):
        await manager.return_queued("Volumes")
