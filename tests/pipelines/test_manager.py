"""The life of a manager: every call in every order, and what is left when it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from rowlock import (
    ConfigurationError,
    PipelineError,
    PipelineManager,
    UnsupportedDialectError,
    events,
    hold_rows,
)
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Base, Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import add, is_free, read_all, until

pytestmark = pytest.mark.either_database


async def test_saying_it_twice_does_no_harm(database: TemporaryDatabase) -> None:
    """A host whose start-up or shutdown runs twice would fail, or have two of everything."""
    await add(database, Volume())
    manager = PipelineManager(database.session_factory, [VolumePipeline()])
    manager.shutdown()
    with heard_events() as heard:
        manager.start()
        manager.start()
        await heard.wait_for(events.ItemApplied)
    manager.shutdown()
    manager.shutdown()
    await manager.drain()
    await manager.drain()
    assert manager.statistics()["VolumePipeline"].counters["applied"] == 1
    assert manager.health().pipelines[0].state == "stopped"


async def test_a_manager_may_have_no_pipelines(sqlite_database: TemporaryDatabase) -> None:
    """A process that only sends hints could not start, since it has no settings to go by."""
    async with PipelineManager(sqlite_database.session_factory) as manager:
        assert manager.statistics() == {}
        assert repr(manager) == "<PipelineManager of nothing>"
        assert not manager.health().healthy
    with pytest.raises(PipelineError, match="was shut down"):
        manager.start()


async def test_a_manager_that_was_never_started_can_be_drained(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A host whose start-up failed would hang in its shutdown."""
    manager = PipelineManager(sqlite_database.session_factory, [VolumePipeline()])
    await manager.drain()
    manager.shutdown()


async def test_after_a_shutdown_there_is_no_start(sqlite_database: TemporaryDatabase) -> None:
    """A host would believe that its pipelines run again."""
    await sqlite_database.create_tables(Base.metadata)
    manager = PipelineManager(sqlite_database.session_factory, [VolumePipeline()])
    async with manager:
        pass
    with pytest.raises(PipelineError, match="build a new one"):
        manager.start()
    with pytest.raises(PipelineError, match="build a new one"):
        manager.register(RunPipeline())


def test_a_start_needs_the_event_loop(tmp_path: Any) -> None:
    """The error would come from the depths of asyncio and say nothing of what to change."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/x.db")
    manager = PipelineManager(async_sessionmaker(engine), [VolumePipeline()])
    with pytest.raises(PipelineError, match="event loop"):
        manager.start()


def test_two_pipelines_of_one_name_are_refused(tmp_path: Any) -> None:
    """Two pipelines would take each other's rows for their own."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/x.db")
    with pytest.raises(ConfigurationError, match="rename"):
        PipelineManager(async_sessionmaker(engine), [VolumePipeline(), VolumePipeline()])


@pytest.mark.parametrize("wrong", [None, "sqlite://", VolumePipeline, lambda: None])
def test_what_is_no_session_factory_is_refused(wrong: Any) -> None:
    """The mistake would show at the first fetch, in a log."""
    with pytest.raises((ConfigurationError, TypeError)):
        PipelineManager(wrong, [VolumePipeline()])


def test_a_class_instead_of_an_instance_is_refused(tmp_path: Any) -> None:
    """A forgotten pair of brackets would show as an attribute error."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/x.db")
    with pytest.raises(ConfigurationError, match="instance"):
        PipelineManager(async_sessionmaker(engine), [VolumePipeline])  # type: ignore[list-item]


def test_a_factory_without_an_engine_is_refused() -> None:
    """The mistake would show at the first fetch, in a log."""
    with pytest.raises(ConfigurationError, match="bound to no engine"):
        PipelineManager(async_sessionmaker(), [VolumePipeline()])


@pytest.mark.filterwarnings("ignore:.*memory.*")
def test_a_database_in_memory_is_refused() -> None:
    """All transactions would be one, and undo each other."""
    engine = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(UnsupportedDialectError, match="one connection"):
        PipelineManager(async_sessionmaker(engine), [VolumePipeline()])


@virtual_time
async def test_a_pipeline_may_come_later(virtual_database: TemporaryDatabase) -> None:
    """A host that registers a pipeline while the manager runs would wait for it in vain."""
    await add(virtual_database, Run(id=1))
    async with PipelineManager(virtual_database.session_factory) as manager:
        pipeline = RunPipeline()
        manager.register(pipeline)
        await until(lambda: pipeline.items)
        with pytest.raises(ConfigurationError):
            manager.register(RunPipeline())
    assert [row.status for row in await read_all(virtual_database, Run)] == ["done"]


@virtual_time
async def test_work_that_does_not_is_interrupted_and_given_back(
    virtual_database: TemporaryDatabase,
) -> None:
    """A shutdown would hang on one long piece of work, or leave its row locked."""
    await add(virtual_database, Run(id=1, attempts=1))
    pipeline = RunPipeline(answer=lambda item: asyncio.Event().wait())
    manager = PipelineManager(virtual_database.session_factory, [pipeline])
    manager.start()
    await until(lambda: pipeline.running == 1)
    began = asyncio.get_running_loop().time()
    await manager.drain(10)
    assert 10 <= asyncio.get_running_loop().time() - began <= 11
    (row,) = await read_all(virtual_database, Run)
    assert (row.status, row.attempts, is_free(row), row.last_processed_at) == (
        "queued",
        1,
        True,
        None,
    )
    assert pipeline.running == 0


AUTOCOMMIT: Any = {"isolation_level": "AUTOCOMMIT"}


@pytest.fixture
def engine(tmp_path: Any) -> AsyncEngine:
    return create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/x.db")


async def test_a_factory_that_commits_in_two_phases_is_refused(engine: AsyncEngine) -> None:
    """No fetch would ever succeed, on either database as it is installed; or a dead replica
    would leave its rows locked.
    """
    refused = async_sessionmaker(engine, twophase=True)
    with pytest.raises(ConfigurationError, match="two phases"):
        PipelineManager(refused, [VolumePipeline()])
    with pytest.raises(ConfigurationError, match="two phases"):
        async with hold_rows(refused, Volume, []):
            pytest.fail("nothing can be held")


async def test_what_is_refused_while_the_manager_runs_leaves_no_trace(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A manager would count a pipeline among its own that never ran, and wait for its end."""
    await sqlite_database.create_tables(Base.metadata)
    binds = {Volume: sqlite_database.engine}
    async with PipelineManager(async_sessionmaker(binds=binds), [VolumePipeline()]) as manager:
        refused = RunPipeline()
        with pytest.raises(ConfigurationError, match="bound to no engine for Run"):
            manager.register(refused)
        assert list(manager.statistics()) == ["VolumePipeline"]
        assert refused.state == "new"
