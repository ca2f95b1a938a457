"""Tests of `Pipeline`: what is found at its construction, before anything was started."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    ConfigurationError,
    LockColumns,
    ModelError,
    Outcome,
    Pipeline,
    PipelineError,
    PipelineHealth,
    PipelineHinter,
    PipelineItem,
    PipelineStatistics,
    SettingsError,
)
from rowlock.pipelines.statistics import Counters, Histograms
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import HANG_S_MAX, Volume, VolumePipeline
from .scenes import add, now, read_all


class OddBase(DeclarativeBase):
    """The root of models that no pipeline can have."""


class ShortOwner(LockColumns, OddBase):
    """A table whose column for the owner is too short for most names."""

    __tablename__ = "short_owner"
    id: Mapped[int] = mapped_column(primary_key=True)
    lock_owner: Mapped[str | None] = mapped_column(String(5))


def pipeline_over(model: Any, *, ready: Any = None) -> Pipeline[Any]:
    class BuiltPipeline(Pipeline[Any]):
        def ready(self) -> Any:
            return Volume.status == "submitted" if ready is None else ready

    BuiltPipeline.model = model
    return BuiltPipeline()


def test_a_pipeline_without_a_model_is_refused() -> None:
    """The mistake would show as an attribute error from the depths."""
    with pytest.raises(ModelError, match="has no model; set `model = YourModel` on the class"):
        pipeline_over(None)


def test_a_name_that_does_not_fit_is_refused() -> None:
    """PostgreSQL would refuse every claim, and SQLite cut nothing off and so differ."""
    with pytest.raises(ModelError, match="lock_owner"):
        pipeline_over(ShortOwner)


@pytest.mark.parametrize("ready", [True, "status = 'submitted'", lambda: None, 5])
def test_ready_must_be_an_expression(ready: Any) -> None:
    """A Python comparison of columns by mistake would make all rows eligible, or none."""
    with pytest.raises(ModelError, match=r"ready\(\) must return one SQL expression"):
        pipeline_over(Volume, ready=ready)


class Silent(Pipeline[Volume]):
    model = Volume


def test_ready_must_be_written() -> None:
    """A pipeline would take every row of its table, or none."""
    with pytest.raises(
        ConfigurationError, match=r"Silent must say which rows want work: override ready\(\)"
    ):
        Silent()


def test_process_must_be_written() -> None:
    """Rows would count as done that nobody worked on."""

    class Idle(VolumePipeline):
        process = Pipeline.process  # type: ignore[assignment]

    with pytest.raises(
        ConfigurationError, match=r"Idle must say what to do with a row: override process\(item\)"
    ):
        Idle()


def test_settings_are_checked_at_construction() -> None:
    """A contradiction would show under load, long after the start."""
    with pytest.raises(SettingsError):
        VolumePipeline(workers_num=0)


def test_before_the_start_nothing_harms() -> None:
    """A host could not ask a pipeline for its state, or hint, before everything runs."""
    pipeline = VolumePipeline()
    pipeline.hint()
    pipeline.shutdown()
    assert pipeline.state == "new"
    assert repr(pipeline) == "<VolumePipeline over Volume, new>"
    assert pipeline.health() == PipelineHealth("VolumePipeline", "new", {}, 0, 0, None, 0)
    assert pipeline.statistics() == PipelineStatistics(
        "VolumePipeline", 0, 0, 0, asdict(Counters()), Histograms().snapshot()
    )
    with pytest.raises(PipelineError, match="VolumePipeline was not started"):
        pipeline.run  # noqa: B018 - the property raises


@virtual_time
async def test_its_states(virtual_database: TemporaryDatabase) -> None:
    """A dashboard would show a pipeline that runs although it is being shut down."""
    await add(virtual_database)
    pipeline = VolumePipeline()
    pipeline.start(virtual_database.session_factory, PipelineHinter())
    assert pipeline.state == "running"
    with pytest.raises(PipelineError, match="VolumePipeline was started before; build a new one"):
        pipeline.start(virtual_database.session_factory, PipelineHinter())
    pipeline.shutdown()
    assert pipeline.state == "stopping"
    await pipeline.drain(timedelta(0))
    await pipeline.drain(timedelta(0))
    assert pipeline.state == "stopped"
    assert not pipeline.health().healthy


@virtual_time
async def test_a_hint_may_come_from_a_thread(virtual_database: TemporaryDatabase) -> None:
    """A service in a worker thread would set its hint beside a loop that sleeps on."""
    await add(virtual_database)
    worked = threading.Event()

    def answer(item: PipelineItem[Any]) -> Outcome:
        worked.set()
        return pipeline.usual_answer(item)

    def hint_and_wait() -> bool:
        pipeline.hint()
        return worked.wait(HANG_S_MAX)

    pipeline = VolumePipeline(answer=answer)
    pipeline.start(virtual_database.session_factory, PipelineHinter())
    await asyncio.sleep(100)
    await add(virtual_database, Volume())
    began_at = now()
    # then it refuses what would set it going from another thread
    asyncio.get_running_loop().set_debug(True)
    assert await asyncio.to_thread(hint_and_wait)
    asyncio.get_running_loop().set_debug(False)
    assert now() == began_at
    await pipeline.drain(timedelta(seconds=1))
    assert [row.status for row in await read_all(virtual_database, Volume)] == ["active"]
    pipeline.hint()


def test_a_hint_after_the_end_of_the_loop_harms_nobody(virtual_database: TemporaryDatabase) -> None:
    """A service in a thread would fail because the pipelines of its process have stopped."""
    pipeline = VolumePipeline()

    @virtual_time
    async def play() -> None:
        await add(virtual_database)
        pipeline.start(virtual_database.session_factory, PipelineHinter())
        await pipeline.drain(timedelta(0))

    play()
    pipeline.hint()
