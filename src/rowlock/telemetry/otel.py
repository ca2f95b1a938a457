"""Metrics for OpenTelemetry: the catalogue as observable instruments, and distributions by
``record``.

The one idea: `record` costs more than a tenth of what a whole row costs, so each distribution is
thinned: at most `RECORDS_PER_S_MAX` values a second, evenly. Counters stay exact, since they are
read and not recorded.

Not here: the names (``telemetry/metrics.py``), and the exporter, which is the host's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from opentelemetry.metrics import (
    CallbackOptions,
    Histogram,
    Meter,
    MeterProvider,
    Observation,
    get_meter_provider,
)

from rowlock import events
from rowlock.clock import monotonic
from rowlock.errors import ConfigurationError
from rowlock.insight.observing.observer import Observer
from rowlock.pipelines.manager import PipelineManager
from rowlock.pipelines.statistics import Buckets
from rowlock.telemetry.metrics import METRICS, OTHER, PIPELINES_MAX, Metric, Source, read_metric

RECORDS_PER_S_MAX = 500
"""Most values of one distribution that are recorded in a second."""

Values: TypeAlias = Mapping[str, float | None]


class Thinning:
    """Lets at most `RECORDS_PER_S_MAX` values a second through, evenly: every second one, or every
    tenth, by how many there were in the second before.
    """

    def __init__(self) -> None:
        self._ends_at = float("-inf")
        self._seen = self._passed = 0
        self._stride = 1

    def passes(self) -> bool:
        """Count a value, and return whether it is recorded."""
        now = monotonic()
        if now >= self._ends_at:
            self._stride = max(1, -(-self._seen // RECORDS_PER_S_MAX))
            self._ends_at, self._seen, self._passed = now + 1.0, 0, 0
        self._seen += 1
        passes = (self._seen - 1) % self._stride == 0 and self._passed < RECORDS_PER_S_MAX
        self._passed += passes
        return passes


def instrument(*sources: Source, meter_provider: MeterProvider | None = None) -> Callable[[], None]:
    """Export the metrics of the managers and the Observer of this process, and return the function
    that ends the recording of distributions.

    Args:
        sources: those of the process, in one call.
        meter_provider: the host's; the global one if None.

    Raises:
        ConfigurationError: there is no source.
    """
    if not sources or not all(isinstance(one, PipelineManager | Observer) for one in sources):
        raise ConfigurationError(
            "instrument takes the managers of this process, or their Observer: instrument(manager)"
        )
    meter = (meter_provider or get_meter_provider()).get_meter("rowlock")
    for metric in METRICS:
        if metric.kind != "histogram":
            _observe(meter, metric, sources)
    histograms = {
        metric.name: (_histogram(meter, metric), Thinning())
        for metric in METRICS
        if metric.name in RECORDED
    }

    names: set[str] = set()

    def listen(event: events.Event) -> None:
        if len(names) < PIPELINES_MAX:
            names.add(event.pipeline)
        for told, value in values_of(event).items():
            histogram, thinning = histograms[told]
            if value is not None and thinning.passes():
                name = event.pipeline if event.pipeline in names else OTHER
                histogram.record(value, {"pipeline": name})

    return events.subscribe(listen)


RECORDED = frozenset(
    {
        "process_seconds",
        "pickup_seconds",
        "fetch_seconds",
        "fetch_rows",
        "write_seconds",
        "write_rows",
        "lease_margin_seconds",
    }
)
"""Distributions of which events tell each value; that of the wait in the queue has no event."""


def values_of(event: events.Event) -> Values:
    """Return what an event adds to distributions, by the metric's name."""
    match event:
        case events.ItemStarted():
            return {"pickup_seconds": event.waited_s}
        case events.ItemApplied() | events.ItemStale():
            return {"process_seconds": event.process_s}
        case events.FetchEnded():
            return {"fetch_seconds": event.seconds, "fetch_rows": event.count}
        case events.OutcomesWritten():
            return {"write_seconds": event.seconds, "write_rows": event.count}
        case events.LeasesRenewed():
            return {"lease_margin_seconds": event.margin_s}
        case _:
            return {}


def otel_name(metric: Metric) -> str:
    """Return the name by OpenTelemetry's rules: dots, no unit, no total."""
    if metric.name == "process_seconds":
        return "messaging.process.duration"
    name = metric.name.removesuffix("_total").removesuffix("_seconds")
    return "rowlock." + name.replace("_", ".")


def _unit(metric: Metric) -> str:
    if metric.name.endswith("_seconds"):
        return "s"
    return "{row}" if metric.name.endswith("_rows") else "1"


def _histogram(meter: Meter, metric: Metric) -> Histogram:
    return meter.create_histogram(otel_name(metric), unit=_unit(metric), description=metric.help)


def _observe(meter: Meter, metric: Metric, sources: Iterable[Source]) -> None:
    given = tuple(sources)

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        for labels, value in read_metric(metric, given).values.items():
            assert not isinstance(value, Buckets)
            yield Observation(value, dict(zip(metric.all_labels, labels, strict=True)))

    create = (
        meter.create_observable_counter
        if metric.kind == "counter"
        else meter.create_observable_gauge
    )
    create(otel_name(metric), callbacks=[observe], unit=_unit(metric), description=metric.help)
