"""The answer of `Insight.status`: whether anything waits too long, a line for each pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rowlock.insight.asking.databases import AwayDatabase
from rowlock.insight.counting.counts import COUNTED_MAX
from rowlock.insight.counting.pipeline_status import PipelineStatus
from rowlock.insight.counting.replicas import LiveReplicas, table_text
from rowlock.insight.shown import duration, iso, shown

SCHEMA: Final = "rowlock.status/1"
UNKNOWN, NOTHING, WING = "?", "\N{EN DASH}", "\N{MIDDLE DOT}"
WIDE, NARROW = 90, 60
"""Below so many columns the rates, and then all but the first numbers, are left out."""
NAMES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Status:
    """The answer of `Insight.status`.

    Attributes:
        database: its kind, host and name.
        at: when it was asked, by the database's clock.
        replicas: that live.
        pipelines: one line each.
        away: databases that could not be asked.
    """

    database: str
    at: datetime | None
    replicas: LiveReplicas
    pipelines: tuple[PipelineStatus, ...]
    away: tuple[AwayDatabase, ...] = ()

    @property
    def needs_person(self) -> bool:
        """Whether something waits until a person does something, or a database is away."""
        return bool(self.away) or any(one.needs_person for one in self.pipelines)

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
        return "\n".join([*lines, *(f"{mark} {line}" for mark, line in self.below())])

    def below(self) -> Iterator[tuple[str, str]]:
        """Yield what stands below the table, each with its mark: databases that are away, wings,
        what is not known, and each trouble.
        """
        for away in self.away:
            yield "!", away.text
        for one in self.pipelines:
            if one.wing is not None:
                yield WING, f"{one.pipeline}: {one.wing}"
        if self.replicas.why:
            yield UNKNOWN, f"replicas: {shown(self.replicas.why)}"
        unknown = dict.fromkeys(line for one in self.pipelines for line in one.unknown)
        told = {one.text for one in self.away}
        for line in unknown:
            if line not in told:
                yield UNKNOWN, shown(line)
        for one in self.pipelines:
            for trouble in one.troubles:
                yield "!", f"{one.pipeline}: {trouble}"

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
            "away": [one.to_dict() for one in self.away],
        }

    def _title(self) -> str:
        when = "" if self.at is None else f"   {self.at.astimezone(UTC):%H:%M:%S} UTC"
        live = self.replicas.live
        names = ", ".join(shown(one.name, 40) for one in live[:NAMES_MAX])
        more = f" and {len(live) - NAMES_MAX} more" if len(live) > NAMES_MAX else ""
        count = self.replicas.count_text
        return f"{self.database}{when}   {count}{': ' if names else ''}{names}{more}"


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


def _status_dict(one: PipelineStatus, at: datetime | None) -> dict[str, Any]:
    counts = asdict(one.counts)
    counts.pop("at")
    parked_keys = list(counts.pop("parked_keys"))
    counts.pop("refused")
    return {
        "pipeline": one.pipeline,
        **counts,
        "parked_key": next(iter(parked_keys), None),
        "parked_keys": parked_keys,
        "counted_max": COUNTED_MAX,
        "rows_s": one.rows_s,
        "p95_s": one.p95_s,
        "runs_on": one.runs_on,
        "paused": one.pause is not None,
        "state": one.state(at),
        "needs_person": one.needs_person,
        "troubles": list(one.troubles),
        "unknown": list(one.unknown),
        "busy": one.busy,
        "workers": one.workers,
        "wing": one.wing,
    }
