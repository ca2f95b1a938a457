"""The answer of `Insight.status`: whether anything waits too long, a line for each pipeline, and
the counts that it is made of.

The one idea: no count reads more than so many rows. Each is of a SELECT with a limit, in the order
of claims, so an index serves it; and one that takes too long is an answer, too. All are asked in
one statement, which is one way to the database; one by one only if that was refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self

from sqlalchemy import FromClause, Select, case, func, literal, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import database_now
from rowlock.errors import describe
from rowlock.insight.asking import AwayDatabase, ask_first, ask_part, ask_value
from rowlock.insight.insight_dialect import INSIGHT
from rowlock.insight.listing import COUNTED_MAX
from rowlock.insight.questions import (
    HEAD_STATES,
    PAUSE_NAMES,
    ListedState,
    RowAsked,
    StateRows,
    ask_pause,
    coordinates,
    flow_line,
    left_in,
    lock_of,
    pause_query,
    pause_read,
)
from rowlock.insight.replicas import NOTHING, LiveReplicas
from rowlock.insight.shown import (
    duration,
    iso,
    lasting,
    named_first,
    row_command,
    shown,
    table_text,
)
from rowlock.insight.verdicts import (
    ERROR_CHARS_MAX,
    OVERDUE_WINDOWS,
    PipelinePause,
    Refused,
    RunningReplicas,
    TableLock,
    TouchingTransaction,
    ended,
    holds_rows,
    registered,
    transaction_text,
)
from rowlock.spi import LeasedTable, oldest_first, order_column, with_zone

# ---------------------------------------------------------------- counts


KEYS_MAX: Final = 10  # most keys of parked rows that are named beside their count


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

    @classmethod
    def of(cls, leased: LeasedTable, answers: Mapping[str, Any], *, refused: str = "") -> Self:
        """Return the counts of these answers; None is one that was not to be had."""
        at, place = answers.get("at"), leased.column(order_column(leased).key)
        oldest = with_zone(answers.get("oldest"), place)
        oldest_s = None if oldest is None or at is None else max(0.0, (at - oldest).total_seconds())
        whole: dict[str, Any] = {
            state.value: int(number)
            for state in ListedState
            if (number := answers.get(state)) is not None
        }
        return cls(at, oldest_s=oldest_s, refused=refused, **whole)


def _counting(asked: RowAsked) -> Iterator[Any]:
    """Yield SELECTs of one row, each with some of the counts as columns by the names of states."""
    states = {state: _rows_of(asked, state) for state in ListedState}
    due, parked = states[ListedState.DUE], states[ListedState.PARKED]
    place: Select[Any] = select(order_column(due.leased)).where(due.condition())
    first = place.order_by(*due.order()).limit(1).scalar_subquery().label("oldest")
    yield select(database_now().label("at"), _counted(due).label("due"), first)
    flags = [case((states[one].condition(), 1), else_=0).label(one) for one in HEAD_STATES]
    head = select(*flags).where(due.among()).order_by(*due.order()).limit(COUNTED_MAX).subquery()
    yield select(*(func.coalesce(func.sum(head.c[one]), 0).label(one) for one in HEAD_STATES))
    yield select(_counted(states[ListedState.RESTING]).label("resting"))
    if parked.place is not None:
        yield select(_counted(parked).label("parked"))


def _rows_of(asked: RowAsked, state: ListedState) -> StateRows:
    return StateRows(asked.pipeline.leased, asked.question.parts, asked.pipeline.name, state)


def _counted(rows: StateRows) -> Any:
    # In their order an index serves; else the whole table may be read up to the limit.
    first = select(literal(1)).select_from(rows.leased.model).where(rows.condition())
    found = first.order_by(*rows.order()).limit(COUNTED_MAX + 1).subquery()
    return select(func.count()).select_from(found).scalar_subquery()


async def waiting_of(
    connection: AsyncConnection, asked: RowAsked, *, apart: bool
) -> PipelineStatus:
    """Ask what waits for one pipeline; joins the caller's transaction; `apart` as for `ask_row`."""
    told = await (_apart if apart else _together)(connection, asked)
    if told.lock is not None:
        return told
    pipeline, parts, counts = asked.pipeline, asked.question.parts, told.counts
    if counts.parked:
        parked = _rows_of(asked, ListedState.PARKED)
        keys = await ask_part(connection, partial(_first_keys, connection, parked), apart=True)
        if not isinstance(keys, Refused):
            told = replace(told, counts=replace(counts, parked_keys=keys))
    if counts.oldest_s is not None and counts.oldest_s > told.overdue_after_s:
        leased = pipeline.leased
        # The row that the next claim would take, were it not for a pause.
        conditions = (parts.ready, parts.free, parts.mine, parts.due, *parts.unawaited)
        first = select(leased.attribute(leased.key_name)).where(*conditions)
        ordered = first.order_by(*oldest_first(leased)).limit(1)
        key = await ask_value(connection, ordered, apart=True)
        known = None if key is None or isinstance(key, Refused) else str(key)
        told = replace(told, first_key=known)
    if coordinates(pipeline) and (flow := await flow_line(connection, pipeline)) is not None:
        told = replace(told, wing=flow.text)
    return told


