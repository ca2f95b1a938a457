"""The answer of `Insight.status`: whether anything waits too long, a line for each pipeline."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rowlock.insight.counting.counts import COUNTED_MAX, Counts
from rowlock.insight.counting.replicas import LiveReplicas, table_text
from rowlock.insight.shown import duration, iso, lasting, shown
from rowlock.insight.verdicts import PipelinePause

SCHEMA: Final = "rowlock.status/1"
UNKNOWN, NOTHING = "?", "\N{EN DASH}"
WIDE, NARROW = 90, 60
"""Below so many columns the rates, and then all but the first numbers, are left out."""
NAMES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """What waits for one pipeline, and who runs it.

    Attributes:
        pipeline: its name.
        counts: what waits.
        overdue_after_s: rows that have been due for longer wait too long if nobody runs it.
        pause: why it is paused; None if it is not.
        rows_s: outcomes a second, of all replicas; None if that is unknown.
        p95_s: the time that 95 of a hundred attempts did not exceed, on the slowest replica.
        runs_on: how many replicas run it; None if that is unknown.
    """

    pipeline: str
    counts: Counts
    overdue_after_s: float
    pause: PipelinePause | None = None
    rows_s: float | None = None
    p95_s: float | None = None
    runs_on: int | None = None

    @property
    def needs_person(self) -> bool:
        """Whether rows wait too long, and no replica runs it."""
        return self.runs_on == 0 and self.pause is None and bool(self.counts.due)

    @property
    def is_silent(self) -> bool:
        """Whether rows wait too long and no lease of it lives, where nobody knows who runs it."""
        oldest_s = self.counts.oldest_s
        return (
            self.runs_on is None
            and self.pause is None
            and oldest_s is not None
            and oldest_s > self.overdue_after_s
            and self.counts.leased == 0
        )

    def state(self, at: datetime | None) -> str:
        """Return who runs it, in words."""
        if self.pause is not None:
            since = self.pause.at
            since_s = 0.0 if since is None or at is None else (at - since).total_seconds()
            by, reason = shown(self.pause.by), shown(self.pause.reason)
            return f"paused by {by} {lasting(since_s)}: {reason}"
        if self.runs_on is None:
            return "NOBODY SEEMS TO RUN IT" if self.is_silent else UNKNOWN
        return f"runs on {self.runs_on}" if self.runs_on else "NOBODY RUNS IT"


@dataclass(frozen=True, slots=True)
class Status:
    """The answer of `Insight.status`.

    Attributes:
        database: its kind, host and name.
        at: when it was asked, by the database's clock.
        replicas: that live.
        pipelines: one line each.
    """

    database: str
    at: datetime | None
    replicas: LiveReplicas
    pipelines: tuple[PipelineStatus, ...]

    @property
    def needs_person(self) -> bool:
        """Whether something waits until a person does something."""
        return any(one.needs_person or one.is_silent for one in self.pipelines)

    def text(self, width: int = 100) -> str:
        """Return it for a terminal of `width` columns, without colours."""
        shown_columns = _columns(width)
        rows = [tuple(_TITLES[number] for number in shown_columns)] + [
            tuple(_cells(one, self.at)[number] for number in shown_columns)
            for one in self.pipelines
        ]
        right = frozenset(place for place, number in enumerate(shown_columns) if number in _RIGHT)
        lines = [
            self._title(),
            *(line[:width] for line in table_text(rows, right=right).split("\n")),
        ]
        return "\n".join(
            [*lines, *(f"! {_trouble(one)}" for one in self.pipelines if _is_bad(one))]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "schema": SCHEMA,
            "database": self.database,
            "at": iso(self.at),
            "needs_person": self.needs_person,
            "replicas": None
            if self.replicas.known is None
            else [one.name for one in self.replicas.live],
            "pipelines": [_status_dict(one, self.at) for one in self.pipelines],
        }

    def _title(self) -> str:
        when = "" if self.at is None else f"   {self.at.astimezone(UTC):%H:%M:%S} UTC"
        if self.replicas.known is None:
            return f"{self.database}{when}   ? replicas"
        live = self.replicas.live
        names = ", ".join(shown(one.name, 40) for one in live[:NAMES_MAX])
        more = f" and {len(live) - NAMES_MAX} more" if len(live) > NAMES_MAX else ""
        plural = "replica" if len(live) == 1 else "replicas"
        return f"{self.database}{when}   {len(live)} {plural}{': ' if names else ''}{names}{more}"


_TITLES = ("PIPELINE", "DUE", "OLDEST", "LEASED", "ENDED", "PARKED", "ROWS/S", "P95", "STATE")
_RIGHT = frozenset(range(3, 8))
_RATES = frozenset({6, 7})


def _columns(width: int) -> tuple[int, ...]:
    if width < NARROW:
        return (0, 1, 2, 8)
    return tuple(number for number in range(len(_TITLES)) if width >= WIDE or number not in _RATES)


def _cells(one: PipelineStatus, at: datetime | None) -> tuple[str, ...]:
    counts = one.counts
    oldest = NOTHING if counts.oldest_s is None else duration(counts.oldest_s)
    return (
        one.pipeline,
        _number(counts.due),
        oldest if counts.due else NOTHING,
        _number(counts.leased),
        _number(counts.ended),
        _number(counts.parked),
        NOTHING if one.rows_s is None else f"{one.rows_s:.1f}",
        NOTHING if one.p95_s is None else f"{one.p95_s:.1f} s",
        one.state(at),
    )


def _number(count: int | None) -> str:
    if count is None:
        return NOTHING
    return f"{COUNTED_MAX:,}+" if count > COUNTED_MAX else f"{count:,}"


def _is_bad(one: PipelineStatus) -> bool:
    return one.needs_person or one.is_silent


def _trouble(one: PipelineStatus) -> str:
    oldest_s = one.counts.oldest_s
    due = "due" if oldest_s is None else f"due {lasting(oldest_s)}"
    seems = "no lease of it lives" if one.is_silent else "no replica runs it"
    do = f"register {one.pipeline}() with the manager of a replica"
    return f"{one.pipeline}: {due}, and {seems}: {do}"


def _status_dict(one: PipelineStatus, at: datetime | None) -> dict[str, Any]:
    counts = asdict(one.counts)
    counts.pop("at")
    return {
        "pipeline": one.pipeline,
        **counts,
        "counted_max": COUNTED_MAX,
        "rows_s": one.rows_s,
        "p95_s": one.p95_s,
        "runs_on": one.runs_on,
        "paused": one.pause is not None,
        "state": one.state(at),
        "needs_person": _is_bad(one),
    }
