"""Metrics for OpenTelemetry: the same figures, and distributions that cost little."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock import ConfigurationError, PipelineManager
from rowlock.pipelines.statistics import Histograms
from rowlock.telemetry import otel
from rowlock.telemetry.metrics import METRICS, OTHER, PIPELINES_MAX
from rowlock.telemetry.otel import RECORDS_PER_S_MAX, Thinning, instrument, otel_name
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Volume, VolumePipeline
from ..pipelines.scenes import add, until


def points_of(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """Return the points of each metric, by its name."""
    data: Any = reader.get_metrics_data()
    scopes = [scope for one in data.resource_metrics for scope in one.scope_metrics]
    return {one.name: list(one.data.data_points) for scope in scopes for one in scope.metrics}


@virtual_time
async def test_it_exports_what_was_done(virtual_database: TemporaryDatabase) -> None:
    """A host with OpenTelemetry would see other figures than one with Prometheus, or none."""
    await add(virtual_database, *(Volume() for _ in range(5)))
    pipeline, reader = VolumePipeline(), InMemoryMetricReader()
    manager = PipelineManager(virtual_database.session_factory, [pipeline])
    stop = instrument(manager, meter_provider=MeterProvider([reader], shutdown_on_exit=False))
    try:
        async with manager:
            await until(lambda: pipeline.statistics().counters["applied"] >= 5)
            points, now = points_of(reader), pipeline.statistics()
    finally:
        stop()
    (attempts,) = points["rowlock.attempts"]
    assert (attempts.value, attempts.attributes) == (
        now.counters["started"],
        {"pipeline": "VolumePipeline"},
    )
    applied = {one.attributes["outcome"]: one.value for one in points["rowlock.outcomes"]}
    assert applied["applied"] == now.counters["applied"]
    assert points["rowlock.workers"][0].value == now.workers
    distributions = {
        otel_name(metric): now.buckets[metric.name.removesuffix("_seconds")]
        for metric in METRICS
        if metric.kind == "histogram"
    }
    seen = {
        name: (points[name][0].count, points[name][0].sum)
        for name in points
        if name in distributions
    }
    assert seen == {name: (one.count, one.sum) for name, one in distributions.items() if one.count}
    assert seen["messaging.process.duration"][0] == now.counters["applied"]
    assert {"rowlock.queue.wait", "rowlock.fetch.rows", "rowlock.write"} <= {*seen}


def test_pipelines_beyond_the_limit_share_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that makes classes as it runs would make series without end."""
    monkeypatch.setattr(otel, "RECORDS_PER_S_MAX", 10_000)
    manager, reader = PipelineManager(async_sessionmaker()), InMemoryMetricReader()
    stop = instrument(manager, meter_provider=MeterProvider([reader], shutdown_on_exit=False))
    try:
        for number in range(PIPELINES_MAX + 50):
            Histograms(f"P{number}Pipeline").write_rows.add(1)
    finally:
        stop()
    counts = {
        one.attributes["pipeline"]: one.count for one in points_of(reader)["rowlock.write.rows"]
    }
    assert (len(counts), counts[OTHER]) == (PIPELINES_MAX + 1, 50)


def test_names_follow_the_rules() -> None:
    """An exporter would add a second unit to the name, or two metrics would share one."""
    names = [otel_name(metric) for metric in METRICS]
    assert len(set(names)) == len(names)
    assert not [name for name in names if "_" in name or name.endswith((".seconds", ".total"))]
    told = {one.name.removesuffix("_seconds") for one in METRICS if one.kind == "histogram"}
    assert told == {*Histograms.__annotations__}


def test_distributions_are_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recording each value of a fast pipeline would cost a tenth of what its rows cost; and the
    first values of a second alone would hide what comes later in it.
    """
    now = 0.0
    monkeypatch.setattr(otel, "monotonic", lambda: now)
    thinning, per_s = Thinning(), 10 * RECORDS_PER_S_MAX
    passed = [[thinning.passes() for _ in range(per_s)]]
    now = 1.0
    passed.append([thinning.passes() for _ in range(per_s)])
    assert [sum(one) for one in passed] == [RECORDS_PER_S_MAX, RECORDS_PER_S_MAX]
    assert sum(passed[1][: per_s // 2]) == RECORDS_PER_S_MAX // 2
    now = 2.0
    assert sum(thinning.passes() for _ in range(7)) == 1
    now = 3.0
    assert sum(thinning.passes() for _ in range(7)) == 4
    now = 4.0
    assert sum(thinning.passes() for _ in range(7)) == 7


def test_the_clock_is_read_for_what_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """To leave a value out would cost half of what it costs to count it."""
    reads: list[float] = []

    def monotonic() -> float:
        reads.append(0.0)
        return float(len(reads) > RECORDS_PER_S_MAX * 4)

    monkeypatch.setattr(otel, "monotonic", monotonic)
    thinning = Thinning()
    for _ in range(RECORDS_PER_S_MAX * 4):
        thinning.passes()
    reads_before = len(reads)
    for _ in range(RECORDS_PER_S_MAX * 4 + 1):
        thinning.passes()
    assert len(reads) - reads_before <= RECORDS_PER_S_MAX + 1


def test_an_end_ends_the_recording() -> None:
    """A host that changes its exporter would record each value twice."""
    manager, reader = PipelineManager(async_sessionmaker()), InMemoryMetricReader()
    stop = instrument(manager, meter_provider=MeterProvider([reader], shutdown_on_exit=False))
    histogram = Histograms("P").process
    histogram.add(0.1)
    stop()
    histogram.add(0.1)
    assert points_of(reader)["messaging.process.duration"][0].count == 1


def test_nothing_to_export_is_refused() -> None:
    """The host would look for its metrics in vain."""
    with pytest.raises(ConfigurationError, match="instrument"):
        instrument()