async def _first_keys(connection: AsyncConnection, rows: StateRows) -> tuple[str, ...]:
    key = select(rows.leased.attribute(rows.leased.key_name)).where(rows.condition())
    found = await connection.execute(key.order_by(*rows.order()).limit(KEYS_MAX))
    return tuple(map(str, found.scalars()))


async def _together(connection: AsyncConnection, asked: RowAsked) -> PipelineStatus:
    pipeline, any_prepared = asked.pipeline, INSIGHT.of(connection).is_any_prepared()
    first, *others = [one.subquery() for one in _counting(asked)]
    source: FromClause = first
    for other in others:
        source = source.join(other, true())
    columns: list[Any] = [column for one in (first, *others) for column in one.c]
    if (paused := pause_query(asked.tables, pipeline.name)) is not None:
        pause = paused.limit(1).subquery()
        source = source.outerjoin(pause, true())
        columns += pause.c
    if any_prepared is not None:
        columns.append(any_prepared.label("is_any_prepared"))
    row = (await connection.execute(select(*columns).select_from(source))).one()
    answers = row._asdict()
    told = _waiting(asked, Counts.of(pipeline.leased, answers))
    if answers.get("is_any_prepared"):
        told = replace(told, left=await left_in(connection, pipeline.leased.table, apart=True))
    return replace(told, pause=pause_read([answers.get(name) for name in PAUSE_NAMES]))


async def _apart(connection: AsyncConnection, asked: RowAsked) -> PipelineStatus:
    leased, name = asked.pipeline.leased, asked.pipeline.name
    answers, refused = dict[str, Any](), ""
    if asked.failure is not None:
        # Without the host's condition all rows would seem to wait.
        refused = f"ready() raises {describe(asked.failure)}"
    else:
        for statement in _counting(asked):
            found = await ask_first(connection, statement, apart=True)
            if not isinstance(found, Refused):
                answers |= found._asdict()
            elif "due" in statement.selected_columns and not found.may_pass:
                refused = found.why
    told = _waiting(asked, Counts.of(leased, answers, refused=refused))
    if told.counts.due is None and (lock := await lock_of(connection, asked)) is not None:
        return replace(told, lock=lock)
    told = replace(told, left=await left_in(connection, leased.table, apart=True))
    if asked.tables is None:
        return told
    pause = await ask_pause(connection, asked.tables, name, apart=True)
    if isinstance(pause, Refused):
        return replace(told, unknown=(f"pauses: {pause.why}",))
    return replace(told, pause=pause)


def _waiting(asked: RowAsked, counts: Counts) -> PipelineStatus:
    name = asked.pipeline.name
    overdue_after = OVERDUE_WINDOWS * asked.rivals[name].takes_over_within
    model = asked.pipeline.leased.name
    return PipelineStatus(name, counts, overdue_after.total_seconds(), model=model)


