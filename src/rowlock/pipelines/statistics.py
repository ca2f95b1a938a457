"""What a pipeline has done and how it is: counters for dashboards, health for probes. Frozen
snapshots of bounded size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rowlock.hints.notifier import NotificationStatistics


@dataclass(slots=True)
class Counters:
    """Running totals of one pipeline since its start. Written by its actors, read through
    `PipelineStatistics`.
    """

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
    unchanged: int = 0
    stale: int = 0
    changed: int = 0
    released: int = 0
    leases_lost: int = 0
    abandoned: int = 0
    strays: int = 0
    renewals: int = 0
    renewals_failed: int = 0
    swept: int = 0
    loops_replaced: int = 0


class Failures:
    """Which loops of a pipeline fail now: each counts from its last success.

    Attributes:
        errors: the last failure of each loop, by the loop's name.
        in_a_row: how often each failed since it last succeeded.
    """

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}
        self.in_a_row: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self.errors)

    def failed(self, loop: str, error: str) -> None:
        """Count a round of `loop` that failed."""
        self.errors[loop] = error
        self.in_a_row[loop] = self.in_a_row.get(loop, 0) + 1

    def succeeded(self, loop: str) -> None:
        """Forget the failures of `loop`: a round of it went well."""
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
        pipeline: its name.
        queued: items that wait for a worker.
        running: items whose `process` runs.
        tracked: items whose leases are kept alive.
        counters: totals since the start, by name.
    """

    pipeline: str
    queued: int
    running: int
    tracked: int
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PipelineHealth:
    """Whether one pipeline works.

    Attributes:
        pipeline: its name.
        state: ``new``, ``running``, ``stopping`` or ``stopped``.
        loops_alive: each loop by name, and whether it runs at this moment.
        fetch_failures: fetches that failed since the last one that did not.
        renewal_failures: renewals that failed since the last one that did not.
        last_error: the last of those failures, shortened; None while all is well.
        abandoned: processes that ignored their cancellation and still run.
        parked: rows that were set aside here since the start; they harm nobody's health.
    """

    pipeline: str
    state: str
    loops_alive: dict[str, bool]
    fetch_failures: int
    renewal_failures: int
    last_error: str | None
    abandoned: int
    parked: int = 0

    @property
    def healthy(self) -> bool:
        """Whether it is running with every loop alive and the database answering."""
        failing = self.fetch_failures or self.renewal_failures
        return self.state == "running" and all(self.loops_alive.values()) and not failing


@dataclass(frozen=True, slots=True)
class ManagerHealth:
    """Whether all pipelines of a manager work.

    Attributes:
        pipelines: each of them.
        notifications: the channel to other replicas, if the manager was told to `notify`. Without
            it all works, if later, so it makes nobody unhealthy.
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
