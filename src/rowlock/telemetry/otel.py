"""Metrics for OpenTelemetry: the catalogue as observable instruments, and distributions by
``record``.

The one idea: `record` costs more than a tenth of what a whole row costs, so each distribution is
thinned: at most `RECORDS_PER_S_MAX` values a second, evenly. Counters stay exact, since they are
read and not recorded. The values come from where the process counts them anyway, since an event of
each row costs as much as the values that are left out.

Not here: the names (``telemetry/metrics.py``), and the exporter, which is the host's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import (
    CallbackOptions,
    Meter,
    MeterProvider,
    Observation,
    get_meter_provider,
)

from rowlock import Buckets, PipelineManager, events
from rowlock.clock import monotonic
from rowlock.errors import ConfigurationError
from rowlock.insight.observer import Observer
from rowlock.telemetry.metrics import METRICS, OTHER, PIPELINES_MAX, Metric, Source, read_metric

RECORDS_PER_S_MAX = 100  # most recorded values of one distribution, a second


class Thinning:
    """Lets at most `RECORDS_PER_S_MAX` values a second through, evenly: every second one, or every
    tenth, by how many there were in the second before.

    The clock is read for those that may pass alone. So where values have become rare, as many as
    were left out between two of them may still be left out before all pass again.
    """

    def __init__(self) -> None:
        self._ends_at = float("-inf")
        self._seen = self._passed = self._skipped = 0
        self._stride = 1

    def passes(self) -> bool:
        self._skipped += 1
        if self._skipped < self._stride:
            return False
        self._skipped = 0
        now = monotonic()
        if now >= self._ends_at:
            self._stride = max(1, -(-self._seen // RECORDS_PER_S_MAX))
            self._ends_at, self._seen, self._passed = now + 1.0, 0, 0
        self._seen += self._stride
        passes = self._passed < RECORDS_PER_S_MAX
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
    return events.subscribe(Recording(meter).add, events.ValueCounted)


class Recording:
    def __init__(self, meter: Meter) -> None:
        self._distributions = {
            metric.name.removesuffix("_seconds"): (
                meter.create_histogram(
                    otel_name(metric), unit=_unit(metric), description=metric.help
                ),
                Thinning(),
            )
            for metric in METRICS
            if metric.kind == "histogram"
        }
        self._attributes: dict[str, Mapping[str, str]] = {}

    def add(self, counted: events.ValueCounted) -> None:
        histogram, thinning = self._distributions[counted.name]
        if thinning.passes():
            attributes = self._attributes.get(counted.pipeline)
            if attributes is None:
                is_full = len(self._attributes) >= PIPELINES_MAX
                name = OTHER if is_full else counted.pipeline
                attributes = self._attributes.setdefault(name, {"pipeline": name})
            histogram.record(counted.value, attributes)


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


def _observe(meter: Meter, metric: Metric, sources: tuple[Source, ...]) -> None:
    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        for labels, value in read_metric(metric, sources).values.items():
            assert not isinstance(value, Buckets)
            yield Observation(value, dict(zip(metric.all_labels, labels, strict=True)))

    create = (
        meter.create_observable_counter
        if metric.kind == "counter"
        else meter.create_observable_gauge
    )
    create(otel_name(metric), callbacks=[observe], unit=_unit(metric), description=metric.help)