# ---------------------------------------------------------------- one pipeline


SAID_MAX: Final = 2 * ERROR_CHARS_MAX


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """What waits for one pipeline, and who runs it.

    Attributes:
        overdue_after_s: rows that have been due for longer wait too long if nobody runs it.
        running: who runs it; None if that is unknown.
        first_key: of the row that the next claim would take, if rows wait too long.
    """

    pipeline: str
    counts: Counts
    overdue_after_s: float
    pause: PipelinePause | None = None
    running: RunningReplicas | None = None
    model: str = ""
    lock: TableLock | None = None
    first_key: str | None = None
    unknown: tuple[str, ...] = ()
    wing: str | None = None
    left: tuple[TouchingTransaction, ...] = ()

    @property
    def told(self) -> RunningReplicas:
        """What the replicas report that run it, as far as any does."""
        return self.running or RunningReplicas(0)

    @property
    def runs_on(self) -> int | None:
        return None if self.running is None else len(self.running.running)

    @property
    def needs_person(self) -> bool:
        return bool(self.troubles)

    @property
    def troubles(self) -> tuple[str, ...]:
        """What a person has to act on, in a line each; first what keeps all rows."""
        return tuple(_troubles(self))

    @property
    def parked_text(self) -> str:
        """The one of them that is about parked rows; empty if there are none."""
        count, keys = self.counts.parked, self.counts.parked_keys
        if not count:
            return ""
        many = f"more than {COUNTED_MAX:,}" if count > COUNTED_MAX else f"{count:,}"
        told = "1 row is parked" if count == 1 else f"{many} rows are parked"
        if not keys:
            return told
        such = "" if count == 1 else "such as "
        command = row_command("explain", self.model, keys[0])
        return f"{told}, {such}{self.model} {shown(keys[0])}: {command}"

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
        gone = f"so nothing of it can be read or claimed; {ended(by, 'if it hangs')}"
        yield f"{transaction_text(by)}, {one.lock.does} {table}, {gone}"
        return
    yield from (holds_rows(by, one.model) for by in one.left)
    oldest_s, told = one.counts.oldest_s, one.told
    due = "rows are due" if oldest_s is None else f"due {lasting(oldest_s)}"
    register = registered(one.pipeline, is_idle=bool(told.idle))
    if one.counts.refused:
        why = shown(one.counts.refused, SAID_MAX)
        yield f"the condition of its claims is refused: {why}: mend what the error says"
    elif one.is_run_by_nobody:
        yield f"{due}, and no replica runs it: {register}"
    elif one.is_silent:
        yield f"{due}, and no lease of it lives: {register}"
    elif told.failing:
        yield (
            f"claims fail on {told.failing} of {one.runs_on} replicas:"
            f" {shown(told.error, SAID_MAX)}: mend what the error says"
        )
    elif (
        one.pause is None
        and one.has_overdue_rows
        and told.busy < told.workers
        and one.first_key is not None
    ):
        # Beside workers that could have them.
        yield (
            f"{due}, though {told.workers - told.busy} of {told.workers} workers have nothing to"
            f" do: {row_command('explain', one.model, one.first_key)}"
        )
    if one.parked_text:
        yield one.parked_text


NOT_ASKED: Final = "pipelines without counts: those before them took all the time that there was"


def status_of(
    pipeline: str, waiting: PipelineStatus | AwayDatabase | None, replicas: LiveReplicas
) -> PipelineStatus:
    """Return the line of a pipeline; None as `waiting`: no time was left for its counts."""
    if waiting is None or isinstance(waiting, AwayDatabase):
        why = NOT_ASKED if waiting is None else waiting.text
        waiting = PipelineStatus(pipeline, Counts(), 0.0, unknown=(why,))
    if replicas.known is None:
        return waiting
    told = replicas.running(pipeline)
    if isinstance(told, str):
        return replace(waiting, unknown=(*waiting.unknown, f"replicas: {told}"))
    refused = waiting.counts.refused
    if len(told.running) > told.failing and refused:
        # Claims are answered, so it is this user, or this process, that is refused.
        waiting = replace(
            waiting,
            counts=replace(waiting.counts, refused=""),
            unknown=(*waiting.unknown, f"{pipeline}: {refused}"),
        )
    wing = waiting.wing or (None if told.graph is None else told.graph.text)
    return replace(waiting, running=told, wing=wing)


