"""What a pipeline has done and how it is: counters for dashboards, health for probes. Frozen
snapshots of bounded size: durations are counted in buckets, with no object per row.

Source of the bounds: OpenTelemetry's advice for durations of messaging, and four more for work that
takes minutes.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from rowlock import events
from rowlock.hints import NotificationStatistics

SECONDS = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""Bounds of durations, in seconds."""
ROWS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0)
"""Bounds of numbers of rows."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """A distribution at one moment.

    Attributes:
        bounds: upper ones, inclusive, ascending.
        counts: how many values were up to each bound and above the one before it; the last is of
            those above all bounds.
        sum: of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def since(self, earlier: Buckets) -> Buckets:
        """Return the distribution of what came behind the snapshot `earlier`."""
        counts = tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=True))
        return Buckets(self.bounds, counts, self.sum - earlier.sum)

    def quantile(self, share: float) -> float | None:
        """Return the value that a `share` of all values, 0 to 1, does not exceed, linear within
        its bucket; the highest bound for what exceeds it, None if there was no value.
        """
        wanted, below, lower = share * self.count, 0, 0.0
        if not self.count:
            return None
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and below + count >= wanted:
                return lower + (bound - lower) * max(0.0, wanted - below) / count
            below, lower = below + count, bound
        return self.bounds[-1]


class Histogram:
    __slots__ = ("_counts", "_name", "_pipeline", "_sum", "bounds")

    def __init__(
        self, bounds: tuple[float, ...] = SECONDS, *, pipeline: str = "", name: str = ""
    ) -> None:
        self.bounds = bounds
        self._pipeline, self._name = pipeline, name
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self._sum += value
        if events.has_listeners(events.ValueCounted):
            events.emit(events.ValueCounted(self._pipeline, self._name, value))

    def snapshot(self) -> Buckets:
        return Buckets(self.bounds, tuple(self._counts), self._sum)


class Histograms:
    fetch: Histogram  # how long claims took
    fetch_rows: Histogram
    lease_margin: Histogram  # the least trust that was left in each round of renewals
    pickup: Histogram  # from when a row was due to its attempt, by the database's clock
    process: Histogram
    queue_wait: Histogram
    write: Histogram  # how long transactions took that wrote outcomes
    write_rows: Histogram

    def __init__(self, pipeline: str = "") -> None:
        for name in Histograms.__annotations__:
            bounds = ROWS if name.endswith("_rows") else SECONDS
            setattr(self, name, Histogram(bounds, pipeline=pipeline, name=name))

    def snapshot(self) -> dict[str, Buckets]:
        return {name: getattr(self, name).snapshot() for name in Histograms.__annotations__}


@dataclass(slots=True)
class Counters:
    """Running totals of one pipeline since its start."""

    fetches: int = 0
    fetches_empty: int = 0
    fetches_failed: int = 0
    claimed: int = 0
    recovered: int = 0
    started: int = 0
    applied: int = 0
    deleted: int = 0
    retried: int = 0
    reset: int = 0
    parked: int = 0
    unreadable: int = 0
    stale: int = 0
    never_begun: int = 0
    changed: int = 0
    released: int = 0
    leases_lost: int = 0
    abandoned: int = 0
    strays: int = 0
    renewals: int = 0
    renewals_failed: int = 0
    swept: int = 0
    loops_replaced: int = 0
    hints: int = 0
    hints_coalesced: int = 0
    hints_useful: int = 0


LOADER = "loader"
"""Under this name the pipeline's health shows that no row can be read."""


