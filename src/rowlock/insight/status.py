"""The answer of `Insight.status`: whether anything waits too long, a line for each pipeline, and
the counts that it is made of.

The one idea: no count reads more than so many rows. Each is of a SELECT with a limit, in the order
of claims, so an index serves it; and one that takes too long is an answer, too. All are asked in
one statement, which is one way to the database; one by one only if that was refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, FromClause, and_, case, func, literal, not_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import database_now
from rowlock.insight.databases import AwayDatabase
from rowlock.insight.headlines import ERROR_CHARS_MAX, ended, holds_rows, transaction_text
from rowlock.insight.questions import ask_first
from rowlock.insight.replicas import NOTHING, LiveReplicas, table_text
from rowlock.insight.shown import duration, iso, lasting, made_by, row_command, shown
from rowlock.insight.verdicts import PipelinePause, Refused, TableLock, TouchingTransaction
from rowlock.spi import PARKED, EligibleParts, LeasedTable, oldest_first, order_column, with_zone

# ---------------------------------------------------------------- counts


COUNTED_MAX: Final = 10_000  # how far rows are counted; beyond, it is more
KEYS_MAX: Final = 10  # most keys of parked rows that are named beside their count
HEAD_NAMES: Final = ("leased", "ended", "failing")
"""What is counted among the first rows that a pipeline wants, in one pass."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What one pipeline has waiting; None is what was not counted in time, or cannot be.

    Attributes:
        due: rows that are ready and free and whose time has come; `COUNTED_MAX` and one at most.
        leased: live leases of the pipeline among the first `COUNTED_MAX` rows that it wants.
        refused: what the database says of the condition of claims, if it refuses that.
    """

    at: Any = None
    due: int | None = None
    oldest_s: float | None = None
    leased: int | None = None
    ended: int | None = None
    failing: int | None = None
    parked: int | None = None
    parked_keys: tuple[str, ...] = ()
    resting: int | None = None
    refused: str = ""


def counted_together(
    leased: LeasedTable, parts: EligibleParts, *, owner: str
) -> tuple[dict[str, Any], FromClause]:
    """Return all counts as columns of one SELECT, by names of ours, and its source."""
    head = _head(leased, parts, owner).subquery("head")
    return {
        "at": database_now(),
        "due": _due(leased, parts),
        "oldest": _oldest(leased, parts),
        **{name: head.c[name] for name in HEAD_NAMES},
        "resting": _resting(leased, parts),
        **({"parked": _parked(leased)} if _counts_parked(leased) else {}),
    }, head


def counts_read(leased: LeasedTable, answers: Mapping[str, Any], *, refused: str = "") -> Counts:
    """Return the counts of these answers; None is one that was not to be had."""
    at, place = answers.get("at"), leased.column(order_column(leased).key)
    oldest = with_zone(answers.get("oldest"), place)
    oldest_s = None if oldest is None or at is None else max(0.0, (at - oldest).total_seconds())
    counted = ("due", *HEAD_NAMES, "parked", "resting")
    whole: dict[str, Any] = {
        name: int(number) for name in counted if (number := answers.get(name)) is not None
    }
    return Counts(at, oldest_s=oldest_s, refused=refused, **whole)


async def counts_apart(
    connection: AsyncConnection, leased: LeasedTable, parts: EligibleParts, *, owner: str
) -> Counts:
    """Ask for each count by itself, so that a refusal or time-out costs that count alone."""
    due = select(database_now(), _due(leased, parts), _oldest(leased, parts))
    asked: dict[tuple[str, ...], Any] = {
        ("at", "due", "oldest"): due,
        HEAD_NAMES: _head(leased, parts, owner),
        ("resting",): select(_resting(leased, parts)),
    }
    if _counts_parked(leased):
        asked["parked",] = select(_parked(leased))
    answers, refused = dict[str, Any](), ""
    for names, statement in asked.items():
        found = await ask_first(connection, statement, apart=True)
        if not isinstance(found, Refused):
            answers.update(zip(names, found, strict=True))
        elif "due" in names and not found.may_pass:
            refused = found.why
    return counts_read(leased, answers, refused=refused)


async def first_key(
    connection: AsyncConnection, leased: LeasedTable, parts: EligibleParts
) -> str | None:
    """Return the key of the row that the next claim would take, were it not for a pause."""
    conditions = (parts.ready, parts.free, parts.mine, parts.due, *parts.unawaited)
    key = select(leased.attribute(leased.key_name)).where(*conditions)
    found = await ask_first(connection, key.order_by(*oldest_first(leased)).limit(1), apart=True)
    return None if found is None or isinstance(found, Refused) else str(found[0])


def has_parked_index(leased: LeasedTable) -> bool:
    """Whether an index of the model finds parked rows without reading the others."""
    column = leased.column(PARKED)
    return any(index.columns and index.columns[0] is column for index in leased.table.indexes)


def is_resting(leased: LeasedTable, parts: EligibleParts) -> ColumnElement[bool]:
    """Return the condition that the pipeline wants the row, and its time has not come."""
    if not leased.has_schedule:
        return and_(parts.ready, not_(parts.due))
    is_placed = leased.attribute(PARKED).is_(None)
    return and_(parts.ready, is_placed, order_column(leased) > database_now())


def _counts_parked(leased: LeasedTable) -> bool:
    return leased.has_schedule and has_parked_index(leased)


def _due(leased: LeasedTable, parts: EligibleParts) -> Any:
    return _count(leased, and_(parts.ready, parts.free, parts.due), in_order=True)


def _oldest(leased: LeasedTable, parts: EligibleParts) -> Any:
    place, waits = order_column(leased), and_(parts.ready, parts.free, parts.due)
    return select(place).where(waits).order_by(*oldest_first(leased)).limit(1).scalar_subquery()


def _resting(leased: LeasedTable, parts: EligibleParts) -> Any:
    return _count(leased, and_(is_resting(leased, parts), parts.free), in_order=True)


def _parked(leased: LeasedTable) -> Any:
    return _count(leased, leased.attribute(PARKED).is_not(None))


def _count(leased: LeasedTable, where: ColumnElement[bool], *, in_order: bool = False) -> Any:
    # In the order of claims their index serves; else the whole table may be read up to the limit.
    order = oldest_first(leased) if in_order else ()
    first = select(literal(1)).select_from(leased.model).where(where).order_by(*order)
    found = first.limit(COUNTED_MAX + 1).subquery()
    return select(func.count()).select_from(found).scalar_subquery()


def _head(leased: LeasedTable, parts: EligibleParts, owner: str) -> Any:
    attempts = leased.attribute("attempts") if leased.has_schedule else literal(0)
    # The index of claims has no parked rows; without this it would not serve.
    is_placed = leased.attribute(PARKED).is_(None) if leased.has_schedule else true()
    first = (
        select(
            leased.attribute("lock_owner").label("owner"),
            leased.attribute("lock_expires_at").label("expires_at"),
            attempts.label("attempts"),
        )
        .where(parts.ready, is_placed)
        .order_by(*oldest_first(leased))
        .limit(COUNTED_MAX)
        .subquery()
    )
    expires_at = first.c.expires_at
    lives, has_ended = expires_at > database_now(), expires_at <= database_now()
    conditions = (and_(lives, first.c.owner == owner), has_ended, first.c.attempts > 0)
    return select(
        *(
            func.coalesce(func.sum(case((condition, 1), else_=0)), 0).label(name)
            for name, condition in zip(HEAD_NAMES, conditions, strict=True)
        )
    )


# ---------------------------------------------------------------- one pipeline


SAID_MAX: Final = 2 * ERROR_CHARS_MAX


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """What waits for one pipeline, and who runs it.

    Attributes:
        overdue_after_s: rows that have been due for longer wait too long if nobody runs it.
        runs_on: how many replicas run it; None if that is unknown.
        first_key: of the row that the next claim would take, if rows wait too long.
        idle: how many replicas have it registered, and do not run it.
    """

    pipeline: str
    counts: Counts
    overdue_after_s: float
    pause: PipelinePause | None = None
    rows_s: float | None = None
    p95_s: float | None = None
    runs_on: int | None = None
    model: str = ""
    lock: TableLock | None = None
    first_key: str | None = None
    unknown: tuple[str, ...] = ()
    failing: int = 0
    error: str = ""
    busy: int = 0
    workers: int = 0
    wing: str | None = None
    idle: int = 0
    left: tuple[TouchingTransaction, ...] = ()

    @property
    def needs_person(self) -> bool:
        return bool(self.troubles)

    @property
    def troubles(self) -> tuple[str, ...]:
        """What a person has to act on, in a line each; first what keeps all rows."""
        return tuple(_troubles(self))

    @property
    def is_run_by_nobody(self) -> bool:
        return self.runs_on == 0 and self.pause is None and bool(self.counts.due)

    @property
    def is_silent(self) -> bool:
        """Whether rows wait too long and no lease lives, where it is not known who runs it."""
        return (
            self.runs_on is None
            and self.pause is None
            and self.has_overdue_rows
            and self.counts.leased == 0
        )

    @property
    def has_overdue_rows(self) -> bool:
        """Whether rows wait too long; those without a time do: they come before all others."""
        due, oldest_s = self.counts.due, self.counts.oldest_s
        return bool(due) and (oldest_s is None or oldest_s > self.overdue_after_s)

    def state(self, at: datetime | None) -> str:
        if self.pause is not None:
            since = self.pause.at
            since_s = 0.0 if since is None or at is None else (at - since).total_seconds()
            by, reason = shown(self.pause.by), shown(self.pause.reason)
            return f"paused by {by} {lasting(since_s)}: {reason}"
        if self.runs_on is None:
            return "NOBODY SEEMS TO RUN IT" if self.is_silent else "?"
        return f"runs on {self.runs_on}" if self.runs_on else "NOBODY RUNS IT"


def _troubles(one: PipelineStatus) -> Iterator[str]:
    if one.lock is not None:
        by, table = one.lock.by, shown(one.lock.table)
        does = "has locked" if one.lock.is_granted else "waits to lock"
        gone = f"so nothing of it can be read or claimed; {ended(by, 'if it hangs')}"
        yield f"{transaction_text(by)}, {does} {table}, {gone}"
        return
    yield from (holds_rows(by, one.model) for by in one.left)
    oldest_s = one.counts.oldest_s
    due = "rows are due" if oldest_s is None else f"due {lasting(oldest_s)}"
    register = f"register {made_by(one.pipeline)} with the manager of a replica"
    if one.idle:
        register = f"start the manager of {made_by(one.pipeline)} in a replica"
    if one.counts.refused:
        why = shown(one.counts.refused, SAID_MAX)
        yield f"the condition of its claims is refused: {why}: mend what the error says"
    elif one.is_run_by_nobody:
        yield f"{due}, and no replica runs it: {register}"
    elif one.is_silent:
        yield f"{due}, and no lease of it lives: {register}"
    elif one.failing:
        yield (
            f"claims fail on {one.failing} of {one.runs_on} replicas:"
            f" {shown(one.error, SAID_MAX)}: mend what the error says"
        )
    elif (
        one.pause is None
        and one.has_overdue_rows
        and one.busy < one.workers
        and one.first_key is not None
    ):
        # Beside workers that could have them.
        yield (
            f"{due}, though {one.workers - one.busy} of {one.workers} workers have nothing to do:"
            f" {row_command('explain', one.model, one.first_key)}"
        )
    if one.counts.parked:
        yield _parked_text(one)


def _parked_text(one: PipelineStatus) -> str:
    count = one.counts.parked or 0
    many = f"more than {COUNTED_MAX:,}" if count > COUNTED_MAX else f"{count:,}"
    told = "1 row is parked" if count == 1 else f"{many} rows are parked"
    if not one.counts.parked_keys:
        return told
    key = one.counts.parked_keys[0]
    such = f", {one.model} {shown(key)}" if count == 1 else f", such as {one.model} {shown(key)}"
    return f"{told}{such}: {row_command('explain', one.model, key)}"


# ---------------------------------------------------------------- the answer


SCHEMA: Final = "rowlock.status/1"
UNKNOWN, WING = "?", "\N{MIDDLE DOT}"
WIDE, NARROW = 90, 60
"""Below so many columns the rates, and then all but the first numbers, are left out."""
NAMES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Status:
    database: str
    at: datetime | None
    replicas: LiveReplicas
    pipelines: tuple[PipelineStatus, ...]
    away: tuple[AwayDatabase, ...] = ()

    @property
    def needs_person(self) -> bool:
        return bool(self.away) or any(one.needs_person for one in self.pipelines)

    def text(self, width: int = 100) -> str:
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
        """Yield what stands below the table, each with its mark."""
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
        count_text(counts.due),
        oldest if counts.due else NOTHING,
        count_text(counts.leased),
        count_text(counts.ended),
        count_text(counts.parked),
        NOTHING if one.rows_s is None else f"{one.rows_s:.1f}",
        NOTHING if one.p95_s is None else f"{one.p95_s:.1f} s",
        one.state(at),
    )


def count_text(count: int | None) -> str:
    if count is None:
        return NOTHING
    return f"{COUNTED_MAX:,}+" if count > COUNTED_MAX else f"{count:,}"


def _status_dict(one: PipelineStatus, at: datetime | None) -> dict[str, Any]:
    counts = asdict(one.counts) | {"parked_keys": list(one.counts.parked_keys)}
    del counts["at"], counts["refused"]
    return {
        "pipeline": one.pipeline,
        **counts,
        "parked_key": next(iter(one.counts.parked_keys), None),
        "counted_max": COUNTED_MAX,
        **{name: getattr(one, name) for name in ("rows_s", "p95_s", "runs_on")},
        "paused": one.pause is not None,
        "state": one.state(at),
        "needs_person": one.needs_person,
        "troubles": list(one.troubles),
        "unknown": list(one.unknown),
        **{name: getattr(one, name) for name in ("busy", "workers", "wing")},
    }