# ---------------------------------------------------------------- the answer


SCHEMA: Final = "rowlock.status/1"
UNKNOWN, WING = "?", "\N{MIDDLE DOT}"
WIDE, NARROW = 90, 60
"""Below so many columns the rates, and then all but the first numbers, are left out."""
REPLICAS_NAMED: Final = 5


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
        names = _columns(width)
        lines = [cells_of(one, self.at) for one in self.pipelines]
        rows = [names, *(tuple(line[name] for name in names) for line in lines)]
        right = frozenset(place for place, name in enumerate(names) if name in RIGHT)
        table = [line[:width] for line in table_text(rows, right=right).split("\n")]
        below = [f"{mark} {line}" for mark, line in self.below()]
        return "\n".join([self._title(), *table, *below])

    def below(self) -> Iterator[tuple[str, str]]:
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
        names = named_first([shown(one.name, 40) for one in live], REPLICAS_NAMED)
        return f"{self.database}{when}   {self.replicas.count_text}{': ' if names else ''}{names}"


COLUMNS = ("PIPELINE", "DUE", "OLDEST", "LEASED", "ENDED", "PARKED", "ROWS/S", "P95", "STATE")
NARROW_COLUMNS: Final = ("PIPELINE", "DUE", "OLDEST", "STATE")
RIGHT: Final = frozenset(COLUMNS) - frozenset(NARROW_COLUMNS) | {"RUN", "QUEUE"}
"""Columns of numbers, which end at their right."""
_RATES: Final = frozenset({"ROWS/S", "P95"})


def _columns(width: int) -> tuple[str, ...]:
    if width < NARROW:
        return NARROW_COLUMNS
    return tuple(name for name in COLUMNS if width >= WIDE or name not in _RATES)


def cells_of(one: PipelineStatus, at: datetime | None) -> dict[str, str]:
    counts = one.counts
    oldest = NOTHING if counts.oldest_s is None else duration(counts.oldest_s)
    return {
        "PIPELINE": one.pipeline,
        "DUE": count_text(counts.due),
        "OLDEST": oldest if counts.due else NOTHING,
        "LEASED": count_text(counts.leased),
        "ENDED": count_text(counts.ended),
        "PARKED": count_text(counts.parked),
        "ROWS/S": decimal_text(one.told.settled_s),
        "P95": decimal_text(one.told.p95_s, " s"),
        "STATE": one.state(at),
    }


def count_text(count: int | None) -> str:
    if count is None:
        return NOTHING
    return f"{COUNTED_MAX:,}+" if count > COUNTED_MAX else f"{count:,}"


def decimal_text(value: float | None, unit: str = "") -> str:
    return NOTHING if value is None else f"{value:.1f}{unit}"


def _status_dict(one: PipelineStatus, at: datetime | None) -> dict[str, Any]:
    counts = asdict(one.counts) | {"parked_keys": list(one.counts.parked_keys)}
    del counts["at"], counts["refused"]
    return {
        "pipeline": one.pipeline,
        **counts,
        "parked_key": next(iter(one.counts.parked_keys), None),
        "counted_max": COUNTED_MAX,
        "rows_s": one.told.settled_s,
        "p95_s": one.told.p95_s,
        "runs_on": one.runs_on,
        "paused": one.pause is not None,
        "state": one.state(at),
        "needs_person": one.needs_person,
        "troubles": list(one.troubles),
        "unknown": list(one.unknown),
        "busy": one.told.busy,
        "workers": one.told.workers,
        "wing": one.wing,
    }
