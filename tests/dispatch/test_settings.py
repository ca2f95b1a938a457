"""Tests of the knobs: defaults as documented, bounds, contradictions, and what a model must
have.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import ConfigurationError, LockColumns, ModelError, ScheduleColumns, SettingsError
from rowlock.dispatch import DispatchColumns, DispatchPipeline, LoopEngine, PriorityLoadBalancer
from rowlock.dispatch.settings import ACTIVE_MAX, LEASES_PER_TICK_MAX, PROVISIONS_MAX

from .renders import Fleet, Render, Scenes


def build(model: Any = Render, **settings: Any) -> DispatchPipeline[Any]:
    return DispatchPipeline(model, **({"handler": Scenes(), "engine": Fleet()} | settings))


def test_defaults() -> None:
    """Hosts that leave a knob out would get something else than the table says."""
    renders = build()
    knobs = renders.dispatch
    assert (knobs.max_active, knobs.attach_at_ceiling, knobs.fleet_cap) == (1024, True, 0)
    assert (knobs.retry_interval, knobs.jitter) == (timedelta(seconds=120), timedelta(seconds=30))
    assert knobs.dispatch_deadline == knobs.time_limit == timedelta(seconds=14_400)
    assert (LEASES_PER_TICK_MAX, PROVISIONS_MAX) == (64, 16)
    assert renders.settings.queue_capacity == LEASES_PER_TICK_MAX
    assert isinstance(renders.placement._balancer, PriorityLoadBalancer)
    assert renders.name == "DispatchRender"


def test_a_large_engine_is_used_whole() -> None:
    """An engine of two hundred workers would run 64 attempts, and nobody would say why."""
    assert build(engine=LoopEngine(200)).settings.workers_num == 200 + LEASES_PER_TICK_MAX
    assert build(engine=LoopEngine(2)).settings.workers_num == 2 + LEASES_PER_TICK_MAX
    assert build(engine=LoopEngine(200), workers_num=10).settings.workers_num == 10


def test_jitter_is_no_longer_than_the_interval() -> None:
    """A short interval would be drowned in chance."""
    assert build(retry_interval=5).dispatch.jitter == timedelta(seconds=5)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_active": 0}, "max_active = 0"),
        ({"max_active": ACTIVE_MAX + 1}, "max_active"),
        ({"retry_interval": 0}, "retry_interval"),
        ({"dispatch_deadline": -1}, "dispatch_deadline"),
        ({"time_limit": "soon"}, "time_limit = 'soon'"),
        ({"max_losses": 0}, "max_losses = 0"),
        ({"fleet_cap": -1}, "fleet_cap = -1"),
        ({"heartbeat": 15}, "lock_timeout \\(30 s\\) must be more than twice heartbeat \\(15 s\\)"),
        (
            {"heartbeat_limit": 19},
            "heartbeat_limit \\(19 s\\) must be at least twice heartbeat \\(10 s\\)",
        ),
        (
            {"process_timeout": 60},
            "process_timeout \\(60 s\\) must be more than time_limit \\(14400 s\\)",
        ),
        ({"max_activ": 7}, "no setting is named max_activ"),
        ({"workers_num": 0}, "workers_num = 0"),
    ],
)
def test_what_cannot_be_is_refused_at_once(settings: dict[str, Any], says: str) -> None:
    """A slip would be found in the night when it matters."""
    with pytest.raises(SettingsError, match=says) as refused:
        build(**settings)
    # What a host reads to point at the settings are those that the text names.
    assert refused.value.settings
    assert all(name in str(refused.value) for name in refused.value.settings)


class Base(DeclarativeBase):
    """Tables that lack something."""


class Unscheduled(LockColumns, DispatchColumns, Base):
    __tablename__ = "unscheduled"
    id: Mapped[int] = mapped_column(primary_key=True)


class Undispatched(LockColumns, ScheduleColumns, Base):
    __tablename__ = "undispatched"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize(
    ("model", "column", "mixin"),
    [(Unscheduled, "due_at", "ScheduleColumns"), (Undispatched, "dedup_key", "DispatchColumns")],
)
def test_a_column_that_is_missing_is_named(model: type, column: str, mixin: str) -> None:
    """The first submission would fail with an error of the database."""
    with pytest.raises(ModelError, match=f"has no column {column}; mix in {mixin}"):
        build(model)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"handler": None}, "handler must be a function with yield"),
        ({"engine": object()}, "engine must have workers"),
        (
            {"scratch_root": Path("/no/such/folder")},
            "scratch_root must be a folder that may be written to",
        ),
    ],
)
def test_parts_that_are_none_are_refused(parts: dict[str, Any], says: str) -> None:
    """Every row would fail, one by one."""
    with pytest.raises(ConfigurationError, match=says):
        build(**parts)
