"""Metrics for Prometheus: a collector that reads the managers of this process at the scrape.

Not here: the names (``telemetry/metrics.py``), and the endpoint, which is the host's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import (
    REGISTRY,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

from rowlock.errors import ConfigurationError
from rowlock.insight.observing.observer import Observer
from rowlock.pipelines.manager import PipelineManager
from rowlock.pipelines.statistics import Buckets
from rowlock.telemetry.metrics import METRICS, Metric, Reading, Source, read_metrics

PREFIX = "rowlock_"
MULTIPROCESS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")


class ManagerCollector(Collector):
    """Reads managers at each scrape: no SQL, no listener, and nothing to clean up between."""

    def __init__(self, *sources: Source) -> None:
        self._sources = sources

    def describe(self) -> Iterator[Family]:
        """Yield every metric without values, so that a registry finds names that are taken."""
        for metric in METRICS:
            yield _family(metric)

    def collect(self) -> Iterator[Family]:
        """Yield every metric."""
        for reading in read_metrics(self._sources):
            yield _filled(reading)


def register(*sources: Source, registry: CollectorRegistry = REGISTRY) -> ManagerCollector:
    """Have `registry` show the metrics of this process, and return the collector, for
    ``registry.unregister``: of the managers in `sources`, and of an Observer and its managers.

    Raises:
        ConfigurationError: there is no source, the registry has such metrics already, or the
            client's multi-process mode is on.
    """
    if not sources or not all(isinstance(one, PipelineManager | Observer) for one in sources):
        raise ConfigurationError(
            "register takes the managers of this process, or their Observer: register(manager)"
        )
    if any(name in os.environ for name in MULTIPROCESS):
        raise ConfigurationError(
            f"the multi-process mode of prometheus_client ({MULTIPROCESS[0]}) sums up files of"
            " values, and has no place for a collector: unset it and have each process scraped at a"
            " port of its own, or use rowlock.telemetry.otel"
        )
    collector = ManagerCollector(*sources)
    try:
        registry.register(collector)
    except ValueError as error:
        raise ConfigurationError(
            "this registry has metrics of rowlock already: register all managers of a process in"
            " one call, register(one, another), or unregister the earlier collector"
        ) from error
    return collector


def _family(
    metric: Metric,
) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    name, labels = PREFIX + metric.name, metric.all_labels
    match metric.kind:
        case "counter":
            return CounterMetricFamily(name, metric.help, labels=labels)
        case "gauge":
            return GaugeMetricFamily(name, metric.help, labels=labels)
        case "histogram":
            return HistogramMetricFamily(name, metric.help, labels=labels)


def _filled(reading: Reading) -> Family:
    family = _family(reading.metric)
    for labels, value in reading.values.items():
        if isinstance(family, HistogramMetricFamily):
            assert isinstance(value, Buckets)
            family.add_metric(labels, _cumulative(value), value.sum)
        else:
            assert not isinstance(value, Buckets)
            family.add_metric(labels, value)
    return family


def _cumulative(buckets: Buckets) -> list[tuple[str, float]]:
    bounds = [*map(floatToGoString, buckets.bounds), "+Inf"]
    return list(zip(bounds, accumulate(buckets.counts), strict=True))
