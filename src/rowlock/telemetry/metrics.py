"""The catalogue of metrics, and how each is read from a manager: the one place of their names.

The one idea: a metric is a function of a snapshot that the process keeps anyway. So a reading runs
no SQL, costs nothing between two of them, and is answered while the database is away. Label values
are class names and closed sets, so that the number of series does not grow with rows.

Not here: any format (``telemetry/prometheus.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Literal, TypeAlias

from rowlock import (
    Buckets,
    NotificationStatistics,
    PipelineHealth,
    PipelineManager,
    PipelineStatistics,
)
from rowlock.insight.observer import CensusCounts, Observer, own_version
from rowlock.spi import replica_mark

# ---------------------------------------------------------------- one metric


BY_CENSUS = "By the census, in the one replica that counts."

Value: TypeAlias = "float | Buckets"
Labels: TypeAlias = tuple[str, ...]
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


Source: TypeAlias = "PipelineManager | Observer"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The statistics of one pipeline; `paused` with an observer, `counted` with a census."""

    statistics: PipelineStatistics
    health: PipelineHealth
    paused: bool | None = None
    counted: CensusCounts | None = None


@dataclass(frozen=True, slots=True)
class MetricSources:
    managers: tuple[PipelineManager, ...]
    observer: Observer | None

    @classmethod
    def of(cls, sources: Iterable[Source]) -> MetricSources:
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
    merge: Callable[[float, float], float] = add

    @property
    def all_labels(self) -> Labels:
        return self.labels if self.read is None else ("pipeline", *self.labels)


def counter(name: str, counted: str, text: str) -> Metric:
    return Metric(name, "counter", text, read=lambda now: {(): now.statistics.counters[counted]})


def labelled_counter(
    name: str, label: str, text: str, *, counted: Mapping[str, Sequence[str]]
) -> Metric:
    """Return a counter with a label, each of whose values sums some of a pipeline's counters."""

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
    return Metric(name, "histogram", text, read=lambda now: {(): now.statistics.buckets[measured]})


Merge: TypeAlias = Callable[[float, float], float]


def gauge(name: str, of: Callable[[Snapshot], float], text: str, *, merge: Merge = add) -> Metric:
    return Metric(name, "gauge", text, read=lambda now: {(): of(now)}, merge=merge)


def census_gauge(
    name: str, of: Callable[[CensusCounts], float | None], text: str, *, merge: Merge = add
) -> Metric:
    def read(now: Snapshot) -> Mapping[Labels, Value]:
        value = None if now.counted is None else of(now.counted)
        return {} if value is None else {(): value}

    return Metric(name, "gauge", f"{text} {BY_CENSUS}", read=read, merge=merge)


# ---------------------------------------------------------------- the catalogue


PIPELINES_MAX = 200  # most pipelines with series of their own; those beyond share the name `OTHER`
OTHER = "_other"


def _fetches(now: Snapshot) -> Mapping[Labels, Value]:
    counters, rows = now.statistics.counters, now.statistics.buckets["fetch_rows"]
    # Not what is left of all fetches: one that is under way would be counted, and taken back.
    return {
        ("claimed",): rows.count - rows.counts[0],
        ("empty",): rows.counts[0],
        ("failed",): counters["fetches_failed"],
    }


def _channels(replica: MetricSources) -> list[NotificationStatistics]:
    found = [manager.health().notifications for manager in replica.managers]
    return [one for one in found if one is not None]


def _notifications(replica: MetricSources) -> Mapping[Labels, Value]:
    channels = _channels(replica)
    names = ("sent", "received", "dropped") if channels else ()
    return {(name,): sum(getattr(one, name) for one in channels) for name in names}


def _listening(replica: MetricSources) -> Mapping[Labels, Value]:
    channels = _channels(replica)
    return {(): float(all(one.listening for one in channels))} if channels else {}


def _skew(replica: MetricSources) -> Mapping[Labels, Value]:
    if replica.observer is not None and replica.observer.skew_s is not None:
        return {(): replica.observer.skew_s}
    claims = [manager.statistics().values() for manager in replica.managers]
    every = [one.clock_skew_s for of_manager in claims for one in of_manager]
    known = [skew_s for skew_s in every if skew_s is not None]
    return {(): max(known, key=abs)} if known else {}


