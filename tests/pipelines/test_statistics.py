"""Tests of health: what counts as healthy, for one pipeline and for all of a manager."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from rowlock import ManagerHealth, PipelineHealth, PipelineStatistics
from rowlock.pipelines.statistics import Counters

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
