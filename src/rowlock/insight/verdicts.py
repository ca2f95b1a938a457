"""Why a row waits: from what is known of it to one word, by precedence.

The one idea: pure. The database was asked already; here nothing is looked up, and the same facts
have the same verdict in a command, a page and a test. The order of `Verdict` is the precedence.

Not here: what each verdict says (``headlines.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class WingLine:
    """What a ``flow`` reports under its name, or a ``graph`` under the number of its values."""

    kind: str
    answer: str
    detail: str

    @property
    def text(self) -> str:
        if self.kind == "flow":
            return f"flow {self.answer}: {self.detail}"
        return f"{self.kind}: {self.answer} {self.detail}"


class Verdict(StrEnum):
    """What keeps a row, or that nothing does; first what comes first."""

    NO_PIPELINE = "no_pipeline"
    NO_ROW = "no_row"
    READY_FAILS = "ready_fails"
    RUNNING = "running"
    QUEUED = "queued"
    HELD = "held"
    PARKED = "parked"
    NOT_READY = "not_ready"
    HIDDEN = "hidden"
    KEPT = "kept"
    RESTING = "resting"
    AWAITED = "awaited"
    PAUSED = "paused"
    NOBODY_RUNS = "nobody_runs"
    CLAIMS_FAIL = "claims_fail"
    LEFT_BY_DEAD = "left_by_dead"
    TOUCHED = "touched"
    IN_LINE = "in_line"


@dataclass(frozen=True, slots=True)
class Refused:
    """What the database did not answer, and why; `may_pass` if it may answer later."""

    why: str
    may_pass: bool = False


Answer = bool | Refused | None  # whether a part lets the row be claimed; None if it was not asked


@dataclass(frozen=True, slots=True)
class VerdictText:
    headline: str
    why: str
    do: str


@dataclass(frozen=True, slots=True)
class Conjunct:
    """One part of `ready`: whether it holds (None: null), and the values that it names, as text."""

    text: str
    holds: bool | Refused | None
    values: str


@dataclass(frozen=True, slots=True)
class AwaitingRow:
    """A main row that comes back for this one."""

    model: str
    key: str
    pipeline: str
    stepped_back_at: datetime | None
    for_s: float


@dataclass(frozen=True, slots=True)
class LackingRow:
    """A related row that a main row could not lock; its key is empty if only the model is known."""

    model: str
    key: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class TouchingTransaction:
    """An open transaction that has locked or written a row; one that was prepared has no `pid`."""

    pid: int | None
    state: str | None
    seconds: float
    gid: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class TableLock:
    """A transaction that locks a whole table; not `is_granted`: it waits, and others behind it."""

    table: str
    by: TouchingTransaction
    is_granted: bool


@dataclass(frozen=True, slots=True)
class PipelinePause:
    by: str
    at: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class RunningReplicas:
    """Which replicas run a pipeline, as they say; those `idle` have it registered alone."""

    live: int
    running: tuple[str, ...] = ()
    failing: int = 0
    error: str = ""
    names_by_mark: Mapping[str, str] = field(default_factory=dict)
    claims_s: float | None = None
    busy: int = 0
    workers: int = 0
    idle: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class InProgress:
    """What the replica that has a row says of it; `place` is from 1, for rows that are queued."""

    state: str
    since_s: float
    attempt: int
    place: int | None = None
    waiting: int = 0
    starts_in_s: float | None = None

    @property
    def is_queued(self) -> bool:
        return self.state == "queued" and self.place is not None


@dataclass(frozen=True, slots=True)
class Rules:
    min_interval: timedelta
    retry_delay: timedelta
    reserved_for: timedelta
    takes_over_within: timedelta
    process_timeout: timedelta | None
    max_attempts: int | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one row, for one pipeline.

    Attributes:
        columns: what rowlock keeps in the row, by name; a `Refused` where it could not be read.
        presence: who runs the pipeline; None if nobody can tell.
        no_replicas: why nobody can; empty if the host lends no table.
        is_run: whether a lease of the pipeline lives; None if that was not asked.
        table_lock: who keeps everybody out of the table, so that nothing of the row could be read;
            None if nobody does.
    """

    model: str
    table: str
    key: str
    pipeline: str
    rules: Rules
    at: datetime | None = None
    is_there: bool = True
    columns: Mapping[str, Any] = field(default_factory=dict)
    ready: Answer = None
    ready_text: str = ""
    conjuncts: tuple[Conjunct, ...] = ()
    free: Answer = None
    mine: Answer = None
    due: Answer = None
    seen: Answer = True
    seen_text: str = ""
    unawaited: Mapping[str, Answer] = field(default_factory=dict)
    gates: Mapping[str, Answer] = field(default_factory=dict)
    lockers: Mapping[str, str] = field(default_factory=dict)
    rivals: Mapping[str, Rules] = field(default_factory=dict)
    awaiting: AwaitingRow | None = None
    pause: PipelinePause | None = None
    presence: RunningReplicas | None = None
    no_replicas: str = ""
    is_run: Answer = None
    place: int | Refused | None = None
    touched: TouchingTransaction | Refused | None = None
    in_progress: InProgress | None = None
    table_lock: TableLock | None = None
    lacking: LackingRow | None = None
    work: Mapping[str, Any] = field(default_factory=dict)
    wing: WingLine | None = None

    def column(self, name: str) -> Any:
        """Return what rowlock keeps under `name`; None if that is null, unknown or not there."""
        value = self.columns.get(name)
        return None if isinstance(value, Refused) else value

    def since(self, name: str) -> float | None:
        """Return how many seconds ago a time was, by the database; None if there is none."""
        time = self.column(name)
        if not isinstance(time, datetime) or self.at is None:
            return None
        return (self.at - time).total_seconds()

    @property
    def overdue_s(self) -> float | None:
        """For how many seconds a claim could have had the row; None if that is unknown."""
        last_s, due_s = self.since("last_processed_at"), self.since("due_at")
        if "due_at" in self.columns:
            begun_s = due_s
        else:
            begun_s = None if last_s is None else last_s - self.rules.min_interval.total_seconds()
        ended_s = self.since("lock_expires_at")
        known = [seconds for seconds in (begun_s, ended_s) if seconds is not None]
        return None if begun_s is None and ended_s is None else max(0.0, min(known))

    @property
    def is_own_lease(self) -> bool:
        return bool(self.column("lock_owner") == self.pipeline)

    @property
    def refusal(self) -> Refused | None:
        """A part beside `ready` that the database refuses, as it refuses the whole claim."""
        own = (self.free, self.mine, self.due, self.seen)
        parts = (*own, *self.unawaited.values(), *self.gates.values())
        return next((part for part in parts if isinstance(part, Refused)), None)

    @property
    def is_claimable(self) -> bool:
        parts = (self.ready, self.free, self.mine, self.due, self.seen)
        return self.is_there and all(
            part is True for part in (*parts, *self.unawaited.values(), *self.gates.values())
        )


