"""Asks what waits for one pipeline, and what stands in its way, in one statement, or part by part
if that was refused; and tells from what the replicas say who runs it, and who has a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from sqlalchemy import select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import describe
from rowlock.insight.databases import AwayDatabase
from rowlock.insight.dialects.insight_dialect import INSIGHT
from rowlock.insight.facts import (
    PAUSE_NAMES,
    RowAsked,
    ask_pause,
    coordinates,
    flow_line,
    graph_line,
    left_in,
    lock_of,
    pause_query,
    pause_read,
)
from rowlock.insight.listing import ListedState, StateQuestion, read_keys
from rowlock.insight.questions import ask_part
from rowlock.insight.replicas import (
    LEFT_OUT,
    ROW_ID_CHARS_MAX,
    LiveReplicas,
    ReplicaState,
    token_head,
)
from rowlock.insight.shown import shown
from rowlock.insight.status import (
    KEYS_MAX,
    Counts,
    PipelineStatus,
    counted_together,
    counts_apart,
    counts_read,
    first_key,
)
from rowlock.insight.verdicts import (
    OVERDUE_WINDOWS,
    Facts,
    InProgress,
    PipelinePause,
    Refused,
    Rules,
    RunningReplicas,
    TableLock,
    TouchingTransaction,
    WingLine,
)
from rowlock.spi import mark_of

# ---------------------------------------------------------------- what waits


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for one pipeline.

    Attributes:
        lock: the transaction that locks its whole table; None if there is none.
        first_key: of the row that the next claim would take, if rows wait too long.
        unknown: what could not be asked, and why.
        left: transactions that were prepared, left behind, and have rows of its table.
    """

    model: str
    rules: Rules
    counts: Counts
    pause: PipelinePause | None = None
    lock: TableLock | None = None
    first_key: str | None = None
    unknown: tuple[str, ...] = field(default=())
    flow: WingLine | None = None
    left: tuple[TouchingTransaction, ...] = ()

    @property
    def overdue_after_s(self) -> float:
        """Rows that have been due for longer wait too long."""
        return OVERDUE_WINDOWS * self.rules.takes_over_within.total_seconds()


async def waiting_of(connection: AsyncConnection, asked: RowAsked, *, apart: bool) -> Waiting:
    """Ask what waits for one pipeline; joins the caller's transaction; `apart` as for `ask_row`."""
    told = await (_apart if apart else _together)(connection, asked)
    if told.lock is not None:
        return told
    pipeline, counts, key = asked.pipeline, told.counts, None
    if counts.parked:
        counts = replace(counts, parked_keys=await _parked_keys(connection, asked))
    if counts.oldest_s is not None and counts.oldest_s > told.overdue_after_s:
        key = await first_key(connection, pipeline.leased, asked.question.parts)
    flow = await flow_line(connection, pipeline) if coordinates(pipeline) else None
    return replace(told, counts=counts, first_key=key, flow=flow)


async def _together(connection: AsyncConnection, asked: RowAsked) -> Waiting:
    pipeline, dialect = asked.pipeline, INSIGHT.of(connection)
    columns, source = counted_together(pipeline.leased, asked.question.parts, owner=pipeline.name)
    if (paused := pause_query(asked.tables, pipeline.name)) is not None:
        pause = paused.limit(1).subquery("pause")
        source = source.outerjoin(pause, true())
        columns |= {name: pause.c[name] for name in PAUSE_NAMES}
    if (any_prepared := dialect.is_any_prepared()) is not None:
        columns["is_any_prepared"] = any_prepared
    labelled = [column.label(f"a_{name}") for name, column in columns.items()]
    row = (await connection.execute(select(*labelled).select_from(source))).one()
    answers = dict(zip(columns, row, strict=True))
    told = _waiting(asked, counts_read(pipeline.leased, answers))
    if answers.get("is_any_prepared"):
        told = replace(told, left=await left_in(connection, pipeline.leased.table, apart=True))
    return replace(told, pause=pause_read([answers.get(name) for name in PAUSE_NAMES]))


