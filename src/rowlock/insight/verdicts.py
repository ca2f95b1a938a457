"""Why a row waits: from what is known of it to one word, by precedence, and to what that says: its
headline, why, and what to do.

The one idea: pure. The database was asked already; here nothing is looked up, and the same facts
have the same verdict, in the same words, in a command, a page and a test. The order of `Verdict` is
the precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from rowlock.insight.shown import (
    REASON,
    about,
    ago,
    ahead,
    clock_time,
    duration,
    lasting,
    made_by,
    ordinal,
    pipeline_command,
    row_command,
    shown,
    sql_text,
    typed_word,
)
from rowlock.spi import OWNER_SEPARATOR, mark_of


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

    @property
    def does(self) -> str:
        return "has locked" if self.is_granted else "waits to lock"


@dataclass(frozen=True, slots=True)
class PipelinePause:
    by: str
    at: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class RunningReplicas:
    """Which replicas run a pipeline, and what they report of it; those `idle` have it registered
    alone. Rates are of all of them, in a second.
    """

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
    settled_s: float | None = None
    p95_s: float | None = None
    graph: WingLine | None = None


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


# ---------------------------------------------------------------- open transactions


def touched(facts: Facts) -> VerdictText:
    if facts.table_lock is not None:
        return table_locked(facts.table_lock)
    by = facts.touched
    assert isinstance(by, TouchingTransaction)
    headline = f"TOUCHED by an open transaction: {transaction_text(by)}"
    why = "An open transaction has locked or written it; claims pass such rows over."
    if by.pid is None:
        why = (
            "A transaction that was prepared, and not committed, has locked or written it, and"
            " outlives its connection and the server; claims pass such rows over."
        )
    return VerdictText(headline, why, ended(by, "end it"))


def transaction_text(by: TouchingTransaction) -> str:
    if by.pid is None:
        return f"{sql_text(by.gid)}, prepared by {shown(by.owner)} {ago(by.seconds)}"
    does = "" if by.state is None else f", {shown(by.state)} {lasting(by.seconds)}"
    return f"pid {by.pid}{does}"


def ended(by: TouchingTransaction, before: str) -> str:
    """Return how it is ended; `before` stands before the command, if it is of a connection."""
    if by.pid is None:
        return (
            "whoever prepared it commits it; if that is gone, COMMIT PREPARED or:"
            f" ROLLBACK PREPARED {sql_text(by.gid)}"
        )
    return f"{before}: SELECT pg_terminate_backend({by.pid})"


def holds_rows(by: TouchingTransaction, of: str) -> str:
    does = f"has rows of {shown(of)}, which claims pass over"
    return f"{transaction_text(by)}, {does}: {ended(by, 'end it')}"


def table_locked(lock: TableLock) -> VerdictText:
    by, table = lock.by, shown(lock.table)
    has = f"{lock.does} {table}"
    behind = "" if lock.is_granted else ", and whoever comes behind it waits, too"
    return VerdictText(
        f"TOUCHED by an open transaction: {transaction_text(by)}, which {has}",
        f"Nothing of {table} can be read or claimed as long as it {has}{behind}.",
        ended(by, "wait; if it hangs, end it"),
    )


# ---------------------------------------------------------------- verdicts


ERROR_CHARS_MAX: Final = 80
PLACES_MAX: Final = 10_000
CAPACITY_PREFIX: Final = "capacity:"
"""With what the error of a dispatched row begins that found no worker."""


def finding_of(verdict: Verdict, facts: Facts) -> VerdictText:
    return _FINDINGS[verdict](facts)


def no_pipeline(model: str, key: str) -> VerdictText:
    return VerdictText(
        f"NO PIPELINE of this app works on {model}",
        "Without a pipeline nothing claims its rows.",
        "write one, or name the app that has it:"
        f" {row_command('explain', model, key, '--app MODULE:ATTRIBUTE')}",
    )


def _command(verb: str, facts: Facts, *options: str) -> str:
    return row_command(verb, facts.model, facts.key, *options)


def _ready_fails(facts: Facts) -> VerdictText:
    why = facts.ready.why if isinstance(facts.ready, Refused) else ""
    return VerdictText(
        f"READY FAILS in the database: {shown(why, ERROR_CHARS_MAX)}",
        f"A claim asks ready() of all rows at once, so {facts.pipeline} claims none.",
        "mend ready()",
    )


def replica(facts: Facts) -> str:
    mark = mark_of(facts.column("lock_token"))
    names = {} if facts.presence is None else facts.presence.names_by_mark
    return names.get(mark) or f"replica {shown(mark)}"


def _ends(facts: Facts) -> str:
    left_s = -(facts.since("lock_expires_at") or 0.0)
    return f"ends {ahead(left_s)} unless renewed"


def _running(facts: Facts) -> VerdictText:
    in_progress = facts.in_progress
    headline = f"LEASED by {replica(facts)}, {_ends(facts)}"
    if in_progress is not None:
        since = lasting(in_progress.since_s)
        headline = f"RUNNING on {replica(facts)} {since}, attempt {in_progress.attempt}"
    return VerdictText(headline, "A replica has it in hand and renews its lease.", _ended_by(facts))


def _ended_by(facts: Facts) -> str:
    limit, in_progress = facts.rules.process_timeout, facts.in_progress
    if limit is None:
        return "nothing; it has no time limit"
    if in_progress is None or in_progress.state != "running":
        return f"nothing; process_timeout ends it after {duration(limit.total_seconds())}"
    left_s = limit.total_seconds() - in_progress.since_s
    return f"nothing; process_timeout ends it {ahead(left_s)}"


def _queued(facts: Facts) -> VerdictText:
    in_progress = facts.in_progress
    assert in_progress is not None
    place = ordinal(in_progress.place or 1)
    starts = "" if in_progress.starts_in_s is None else f", {about(in_progress.starts_in_s)}"
    return VerdictText(
        f"QUEUED on {replica(facts)}: {place} of {in_progress.waiting:,}{starts}",
        "It is claimed and waits for a worker of that replica.",
        "nothing; more workers_num if this is always so",
    )


def _held(facts: Facts) -> VerdictText:
    owner = str(facts.column("lock_owner") or "")
    name, _, whom = owner.partition(OWNER_SEPARATOR)
    if not owner:
        holder = f"by {replica(facts)}, which wrote no owner"
    elif whom and name in facts.lockers:
        holder = f"as a related row of {facts.lockers[name]} {shown(whom)} ({name})"
    elif whom:
        holder = f"by a service ({shown(owner)})"
    else:
        holder = f"by {shown(owner)} on {replica(facts)}"
    seen = f"--seen {typed_word(str(facts.column('lock_token')))}"
    return VerdictText(
        f"HELD {holder}, {_ends(facts)}",
        "Who holds it keeps pipelines away until it lets go or its lease ends.",
        f"wait; if it is gone: {_command('release', facts, '--force', seen, REASON)}",
    )


def _parked(facts: Facts) -> VerdictText:
    error = shown(facts.column("last_error") or "no reason was written", ERROR_CHARS_MAX)
    attempts = facts.column("attempts") or 0
    failed = {0: "It", 1: "It failed once and"}.get(
        attempts, f"It failed {attempts} times in a row and"
    )
    return VerdictText(
        f"PARKED {lasting(facts.since('parked_at') or 0.0)}: {error}",
        f"{failed} was set aside; nothing takes it until somebody puts it back.",
        f"mend what the error says, then: {_command('unpark', facts, REASON)}",
    )


def false_part(facts: Facts) -> str:
    """Return the first part of `ready` that is not true of the row."""
    for part in facts.conjuncts:
        if part.holds is not True and not isinstance(part.holds, Refused):
            state = "null" if part.holds is None else "false"
            return f"{part.text} is {state}{f': {part.values}' if part.values else ''}"
    return f"{facts.ready_text} is false"


def _kept(facts: Facts) -> VerdictText:
    owner = str(facts.column("lock_owner"))
    since_s = facts.since("last_processed_at") or 0.0
    left_s = facts.rules.reserved_for.total_seconds() - since_s
    do = f"nothing, it is let go {ahead(left_s)}; or: {_command('release', facts, REASON)}"
    if owner in facts.rivals:
        return VerdictText(
            f"KEPT for {owner}, which stepped back {ago(since_s)}",
            "That pipeline reset it and comes back for it first.",
            do,
        )
    return VerdictText(
        f"KEPT for {shown(owner)}, which this app does not have",
        "That name was left behind and keeps others away until it is swept.",
        do,
    )


def _resting(facts: Facts) -> VerdictText:
    # Only a row with a due time can be made due.
    has_due = "due_at" in facts.columns
    do = f"wait, or: {_command('due', facts, REASON)}" if has_due else "wait"
    if facts.at is None:
        return VerdictText("RESTING", "Its time has not come.", do)
    if "due_at" not in facts.columns:
        since_s = facts.since("last_processed_at") or 0.0
        rest_s = facts.rules.min_interval.total_seconds()
        return VerdictText(
            f"RESTING {lasting(rest_s - since_s)} more:"
            f" {_stepped_back(facts) or f'processed {ago(since_s)}'}",
            f"Its time has not come: it rests for {duration(rest_s)} after it was processed.",
            do,
        )
    due_at = facts.column("due_at")
    if due_at is None:
        return VerdictText("RESTING: due_at is null", "Its time has not come: due_at is null.", do)
    when = clock_time(due_at, now=facts.at)
    left_s = (due_at - facts.at).total_seconds()
    return VerdictText(
        f"RESTING {lasting(left_s)} more: {_why_it_rests(facts, when)}",
        f"Its time has not come: due_at is {when}.",
        do,
    )


def _why_it_rests(facts: Facts, when: str) -> str:
    if stepped_back := _stepped_back(facts):
        return stepped_back
    attempts, error = facts.column("attempts") or 0, str(facts.column("last_error") or "")
    if facts.work and error.startswith(CAPACITY_PREFIX):
        return "no worker had room"
    if attempts:
        of = facts.rules.max_attempts
        return f"attempt {attempts}{f' of {of}' if of else ''} failed"
    return f"due at {when}"


def _stepped_back(facts: Facts) -> str:
    lacking = facts.lacking
    if lacking is None:
        return ""
    by = shown(lacking.owner) or "somebody"
    return f"stepped back for {lacking.model} {shown(lacking.key)}, which {by} has"


def _awaited(facts: Facts) -> VerdictText:
    main = facts.awaiting
    if main is None:
        return VerdictText(
            "AWAITED by a main row",
            "A main row comes back for it, so its own pipeline leaves it alone.",
            "wait",
        )
    since_s = 0.0
    if main.stepped_back_at is not None and facts.at is not None:
        since_s = (facts.at - main.stepped_back_at).total_seconds()
    key = shown(main.key)
    return VerdictText(
        f"AWAITED by {main.model} {key} ({main.pipeline}), which stepped back {ago(since_s)}",
        "A main row comes back for it, so its own pipeline leaves it alone, for"
        f" {duration(main.for_s)} at most.",
        row_command("explain", main.model, main.key),
    )


def _paused(facts: Facts) -> VerdictText:
    why = f"While it is paused {facts.pipeline} claims nothing, anywhere; what runs goes on."
    pause = facts.pause
    if pause is None:
        closed = next((name for name, is_open in facts.gates.items() if is_open is False), "")
        return VerdictText(
            f"PAUSED by the gate {shown(closed)}", why, "look at what the gate asks for"
        )
    since_s = 0.0 if pause.at is None or facts.at is None else (facts.at - pause.at).total_seconds()
    return VerdictText(
        f"PAUSED by {shown(pause.by)} {lasting(since_s)}: {shown(pause.reason)}",
        why,
        pipeline_command("resume", facts.pipeline, REASON),
    )


def registered(pipeline: str, *, is_idle: bool) -> str:
    """Return what to do about a pipeline that no replica runs, or that is `is_idle` in some."""
    if is_idle:
        return f"start the manager of {made_by(pipeline)} in a replica"
    return f"register {made_by(pipeline)} with the manager of a replica"


def _nobody_runs(facts: Facts) -> VerdictText:
    due = "" if facts.overdue_s is None else f": due {lasting(facts.overdue_s)}"
    idle = 0 if facts.presence is None else facts.presence.idle
    do = registered(facts.pipeline, is_idle=bool(idle))
    if facts.presence is None:
        lacking = "without all its replicas" if facts.no_replicas else "without rowlock_replicas"
        return VerdictText(
            f"NOBODY SEEMS TO RUN {facts.pipeline}{due}",
            f"No lease of it lives; {lacking} this is a guess.",
            do,
        )
    live = facts.presence.live
    lives = f"{live} replica{' lives' if live == 1 else 's live'}"
    why = f"{lives}, and none has it registered."
    if idle:
        has = "has" if idle == 1 else "have"
        why = f"{lives}, and {idle} {has} it registered: that manager is not started, or stops."
    return VerdictText(f"NOBODY RUNS {facts.pipeline}{due}", why, do)


def _claims_fail(facts: Facts) -> VerdictText:
    if facts.refusal is not None:
        return VerdictText(
            f"CLAIMS FAIL in the database: {shown(facts.refusal.why, ERROR_CHARS_MAX)}",
            f"The database refuses a part of every claim, so {facts.pipeline} claims nothing.",
            "mend what the error says",
        )
    presence = facts.presence
    failing, running = (0, 0) if presence is None else (presence.failing, len(presence.running))
    error = "" if presence is None else presence.error
    return VerdictText(
        f"CLAIMS FAIL on {failing} of {running} replicas: {shown(error, ERROR_CHARS_MAX)}",
        "Every fetch of the last 40 s failed.",
        "mend what the error says",
    )


def _left_by_dead(facts: Facts) -> VerdictText:
    mark = shown(mark_of(facts.column("lock_token")))
    ended_s = facts.since("lock_expires_at")
    ended = "it has no lease" if ended_s is None else f"its lease ended {ago(ended_s)}"
    within = duration(facts.rules.takes_over_within.total_seconds())
    do = f"nothing: the next claim takes it over, within {within}"
    if is_overdue(facts):
        release = _command("release", facts, REASON)
        do = f"no claim has taken it over: look at rowlock status; or: {release}"
    return VerdictText(
        f"LEFT by a dead replica ({mark}), {ended}",
        "Its holder died or lost the database; the next claim takes it and counts an attempt.",
        do,
    )


def _in_line(facts: Facts) -> VerdictText:
    do = "nothing; more workers or replicas if that is too long"
    place = facts.place
    if place is None or isinstance(place, Refused):
        return VerdictText("IN LINE", f"Nothing keeps it{_busy(facts)}.{_unseen(facts)}", do)
    if place > PLACES_MAX:
        more = f"more than {PLACES_MAX:,}"
        why = f"Nothing keeps it: {more} rows are before it{_busy(facts)}.{_unseen(facts)}"
        return VerdictText(f"IN LINE: behind {more}", why, do)
    before = {0: "no row is", 1: "1 row is"}.get(place, f"{place:,} rows are")
    claims_s = None if facts.presence is None else facts.presence.claims_s
    starts = f", {about((place + 1) / claims_s)}" if claims_s else ""
    return VerdictText(
        f"IN LINE: {ordinal(place + 1)}{starts}",
        f"Nothing keeps it: {before} before it{_busy(facts)}.{_unseen(facts)}",
        do,
    )


def _busy(facts: Facts) -> str:
    presence = facts.presence
    if presence is None or not presence.busy:
        return ""
    plural = "" if presence.workers == 1 else "s"
    return f", and {presence.busy:,} of {presence.workers:,} worker{plural} have a row"


def _unseen(facts: Facts) -> str:
    stepped_back, presence = _stepped_back(facts), facts.presence
    lacking = f" It has {stepped_back}." if stepped_back else ""
    if presence is not None and presence.unreadable:
        lacking += (
            f" Its replicas could not read rows {presence.unreadable:,} times: if this is one of"
            " them, they leave it to others, and their logs say why."
        )
    # Asked of a row that should have been claimed long ago, and of no other.
    if not isinstance(facts.touched, Refused):
        return lacking
    why = shown(facts.touched.why)
    return f"{lacking} Whether an open transaction has locked it is not known: {why}."


_FINDINGS: Final[dict[Verdict, Callable[[Facts], VerdictText]]] = {
    Verdict.NO_PIPELINE: lambda facts: no_pipeline(facts.model, facts.key),
    Verdict.NO_ROW: lambda facts: VerdictText(
        f"NO ROW: {facts.table} has no row with id {shown(facts.key)}",
        "It was deleted, or the id is of another table.",
        "look for it under another id",
    ),
    Verdict.READY_FAILS: _ready_fails,
    Verdict.RUNNING: _running,
    Verdict.QUEUED: _queued,
    Verdict.HELD: _held,
    Verdict.PARKED: _parked,
    Verdict.NOT_READY: lambda facts: VerdictText(
        f"NOT READY: {false_part(facts)}",
        "ready() does not want the row as it is, so nobody works on it.",
        "nothing, if it is settled",
    ),
    Verdict.HIDDEN: lambda facts: VerdictText(
        f"HIDDEN from SELECTs of the session: {facts.seen_text} is false",
        "with_loader_criteria, or a do_orm_execute listener, leaves it out of what the host's"
        " sessions read, so no claim takes it.",
        "nothing, if it is meant to be hidden, as after a soft deletion",
    ),
    Verdict.KEPT: _kept,
    Verdict.RESTING: _resting,
    Verdict.AWAITED: _awaited,
    Verdict.PAUSED: _paused,
    Verdict.NOBODY_RUNS: _nobody_runs,
    Verdict.CLAIMS_FAIL: _claims_fail,
    Verdict.LEFT_BY_DEAD: _left_by_dead,
    Verdict.TOUCHED: touched,
    Verdict.IN_LINE: _in_line,
}
