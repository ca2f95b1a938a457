"""Tests of health: what counts as healthy, for one pipeline and for all of a manager."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from rowlock import ManagerHealth, PipelineHealth, PipelineStatistics
from rowlock.pipelines.statistics import Counters, Histograms, subscribe_to_values

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
    heard: list[tuple[str, str, float]] = []

    def broken(pipeline: str, name: str, value: float) -> None:
        raise SystemExit(1)

    ends = [
        subscribe_to_values(broken),
        subscribe_to_values(lambda *told: heard.append(told)),
    ]
    histograms = Histograms("VolumePipeline")
    histograms.process.add(0.5)
    histograms.fetch_rows.add(3)
    for end in (*ends, *ends):
        end()
    histograms.process.add(0.25)
    assert heard == [("VolumePipeline", "process", 0.5), ("VolumePipeline", "fetch_rows", 3)]
    snapshot = histograms.snapshot()
    assert (snapshot["process"].count, snapshot["process"].sum) == (2, 0.75)