async def _apart(connection: AsyncConnection, asked: RowAsked) -> Waiting:
    leased, parts, name = asked.pipeline.leased, asked.question.parts, asked.pipeline.name
    if asked.failure is None:
        counts = await counts_apart(connection, leased, parts, owner=name)
    else:
        # Without the host's condition all rows would seem to wait.
        counts = Counts(refused=f"ready() raises {describe(asked.failure)}")
    told = _waiting(asked, counts)
    if counts.due is None and (lock := await lock_of(connection, asked)) is not None:
        return replace(told, lock=lock)
    told = replace(told, left=await left_in(connection, leased.table, apart=True))
    if asked.tables is None:
        return told
    pause = await ask_pause(connection, asked.tables, name, apart=True)
    if isinstance(pause, Refused):
        return replace(told, unknown=(f"pauses: {pause.why}",))
    return replace(told, pause=pause)


def _waiting(asked: RowAsked, counts: Counts) -> Waiting:
    return Waiting(asked.pipeline.leased.name, asked.rivals[asked.pipeline.name], counts)


async def _parked_keys(connection: AsyncConnection, asked: RowAsked) -> tuple[str, ...]:
    leased, parts, owner = asked.pipeline.leased, asked.question.parts, asked.pipeline.name
    question = StateQuestion(leased, parts, owner, ListedState.PARKED, KEYS_MAX)
    found = await ask_part(connection, partial(read_keys, connection, question), apart=True)
    return () if isinstance(found, Refused) else found


# ---------------------------------------------------------------- who runs it


NO_ROOM: Final = "a replica has more pipelines than its report has room for"
NOT_ASKED: Final = "pipelines without counts: those before them took all the time that there was"


def with_replicas(facts: Facts, replicas: LiveReplicas) -> Facts:
    if replicas.known is None:
        return replace(facts, no_replicas=replicas.unasked)
    running = _running(facts.pipeline, replicas)
    if not running and (unseen := _may_run_unseen(replicas)):
        return replace(facts, no_replicas=unseen)
    reports = _reports(facts.pipeline, running)
    failing, error = _failing(reports)
    totals = [told for one in reports if isinstance(told := one.get("totals"), dict)]
    presence = RunningReplicas(
        len(replicas.live),
        tuple(one.name for one in running),
        failing,
        error,
        {one.mark: one.name for one in replicas.known},
        _sum(reports, "claimed_s"),
        int(_sum(reports, "running") or 0),
        int(_sum(reports, "workers") or 0),
        idle=_idle(facts.pipeline, replicas),
        unreadable=int(_sum(totals, "unreadable") or 0),
    )
    wing = facts.wing or graph_line(reports)
    in_progress = _in_progress(facts, replicas)
    return replace(facts, presence=presence, in_progress=in_progress, wing=wing)


def status_of(
    pipeline: str, waiting: Waiting | AwayDatabase | None, replicas: LiveReplicas
) -> PipelineStatus:
    """Return the line of a pipeline; None as `waiting`: no time was left for its counts."""
    if waiting is None or isinstance(waiting, AwayDatabase):
        why = NOT_ASKED if waiting is None else waiting.text
        told = PipelineStatus(pipeline, Counts(), 0.0, unknown=(why,))
        return _with_reports(told, replicas)
    told = PipelineStatus(
        pipeline,
        waiting.counts,
        waiting.overdue_after_s,
        waiting.pause,
        model=waiting.model,
        lock=waiting.lock,
        first_key=waiting.first_key,
        unknown=waiting.unknown,
        wing=_text(waiting.flow),
        left=waiting.left,
    )
    return _with_reports(told, replicas)


