"""What ``top`` shows of one look, the rates that it has seen, and how it looks again and again.

The one idea: the next look begins a rest after the end of the one before, and the rest grows with
what the look took. So a slow database is asked less often, and questions never pile up. Texts
of rows and reports have passed `shown`, so no control character reaches the terminal.

Not here: drawing and keys (``top_screen.py``).
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC
from typing import Any, Final

from rowlock.cli.answering import ANSWER_WITHIN_S, message_of
from rowlock.cli.commands import status_in_time
from rowlock.clock import monotonic
from rowlock.insight.insight import Insight
from rowlock.insight.replicas import ENDLESS, NOTHING, ReplicaState, summed
from rowlock.insight.shown import duration, shown
from rowlock.insight.status import PipelineStatus, Status, count_text, decimal_text

# ---------------------------------------------------------------- rates


MINUTES: Final = 10  # minutes of a sparkline, a character each
MINUTE_S: Final = 60.0
SAMPLES_MAX: Final = 1_200
PIPELINES_MAX: Final = 1_000
_BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class RateHistory:
    """Samples of each pipeline's rate; the oldest are forgotten."""

    _samples: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)

    def add(self, at: float, rates: Iterable[tuple[str, float | None]]) -> None:
        for pipeline, rows_s in rates:
            if rows_s is None:
                continue
            if pipeline in self._samples or len(self._samples) < PIPELINES_MAX:
                samples = self._samples.setdefault(pipeline, deque(maxlen=SAMPLES_MAX))
                samples.append((at, rows_s))

    def picture(self, pipeline: str, now: float) -> str:
        return sparkline(per_minute(self._samples.get(pipeline, ()), now))


