"""What a metric is, and how one is read from the snapshot of a pipeline.

Not here: which there are (``telemetry/metrics.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rowlock.insight.observing.census import CensusCounts
from rowlock.insight.observing.observer import Observer
from rowlock.pipelines.manager import PipelineManager
from rowlock.pipelines.statistics import Buckets, PipelineHealth, PipelineStatistics

BY_CENSUS = "By the census, in the one replica that counts."

Value: TypeAlias = "float | Buckets"
Labels: TypeAlias = tuple[str, ...]
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


Source: TypeAlias = "PipelineManager | Observer"
"""What metrics are read from: a manager, or an observer with its managers."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is read of one pipeline at once. `paused` is None if there is no observer, `counted` if
    this replica has not counted.
    """

    statistics: PipelineStatistics
    health: PipelineHealth
    paused: bool | None = None
    counted: CensusCounts | None = None


@dataclass(frozen=True, slots=True)
class MetricSources:
    """What a process has that is read."""

    managers: tuple[PipelineManager, ...]
    observer: Observer | None

    @classmethod
    def of(cls, sources: Iterable[Source]) -> MetricSources:
        """Return what `sources` have."""
        given = tuple(sources)
        observers = [one for one in given if isinstance(one, Observer)]
        managers = [one for one in given if isinstance(one, PipelineManager)]
        observed = [manager for observer in observers for manager in observer.managers]
        # Each once: a manager may be named beside its observer.
        return cls(tuple(dict.fromkeys([*observed, *managers])), next(iter(observers), None))


ReadPipeline: TypeAlias = Callable[[Snapshot], Mapping[Labels, Value]]
ReadReplica: TypeAlias = Callable[[MetricSources], Mapping[Labels, Value]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: without the prefix ``rowlock_``, as a dashboard names it.
        kind: ``counter``, ``gauge`` or ``histogram``.
        help: what it says.
        labels: names beside `pipeline`; for one of a replica, all of them.
        read: returns its values of a pipeline, by the labels' values.
        read_replica: the same of all managers of a process, for a metric without `pipeline`.
        merge: makes one of two values that share a name.
    """

    name: str
    kind: Kind
    help: str
    labels: Labels = ()
    read: ReadPipeline | None = None
    read_replica: ReadReplica | None = None
    merge: Callable[[float, float], float] = lambda one, other: one + other

    @property
    def all_labels(self) -> Labels:
        """Names of all its labels."""
        return self.labels if self.read is None else ("pipeline", *self.labels)


def counter(name: str, counted: str, text: str) -> Metric:
    """Return a counter of a pipeline that its statistics have."""
    return Metric(name, "counter", text, read=lambda now: {(): now.statistics.counters[counted]})


def labelled_counter(
    name: str, label: str, text: str, *, counted: Mapping[str, Sequence[str]]
) -> Metric:
    """Return a counter with a label: each of its values sums some of a pipeline's counters."""

    def read(now: Snapshot) -> Mapping[Labels, Value]:
        counters = now.statistics.counters
        # Those of a wing are counted by its pipelines alone.
        return {
            (value,): sum(counters[one] for one in names)
            for value, names in counted.items()
            if counters.keys() >= {*names}
        }

    return Metric(name, "counter", text, (label,), read)


def histogram(name: str, measured: str, text: str) -> Metric:
    """Return a distribution of a pipeline that its statistics have."""
    return Metric(name, "histogram", text, read=lambda now: {(): now.statistics.buckets[measured]})


def gauge(
    name: str,
    of: Callable[[Snapshot], float],
    text: str,
    *,
    merge: Callable[[float, float], float] = lambda one, other: one + other,
) -> Metric:
    """Return a gauge of a pipeline."""
    return Metric(name, "gauge", text, read=lambda now: {(): of(now)}, merge=merge)


def census_gauge(
    name: str,
    of: Callable[[CensusCounts], float | None],
    text: str,
    *,
    merge: Callable[[float, float], float] = lambda one, other: one + other,
) -> Metric:
    """Return a gauge of a pipeline that the census counts."""

    def read(now: Snapshot) -> Mapping[Labels, Value]:
        value = None if now.counted is None else of(now.counted)
        return {} if value is None else {(): value}

    return Metric(name, "gauge", f"{text} {BY_CENSUS}", read=read, merge=merge)