def _with_reports(told: PipelineStatus, replicas: LiveReplicas) -> PipelineStatus:
    if replicas.known is None:
        return told
    pipeline = told.pipeline
    running = _running(pipeline, replicas)
    if not running and (unseen := _may_run_unseen(replicas)):
        return replace(told, unknown=(*told.unknown, f"replicas: {unseen}"))
    reports = _reports(pipeline, running)
    failing, error = _failing(reports)
    if len(reports) > failing and told.counts.refused:
        # Claims are answered, so it is this user, or this process, that is refused.
        told = replace(
            told,
            counts=replace(told.counts, refused=""),
            unknown=(*told.unknown, f"{pipeline}: {told.counts.refused}"),
        )
    return replace(
        told,
        wing=told.wing or _text(graph_line(reports)),
        rows_s=_sum(reports, "settled_s"),
        p95_s=max(_numbers(reports, "p95_s"), default=None),
        runs_on=len(reports),
        idle=_idle(pipeline, replicas),
        failing=failing,
        error=error,
        busy=int(_sum(reports, "running") or 0),
        workers=int(_sum(reports, "workers") or 0),
    )


def _text(wing: WingLine | None) -> str | None:
    return None if wing is None else wing.text


def _running(pipeline: str, replicas: LiveReplicas) -> list[ReplicaState]:
    return [one for one in replicas.live if one.runs(pipeline)]


def _idle(pipeline: str, replicas: LiveReplicas) -> int:
    """Return how many replicas have a pipeline registered, and do not run it."""
    return sum(pipeline in one.pipelines and not one.runs(pipeline) for one in replicas.live)


def _may_run_unseen(replicas: LiveReplicas) -> str:
    """Return why a replica may run a pipeline although none says so; empty if none may."""
    if replicas.unasked:
        return replicas.unasked
    return NO_ROOM if any(one.report.get(LEFT_OUT) for one in replicas.live) else ""


def _reports(pipeline: str, running: Iterable[ReplicaState]) -> list[Mapping[str, Any]]:
    return [one.pipelines[pipeline] for one in running]


def _failing(reports: Sequence[Mapping[str, Any]]) -> tuple[int, str]:
    failing = [report for report in reports if report.get("fetch_failures")]
    errors = (report.get("last_error") for report in failing)
    return len(failing), str(next((error for error in errors if error), ""))


def _in_progress(facts: Facts, replicas: LiveReplicas) -> InProgress | None:
    mark, head = mark_of(facts.column("lock_token")), token_head(facts.column("lock_token"))
    key = shown(facts.key, ROW_ID_CHARS_MAX)
    for one in replicas.live:
        if one.mark != mark:
            continue
        for item in one.items:
            told = (item.get("pipeline"), item.get("row_id"), item.get("token", head))
            if told == (facts.pipeline, key, head):
                return _said(item, one, one.pipelines.get(facts.pipeline, {}))
    return None


def _said(
    item: Mapping[str, Any], one: ReplicaState, report: Mapping[str, Any]
) -> InProgress | None:
    since_s, attempt = _numbers([item], "since_s"), _numbers([item], "attempt")
    if not (since_s and attempt):
        return None
    place = next((int(number) + 1 for number in _numbers([item], "place")), None)
    # Since it was written down the row has been there for as long again.
    return InProgress(
        str(item.get("state")),
        since_s[0] + one.seen_s,
        int(attempt[0]),
        place=place,
        waiting=max(place or 0, int(_sum([report], "queued") or 0)),
        starts_in_s=None if place is None else _starts_in_s(place, report),
    )


def _starts_in_s(place: int, report: Mapping[str, Any]) -> float | None:
    """Estimate when a worker will have the row at `place`: by the rate, else by the median
    attempt.
    """
    if rate := _sum([report], "settled_s"):
        return place / rate
    workers, took_s = _sum([report], "workers"), _sum([report], "p50_s")
    return place * took_s / workers if workers and took_s else None


def _sum(reports: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = _numbers(reports, name)
    return sum(values) if values else None


def _numbers(reports: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    values = (report.get(name) for report in reports)
    return [float(value) for value in values if isinstance(value, int | float)]