def _history_dropped(replica: MetricSources) -> Mapping[Labels, Value]:
    history = None if replica.observer is None else replica.observer.history
    return {} if history is None else {(): history.dropped}


METRICS: tuple[Metric, ...] = (
    Metric("fetches_total", "counter", "Fetches, by what they brought.", ("result",), _fetches),
    counter("rows_claimed_total", "claimed", "Rows that were claimed."),
    counter("rows_recovered_total", "recovered", "Claimed rows whose last holder had died."),
    counter("rows_swept_total", "swept", "Rows whose orphaned lock columns were cleared."),
    labelled_counter(
        "outcomes_total",
        "outcome",
        "What became of claimed rows; a deleted row counts as applied.",
        counted={
            "applied": ("applied", "deleted"),
            "retried": ("retried",),
            "reset": ("reset",),
            "parked": ("parked",),
            "stale": ("stale",),
            "changed": ("changed",),
            "released": ("released",),
            "abandoned": ("abandoned",),
        },
    ),
    counter("attempts_total", "started", "Calls of process."),
    counter("leases_lost_total", "leases_lost", "Leases whose holder could not renew in time."),
    counter("loops_replaced_total", "loops_replaced", "Loops that died and were started again."),
    labelled_counter(
        "renewals_total",
        "result",
        "Leases that were renewed, and rounds of renewals that failed.",
        counted={"renewed": ("renewals",), "failed": ("renewals_failed",)},
    ),
    labelled_counter(
        "hints_total",
        "kind",
        "Hints that arrived; those that met another one; those behind which a fetch found rows.",
        counted={
            "raised": ("hints",),
            "coalesced": ("hints_coalesced",),
            "useful": ("hints_useful",),
        },
    ),
    labelled_counter(
        "dispatch_submissions_total",
        "result",
        "Submissions to a dispatching pipeline in this process, by their answer.",
        counted={
            one: (f"submissions_{one}",) for one in ("admitted", "attached", "rejected", "draining")
        },
    ),
    labelled_counter(
        "dispatch_offers_total",
        "result",
        "Offers of rows to workers: accepted, refused by a busy one, or made to one that is gone.",
        counted={one: (f"offers_{one}",) for one in ("accepted", "refused", "gone")},
    ),
    Metric(
        "notifications_total",
        "counter",
        "Hints exchanged with other replicas.",
        ("direction",),
        read_replica=_notifications,
    ),
    histogram("process_seconds", "process", "How long attempts took, without waiting."),
    histogram("queue_wait_seconds", "queue_wait", "From the place in the queue to the attempt."),
    histogram("pickup_seconds", "pickup", "From due to begun, by the database's clock."),
    histogram("fetch_seconds", "fetch", "How long claims took."),
    histogram("write_seconds", "write", "How long transactions took that wrote outcomes."),
    histogram("lease_margin_seconds", "lease_margin", "Trust that was left at renewal."),
    histogram("fetch_rows", "fetch_rows", "How many rows a claim brought."),
    histogram("write_rows", "write_rows", "How many outcomes a transaction wrote."),
    gauge("queued", lambda now: now.statistics.queued, "Rows that wait for a worker."),
    gauge("queue_capacity", lambda now: now.statistics.capacity, "Most rows in the queue."),
    gauge("running", lambda now: now.statistics.running, "Attempts that run."),
    gauge("workers", lambda now: now.statistics.workers, "Most attempts at once."),
    gauge("leases", lambda now: now.statistics.tracked, "Leases that are kept alive."),
    gauge(
        "abandoned",
        lambda now: now.statistics.abandoned,
        "Attempts that ignored their cancellation and still run.",
    ),
    gauge(
        "longest_running_seconds",
        lambda now: now.statistics.longest_running_s,
        "Age of the oldest attempt.",
        merge=max,
    ),
    gauge(
        "healthy",
        lambda now: float(now.health.healthy),
        "1 if every loop runs and the database answers, else 0.",
        merge=min,
    ),
    Metric(
        "paused",
        "gauge",
        "1 if the pipeline is paused, else 0; with an Observer.",
        read=lambda now: {} if now.paused is None else {(): float(now.paused)},
        merge=max,
    ),
    Metric(
        "loop_late_seconds",
        "gauge",
        "How far a loop is behind its own plan.",
        ("loop",),
        lambda now: {(loop,): late_s for loop, late_s in now.health.late_s.items()},
        merge=max,
    ),
    census_gauge("due_rows", lambda now: now.counts.due, "Rows that are ready, free and due."),
    census_gauge(
        "oldest_due_seconds",
        lambda now: now.counts.oldest_s,
        "For how long the first of them has been due.",
        merge=max,
    ),
    census_gauge("resting_rows", lambda now: now.counts.resting, "Rows whose time has not come."),
    census_gauge("ended_leases", lambda now: now.counts.ended, "Rows whose lease has ended."),
    census_gauge("parked_rows", lambda now: now.counts.parked, "Rows that were set aside."),
    census_gauge(
        "replicas_running", lambda now: now.replicas, "Live replicas that run it.", merge=max
    ),
    census_gauge(
        "census_age_seconds", lambda now: now.age_s, "How old these counts are.", merge=max
    ),
    Metric(
        "event_loop_lag_seconds",
        "gauge",
        "By how much the event loop was late at most in the last seconds; with an Observer.",
        read_replica=lambda now: {} if now.observer is None else {(): now.observer.lag_s},
    ),
    Metric(
        "history_dropped_total",
        "counter",
        "Entries of the history that were not written, for want of room; with an Observer.",
        read_replica=_history_dropped,
    ),
    Metric(
        "clock_skew_seconds",
        "gauge",
        "By how much the clock of this process is ahead of the database's.",
        read_replica=_skew,
    ),
    Metric(
        "notifications_listening",
        "gauge",
        "1 if hints of other replicas are heard, else 0.",
        read_replica=_listening,
    ),
    Metric(
        "replica_info",
        "gauge",
        "Always 1; says which replica this is.",
        ("replica", "version"),
        read_replica=lambda _: {(replica_mark(), own_version()): 1.0},
    ),
)


