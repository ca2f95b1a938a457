"""Managers beside others: shutdowns that hang, hints, dead replicas, starts that fail."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from rowlock import (
    Apply,
    ConfigurationError,
    PipelineError,
    PipelineManager,
    events,
    pipeline_hinter,
)
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Base, Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import add, is_free, read_all, replica, until


@virtual_time
async def test_a_process_that_will_not_end_does_not_stop_the_shutdown(
    virtual_database: TemporaryDatabase,
) -> None:
    """One process that swallows its cancellation would keep the whole service from stopping."""
    await add(virtual_database, Volume())
    let_go = asyncio.Event()

    async def answer(item: Any) -> Apply:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return Apply({"status": "active"})

    pipeline = VolumePipeline(answer=answer)
    manager = PipelineManager(virtual_database.session_factory, [pipeline])
    manager.start()
    await until(lambda: pipeline.running == 1)
    began = asyncio.get_running_loop().time()
    await manager.drain(10)
    assert asyncio.get_running_loop().time() - began <= 10 + 5 + 1
    assert manager.health().pipelines[0].abandoned == 1
    (row,) = await read_all(virtual_database, Volume)
    assert (row.status, is_free(row)) == ("submitted", False), (
        "somebody else would work on it at the same time"
    )
    async with stepping(replica(virtual_database), VolumePipeline()) as other:
        assert await other.fetch_once() == []
        await asyncio.sleep(30)
        assert len(await other.fetch_once()) == 1
    let_go.set()
    await asyncio.sleep(1)


@virtual_time
async def test_the_hinter_of_the_process_reaches_every_started_manager(
    virtual_database: TemporaryDatabase,
) -> None:
    """A service would have to know which manager runs the pipeline it wakes."""
    database = virtual_database
    await database.create_tables(Base.metadata)
    one, other = VolumePipeline(fetch_delays=[3600]), RunPipeline(fetch_delays=[3600])
    managers = [PipelineManager(database.session_factory, [pipeline]) for pipeline in (one, other)]
    for manager in managers:
        manager.start()
    await asyncio.sleep(1)
    await add(database, Volume(), Run(id=1))
    pipeline_hinter.hint_fetch(Volume)
    pipeline_hinter.hint_fetch("Run")
    await until(lambda: one.items and other.items)
    assert asyncio.get_running_loop().time() < 1010
    for manager in managers:
        await manager.drain()


@virtual_time
async def test_the_hint_of_an_outcome_during_a_drain_is_no_warning(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A hint at the end of a drain would advise `notify=True` where the pipeline is here."""
    await add(virtual_database, Volume())
    pipeline_hinter._warned.clear()

    async def answer(_item: Any) -> Apply:
        started.set()
        await asyncio.sleep(5)
        return Apply({"status": "active"}, hint=[Run])

    started = asyncio.Event()
    volumes = VolumePipeline(answer=answer)
    async with PipelineManager(virtual_database.session_factory, [volumes, RunPipeline()]):
        await started.wait()
    assert volumes.statistics().counters["applied"] == 1
    assert not any("reached no pipeline" in text for text in caplog.messages)


@virtual_time
async def test_rows_of_a_dead_replica_are_taken_within_their_lease(
    virtual_database: TemporaryDatabase,
) -> None:
    """After a crash, rows would wait for longer than one lease and one fetch delay."""
    dead = replica(virtual_database)
    await add(virtual_database, Volume())
    lost = VolumePipeline().build_run(dead, pipeline_hinter)
    assert await lost.fetcher.fetch_once(1) == 1
    died_at = asyncio.get_running_loop().time()
    pipeline = VolumePipeline()
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        await until(lambda: pipeline.items)
        assert 30 <= asyncio.get_running_loop().time() - died_at <= 30 + 5 * 1.2 + 1
        assert pipeline.items[0].prev_lock_expired


@virtual_time
async def test_health_tells_of_a_database_that_is_away(virtual_database: TemporaryDatabase) -> None:
    """A probe would say that all is well while nothing is fetched."""
    manager = PipelineManager(virtual_database.session_factory, [VolumePipeline()])
    assert not manager.health().healthy
    with heard_events() as heard:
        manager.start()
        await heard.wait_for(events.FetchFailed, count=2)
        assert not manager.health().healthy
        assert "no such table" in (manager.health().pipelines[0].last_error or "")
        await virtual_database.create_tables(Base.metadata)
        await until(lambda: manager.health().healthy)
    await manager.drain()


@virtual_time
async def test_pipelines_of_one_model_share_its_rows(virtual_database: TemporaryDatabase) -> None:
    """Two pipelines over one table would work on one row, or one of them would never be hinted."""

    class Deleting(VolumePipeline):
        def ready(self) -> Any:
            return Volume.status == "deleting"

    await virtual_database.create_tables(Base.metadata)
    creating, deleting = VolumePipeline(fetch_delays=[3600]), Deleting(fetch_delays=[3600])
    async with PipelineManager(virtual_database.session_factory, [creating, deleting]):
        await asyncio.sleep(1)
        new, old = await add(
            virtual_database, Volume(id=uuid.uuid4()), Volume(id=uuid.uuid4(), status="deleting")
        )
        pipeline_hinter.hint_fetch(Volume)
        await until(lambda: creating.items and deleting.items)
    assert [item.id for item in creating.items] == [new.id]
    assert [item.id for item in deleting.items] == [old.id]


def test_a_name_that_the_library_needs_is_refused() -> None:
    """A host's method of the same name would silently take the place of the library's own."""
    with pytest.raises(ConfigurationError, match=r"Careless\.start hides"):

        class Careless(VolumePipeline):
            def start(self) -> None:  # type: ignore[override]
                """Start something else."""


@virtual_time
async def test_a_start_is_all_or_nothing(virtual_database: TemporaryDatabase) -> None:
    """A start-up that fails would leave half of the pipelines running, with nobody to end them."""
    await virtual_database.create_tables(Base.metadata)
    shared = VolumePipeline()
    first = PipelineManager(virtual_database.session_factory, [shared])
    second = PipelineManager(virtual_database.session_factory, [RunPipeline(), shared])
    async with first:
        with pytest.raises(PipelineError, match="started before"):
            second.start()
        assert [pipeline.state for pipeline in second.health().pipelines] == ["new", "running"]
    with pytest.raises(ConfigurationError, match="is a list"):
        PipelineManager(virtual_database.session_factory, RunPipeline())  # type: ignore[arg-type]
