"""What a replica has in hand, shown; and what is queued, given back."""

from __future__ import annotations

import asyncio

import pytest

from rowlock import ConfigurationError, ItemView, PipelineManager
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Run, RunPipeline, VolumePipeline
from .scenes import add, hang, read_all, until

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
