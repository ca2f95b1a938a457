"""Metrics for Prometheus: a collector that reads the managers of this process at the scrape.

Not here: the names (``telemetry/metrics.py``), and the endpoint, which is the host's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Any, cast

from prometheus_client.core import (
    REGISTRY,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

from rowlock import Buckets, PipelineManager
from rowlock.errors import ConfigurationError
from rowlock.insight.observer import Observer
from rowlock.telemetry.metrics import METRICS, Kind, Metric, Reading, Source, read_metrics

PREFIX = "rowlock_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of what `exposition` returns."""
PREFIXES_MAX = 10_000  # cached beginnings of lines, each of one distribution of one pipeline
MULTIPROCESS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")


class ManagerCollector(Collector):
    def __init__(self, *sources: Source) -> None:
        self._sources = sources

    def describe(self) -> Iterator[Family]:
        """Yield every metric without values, so that a registry finds names that are taken."""
        for metric in METRICS:
            yield _family(metric)

    def collect(self) -> Iterator[Family]:
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


def exposition(*sources: Source) -> bytes:
    """Return what Prometheus reads, of the metrics of rowlock alone: the same as from a registry in
    which `sources` are registered, for a fifth of the time, since the beginnings of lines are
    kept. Text of other metrics may stand before or behind it.
    """
    return "".join(line for one in read_metrics(sources) for line in _lines(one)).encode()


def _lines(reading: Reading) -> Iterator[str]:
    metric = reading.metric
    name = PREFIX + metric.name
    yield f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n"
    for values, value in reading.values.items():
        labels = _labelled(metric.all_labels, values)
        if isinstance(value, Buckets):
            cumulative = list(accumulate(value.counts))
            prefixes = _bucket_prefixes(name, labels, value.bounds)
            yield "".join(
                [f"{prefix}{count}\n" for prefix, count in zip(prefixes, cumulative, strict=True)]
            )
            yield f"{name}_count{{{labels}}} {cumulative[-1]}\n"
            yield f"{name}_sum{{{labels}}} {float(value.sum)!r}\n"
        else:
            braced = f"{{{labels}}}" if labels else ""
            yield f"{name}{braced} {float(value)!r}\n"


@lru_cache(PREFIXES_MAX)
def _labelled(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    escaped = (
        value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for value in values
    )
    return ",".join(f'{name}="{value}"' for name, value in zip(names, escaped, strict=True))


@lru_cache(PREFIXES_MAX)
def _bucket_prefixes(name: str, labels: str, bounds: tuple[float, ...]) -> tuple[str, ...]:
    ends = (*map(floatToGoString, bounds), "+Inf")
    return tuple(f'{name}_bucket{{{labels},le="{end}"}} ' for end in ends)


_FAMILIES: dict[Kind, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _family(metric: Metric) -> Any:
    return _FAMILIES[metric.kind](PREFIX + metric.name, metric.help, labels=metric.all_labels)


def _filled(reading: Reading) -> Family:
    family = _family(reading.metric)
    for labels, value in reading.values.items():
        if isinstance(value, Buckets):
            bounds = [*map(floatToGoString, value.bounds), "+Inf"]
            counts = list(zip(bounds, accumulate(value.counts), strict=True))
            family.add_metric(labels, counts, value.sum)
        else:
            family.add_metric(labels, value)
    return cast("Family", family)