class Failures:
    """Which loops of a pipeline fail now: their last errors, and how often in a row."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}
        self.in_a_row: dict[str, int] = {}

    def failed(self, loop: str, error: str) -> None:
        self.errors[loop] = error
        self.in_a_row[loop] = self.in_a_row.get(loop, 0) + 1

    def succeeded(self, loop: str) -> None:
        if self.errors:
            self.errors.pop(loop, None)
            self.in_a_row.pop(loop, None)

    @property
    def last_error(self) -> str | None:
        """The last failure of the loop that has failed for longest."""
        return next(iter(self.errors.values()), None)


@dataclass(frozen=True, slots=True)
class PipelineStatistics:
    """One pipeline at one moment.

    Attributes:
        queued: items that wait for a worker.
        running: items whose `process` runs.
        tracked: items whose leases are kept alive.
        counters: totals since the start.
        buckets: distributions since the start: ``process``, ``queue_wait``, ``pickup``, ``fetch``,
            ``write`` and ``lease_margin`` in seconds, ``fetch_rows`` and ``write_rows``.
        capacity: most items that the queue takes now.
        workers: how many items are worked on at once at most.
        settling: items whose attempt has ended and whose outcome is on its way.
        abandoned: attempts that ignored their cancellation and still run.
        longest_running_s: for how long the oldest attempt has been running, in seconds.
        clock_skew_s: by how much the clock of this process is ahead of the database's, as of the
            last claim that brought rows, in seconds; None before.
    """

    pipeline: str
    queued: int
    running: int
    tracked: int
    counters: dict[str, int] = field(default_factory=dict)
    buckets: dict[str, Buckets] = field(default_factory=dict)
    capacity: int = 0
    workers: int = 0
    settling: int = 0
    abandoned: int = 0
    longest_running_s: float = 0.0
    clock_skew_s: float | None = None


@dataclass(frozen=True, slots=True)
class ItemView:
    """One item of a pipeline at one moment.

    Attributes:
        state: ``queued``, ``running`` or ``settling``.
        place: among those that are queued, from 0; None for others.
        since_s: for how long it has been in this state, in seconds.
        attempt: which attempt this is, from 1.
    """

    pipeline: str
    row_id: object
    state: str
    place: int | None
    since_s: float
    attempt: int
    lock_token: object


@dataclass(frozen=True, slots=True)
class PipelineHealth:
    """Whether one pipeline works.

    Attributes:
        state: ``new``, ``running``, ``stopping`` or ``stopped``.
        loops_alive: each loop, and whether it runs at this moment.
        fetch_failures: fetches that failed since the last one that did not.
        renewal_failures: renewals that failed since the last one that did not.
        last_error: the last of those failures, shortened; None while all is well.
        abandoned: processes that ignored their cancellation and still run.
        parked: rows that were set aside here since the start; they do not affect health.
        unreadable: how often this replica could not read a row since the start; such a row is left
            to other replicas, and parked if none reads it. One whose key it could not read counts
            once, and is left out for good.
        never_begun: leases that were lost since the start before work on their rows began.
        late_s: by how much each loop is behind its own plan, in seconds; 0 for one that is on time,
            as is a fetcher that waits for room. Empty unless the pipeline runs.
    """

    pipeline: str
    state: str
    loops_alive: dict[str, bool]
    fetch_failures: int
    renewal_failures: int
    last_error: str | None
    abandoned: int
    parked: int = 0
    unreadable: int = 0
    never_begun: int = 0
    late_s: dict[str, float] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Whether it is running with every loop alive and the database answering."""
        failing = self.fetch_failures or self.renewal_failures
        return self.state == "running" and all(self.loops_alive.values()) and not failing


@dataclass(frozen=True, slots=True)
class ManagerHealth:
    """Whether all pipelines of a manager work.

    Attributes:
        notifications: the channel to other replicas, if the manager has `notify`. Without it
            rows are found later, so it does not affect health.
        longest_stall_s: for how long the event loop stood still at most since the start, in
            seconds, to half a second; 0 without a heartbeat thread.
    """

    pipelines: tuple[PipelineHealth, ...]
    notifications: NotificationStatistics | None = None
    longest_stall_s: float = 0.0

    @property
    def healthy(self) -> bool:
        """Whether there are pipelines and every one is healthy."""
        return bool(self.pipelines) and all(pipeline.healthy for pipeline in self.pipelines)