def per_minute(samples: Iterable[tuple[float, float]], now: float) -> list[float | None]:
    """Return the mean of each minute, the oldest first; None for one without samples."""
    minutes: list[list[float]] = [[] for _ in range(MINUTES)]
    for at, rows_s in samples:
        age = int((now - at) // MINUTE_S)
        if 0 <= age < MINUTES:
            minutes[MINUTES - 1 - age].append(rows_s)
    return [sum(each) / len(each) if each else None for each in minutes]


def sparkline(values: Sequence[float | None]) -> str:
    """Return a bar for each value, by its share of the greatest; a space for None."""
    greatest = max((value for value in values if value is not None), default=0.0)
    return "".join(_bar(value, greatest) for value in values)


def _bar(value: float | None, greatest: float) -> str:
    if value is None:
        return " "
    if greatest <= 0 or value <= 0:
        return _BARS[0]
    return _BARS[min(len(_BARS) - 1, int(value / greatest * len(_BARS)))]


# ---------------------------------------------------------------- one look


WIDTH_MIN, HEIGHT_MIN = 40, 10  # a smaller terminal shows nothing but that it is too small
NARROW: Final = 60  # below so many columns the table has four of its columns
WIDE: Final = 100  # from so many columns on the table is whole
PANES_FROM: Final = 16  # from so many lines on there is room below the table
LONGEST_MAX: Final = 20
NAME_CHARS_MAX: Final = 28
NAMED_MAX: Final = 3  # how many parked rows a line of trouble names
_TELLS_PARKED: Final = re.compile(r"(?:more than )?[\d,]+ rows? (?:is|are) parked\b")
TOO_SMALL: Final = f"make me larger: {WIDTH_MIN} × {HEIGHT_MIN} at least"

COLUMNS: Final = (
    "PIPELINE",
    "DUE",
    "OLDEST",
    "RUN",
    "QUEUE",
    "ROWS/S",
    "10 MIN",
    "P95",
    "PARKED",
    "STATE",
)
_NARROW_TITLES: Final = {"PIPELINE": "NAME"}
_NARROW_COLUMNS: Final = ("PIPELINE", "DUE", "OLDEST", "STATE")
_LEFT_OUT: Final = frozenset({"10 MIN", "P95"})
RIGHT: Final = frozenset({"RUN", "QUEUE", "ROWS/S", "P95", "PARKED"})
"""Columns of numbers, which end at their right."""


@dataclass(frozen=True, slots=True)
class Subject:
    model: str
    row_id: str


@dataclass(frozen=True, slots=True)
class PaneLine:
    text: str
    subject: Subject | None = None


@dataclass(frozen=True, slots=True)
class Look:
    status: Status
    models: Mapping[str, str]


def title(look: Look) -> str:
    status = look.status
    at = "" if status.at is None else f" · {status.at.astimezone(UTC):%H:%M:%S}"
    return f"{shown(status.database)} · {status.replicas.count_text}{at}"


def columns(width: int) -> tuple[str, ...]:
    if width < NARROW:
        return _NARROW_COLUMNS
    return tuple(name for name in COLUMNS if width >= WIDE or name not in _LEFT_OUT)


def heading(column: str, width: int) -> str:
    return _NARROW_TITLES.get(column, column) if width < NARROW else column


def cells(look: Look, one: PipelineStatus, *, rates: RateHistory, now: float) -> dict[str, str]:
    """Return the line of a pipeline, by column; `now` is a time of the monotonic clock."""
    counts, replicas = one.counts, look.status.replicas
    running = summed(replicas.reports_of(one.pipeline), "running")
    oldest = NOTHING if counts.oldest_s is None or not counts.due else duration(counts.oldest_s)
    return {
        "PIPELINE": shown(one.pipeline, NAME_CHARS_MAX),
        "DUE": count_text(counts.due),
        "OLDEST": oldest,
        "RUN": count_text(None if running is None else int(running)),
        "QUEUE": replicas.queue(one.pipeline),
        "ROWS/S": decimal_text(one.told.settled_s),
        "10 MIN": rates.picture(one.pipeline, now),
        "P95": decimal_text(one.told.p95_s, " s"),
        "PARKED": count_text(counts.parked),
        "STATE": one.state(look.status.at),
    }


def longest_at_work(look: Look) -> tuple[PaneLine, ...]:
    """Return the attempts that have run for longest, those without an end behind all others."""
    found = [
        ((summed([item], "since_s") or 0.0) + max(0.0, replica.seen_s), replica, item)
        for replica in look.status.replicas.live
        for item in replica.items
        if item.get("state") == "running"
    ]
    found.sort(key=lambda one: (_is_endless(one[1], one[2]), -one[0]))
    return tuple(
        _line_of(look, seconds=seconds, replica=replica, item=item)
        for seconds, replica, item in found[:LONGEST_MAX]
    )


def trouble(look: Look) -> tuple[PaneLine, ...]:
    away = (PaneLine(shown(one.text, 500)) for one in look.status.away)
    return (*away, *_told(look), *_parked(look))


def first_subject(look: Look, pipeline: str) -> Subject | None:
    """Return the row of a pipeline to explain first: a parked one, or else the longest at work."""
    model = look.models.get(pipeline, "")
    for one in look.status.pipelines:
        if one.pipeline == pipeline and one.counts.parked_keys:
            return Subject(model, one.counts.parked_keys[0])
    of_it = (line.subject for line in longest_at_work(look))
    return next((one for one in of_it if one is not None and one.model == model), None)


def _told(look: Look) -> Iterator[PaneLine]:
    for one in look.status.pipelines:
        # Parked rows that are named have a line of their own.
        is_named = bool(one.counts.parked_keys)
        for trouble in one.troubles:
            if not (is_named and _TELLS_PARKED.match(trouble)):
                yield PaneLine(shown(f"{one.pipeline}: {trouble}", 500), _first_due(look, one))


def _first_due(look: Look, one: PipelineStatus) -> Subject | None:
    model = look.models.get(one.pipeline)
    return None if model is None or one.first_key is None else Subject(model, one.first_key)


def _parked(look: Look) -> Iterator[PaneLine]:
    # Pipelines of one model have the same parked rows.
    of_models = {look.models.get(one.pipeline): one for one in look.status.pipelines}
    for one in of_models.values():
        keys, model = one.counts.parked_keys, look.models.get(one.pipeline, "")
        if not one.counts.parked or not keys:
            continue
        named = ", ".join(shown(key, 40) for key in keys[:NAMED_MAX])
        more = " …" if one.counts.parked > NAMED_MAX else ""
        text = f"{count_text(one.counts.parked)} parked: {shown(model)} {named}{more}"
        yield PaneLine(text, Subject(model, keys[0]))


def _line_of(
    look: Look, *, seconds: float, replica: ReplicaState, item: Mapping[str, Any]
) -> PaneLine:
    pipeline, row_id = str(item.get("pipeline")), str(item.get("row_id"))
    model = look.models.get(pipeline)
    name = f"{shown(model or pipeline, 40)} {shown(row_id, 40)}"
    attempt = item.get("attempt")
    told = "" if attempt is None else f"  attempt {shown(attempt, 10)}"
    text = f"{name}  {shown(replica.name, 24)}  {duration(seconds)}{told}"
    return PaneLine(text, None if model is None else Subject(model, row_id))


def _is_endless(replica: ReplicaState, item: Mapping[str, Any]) -> bool:
    report = replica.pipelines.get(str(item.get("pipeline")))
    return isinstance(report, Mapping) and report.get(ENDLESS) is True


# ---------------------------------------------------------------- looking again and again


EVERY_S: Final = 2.0  # the rest between two looks, in seconds
REST_FACTOR: Final = 2.0  # the rest is at least so many times as long as the look


@dataclass(frozen=True, slots=True)
class LookState:
    """The state of the picture; times are of the monotonic clock.

    `look` is the last that succeeded, and `failing_since` the begin of the first failed look since.
    """

    look: Look | None = None
    looked_at: float = 0.0
    asking_since: float | None = None
    error: str = ""
    failing_since: float = 0.0


async def look_once(insight: Insight) -> Look:
    async with asyncio.timeout(ANSWER_WITHIN_S):
        status = await status_in_time(insight)
    return Look(status, {name: one.leased.name for name, one in insight.pipelines.items()})


class Looker:
    """Looks until it is cancelled, and tells whenever something has changed."""

    def __init__(self, insight: Insight, tell: Callable[[LookState], None]) -> None:
        self.seen = LookState()
        self._insight, self._tell = insight, tell
        self._wanted = asyncio.Event()

    def hurry(self) -> None:
        """End the rest now; a look that is under way is not repeated."""
        self._wanted.set()

    async def run(self) -> None:
        while True:
            begun = monotonic()
            self._know(replace(self.seen, asking_since=begun))
            await self._look(begun)
            self._wanted.clear()
            rest_s = max(EVERY_S, REST_FACTOR * (monotonic() - begun))
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._wanted.wait()

    async def _look(self, begun: float) -> None:
        try:
            look = await look_once(self._insight)
        # Any error of the host's modules and database: the next look may succeed.
        except Exception as error:  # noqa: BLE001
            since = self.seen.failing_since if self.seen.error else begun
            failed = replace(self.seen, error=message_of(error), failing_since=since)
            self._know(replace(failed, asking_since=None))
        else:
            self._know(LookState(look, looked_at=monotonic()))

    def _know(self, seen: LookState) -> None:
        self.seen = seen
        self._tell(seen)