@dataclass(frozen=True, slots=True)
class Reading:
    metric: Metric
    values: Mapping[Labels, Value]


def read_metrics(sources: Iterable[Source]) -> Iterator[Reading]:
    """Yield every metric; values of pipelines that share a name are merged. For any thread."""
    replica = MetricSources.of(sources)
    snapshots = _snapshots(replica)
    for metric in METRICS:
        yield _read(metric, replica, snapshots)


def read_metric(metric: Metric, sources: Iterable[Source]) -> Reading:
    replica = MetricSources.of(sources)
    return _read(metric, replica, () if metric.read is None else _snapshots(replica))


def _read(
    metric: Metric, replica: MetricSources, snapshots: Iterable[tuple[str, Snapshot]]
) -> Reading:
    if metric.read_replica is not None:
        return Reading(metric, metric.read_replica(replica))
    assert metric.read is not None
    values: dict[Labels, Value] = {}
    for name, now in snapshots:
        for labels, value in metric.read(now).items():
            key = (name, *labels)
            values[key] = _merged(metric, values[key], value) if key in values else value
    return Reading(metric, values)


def _snapshots(replica: MetricSources) -> list[tuple[str, Snapshot]]:
    managers, observer = replica.managers, replica.observer
    health = [one for manager in managers for one in manager.health().pipelines]
    statistics = [one for manager in managers for one in manager.statistics().values()]
    # By the order of registration: who has series of its own does not change while a host runs.
    named = list(dict.fromkeys(one.pipeline for one in statistics))[:PIPELINES_MAX]
    found = []
    for one, of_it in zip(statistics, health, strict=False):
        name, now = one.pipeline, Snapshot(one, of_it)
        if observer is not None:
            now = Snapshot(one, of_it, name in observer.paused, observer.counted.get(name))
        found.append((name if name in named else OTHER, now))
    return found


def _merged(metric: Metric, one: Value, other: Value) -> Value:
    if isinstance(one, Buckets) and isinstance(other, Buckets):
        counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
        return Buckets(one.bounds, counts, one.sum + other.sum)
    assert not isinstance(one, Buckets)
    assert not isinstance(other, Buckets)
    return metric.merge(one, other)