OVERDUE_WINDOWS = 3  # a free row is overdue after so many of the longest rests between two claims


def is_overdue(facts: Facts) -> bool:
    """Whether a claim should have had the row long ago; one without any time stands before all."""
    overdue_s = facts.overdue_s
    allowed_s = OVERDUE_WINDOWS * facts.rules.takes_over_within.total_seconds()
    return overdue_s is None or overdue_s > allowed_s


def verdicts_of(facts: Facts) -> tuple[Verdict, ...]:
    if not facts.is_there:
        return (Verdict.NO_ROW,)
    if facts.table_lock is not None:
        return (Verdict.TOUCHED,)
    is_live = facts.free is False
    is_queued = facts.in_progress is not None and facts.in_progress.is_queued
    holds = {
        Verdict.READY_FAILS: isinstance(facts.ready, Refused),
        Verdict.RUNNING: is_live and facts.is_own_lease and not is_queued,
        Verdict.QUEUED: is_live and facts.is_own_lease and is_queued,
        Verdict.HELD: is_live and not facts.is_own_lease,
        Verdict.PARKED: facts.column("parked_at") is not None,
        Verdict.NOT_READY: facts.ready is False,
        Verdict.HIDDEN: facts.seen is False,
        Verdict.KEPT: facts.mine is False,
        Verdict.RESTING: facts.due is False and facts.column("parked_at") is None,
        Verdict.AWAITED: False in facts.unawaited.values(),
        Verdict.PAUSED: False in facts.gates.values(),
        Verdict.CLAIMS_FAIL: facts.refusal is not None,
        **_if_claimable(facts),
    }
    found = tuple(verdict for verdict in Verdict if holds.get(verdict))
    return found or (Verdict.IN_LINE,)


def _if_claimable(facts: Facts) -> dict[Verdict, bool]:
    if not facts.is_claimable:
        return {}
    presence = facts.presence
    if presence is None:
        has_nobody = facts.is_run is False and is_overdue(facts)
    else:
        has_nobody = not presence.running
    return {
        Verdict.NOBODY_RUNS: has_nobody,
        Verdict.CLAIMS_FAIL: presence is not None
        and bool(presence.running)
        and presence.failing >= len(presence.running),
        Verdict.LEFT_BY_DEAD: facts.column("lock_token") is not None,
        Verdict.TOUCHED: isinstance(facts.touched, TouchingTransaction),
    }


def needs_person(verdict: Verdict, facts: Facts) -> bool:
    match verdict:
        case Verdict.KEPT:
            return facts.column("lock_owner") not in facts.rivals
        case Verdict.LEFT_BY_DEAD:
            return is_overdue(facts)
        case _:
            return verdict in _FOR_PERSONS


_FOR_PERSONS = frozenset(
    {
        Verdict.NO_PIPELINE,
        Verdict.READY_FAILS,
        Verdict.PARKED,
        Verdict.PAUSED,
        Verdict.NOBODY_RUNS,
        Verdict.CLAIMS_FAIL,
        Verdict.TOUCHED,
    }
)
