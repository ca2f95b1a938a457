"""Which session factories a manager takes, when it is built and for pipelines that come later."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from rowlock import ConfigurationError, PipelineManager, hold_rows
from rowlock.testing import TemporaryDatabase

from ..host import Base, RunPipeline, Volume, VolumePipeline

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
