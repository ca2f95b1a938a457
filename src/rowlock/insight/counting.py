"""Asks what waits for one pipeline, and what stands in its way, in one statement, or part by part
if that was refused; and tells from what the replicas say who runs it, and who has a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from sqlalchemy import select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import describe
from rowlock.insight.databases import AwayDatabase
from rowlock.insight.insight_dialect import INSIGHT
from rowlock.insight.listing import ListedState, StateQuestion, read_keys
from rowlock.insight.questions import (
    PAUSE_NAMES,
    RowAsked,
    ask_part,
    ask_pause,
    coordinates,
    flow_line,
    graph_line,
    left_in,
    lock_of,
    pause_query,
    pause_read,
)
from rowlock.insight.replicas import (
    LEFT_OUT,
    ROW_ID_CHARS_MAX,
    LiveReplicas,
    ReplicaState,
    numbers_of,
    summed,
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
from rowlock.insight.verdicts import OVERDUE_WINDOWS, Facts, InProgress, Refused, RunningReplicas
from rowlock.spi import mark_of

# ---------------------------------------------------------------- what waits


async def waiting_of(
    connection: AsyncConnection, asked: RowAsked, *, apart: bool
) -> PipelineStatus:
    """Ask what waits for one pipeline; joins the caller's transaction; `apart` as for `ask_row`."""
    told = await (_apart if apart else _together)(connection, asked)
    if told.lock is not None:
        return told
    pipeline, parts, counts = asked.pipeline, asked.question.parts, told.counts
    if counts.parked:
        question = StateQuestion(
            pipeline.leased, parts, pipeline.name, ListedState.PARKED, KEYS_MAX
        )
        keys = await ask_part(connection, partial(read_keys, connection, question), apart=True)
        if not isinstance(keys, Refused):
            told = replace(told, counts=replace(counts, parked_keys=keys))
    if counts.oldest_s is not None and counts.oldest_s > told.overdue_after_s:
        told = replace(told, first_key=await first_key(connection, pipeline.leased, parts))
    if coordinates(pipeline) and (flow := await flow_line(connection, pipeline)) is not None:
        told = replace(told, wing=flow.text)
    return told


async def _together(connection: AsyncConnection, asked: RowAsked) -> PipelineStatus:
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


async def _apart(connection: AsyncConnection, asked: RowAsked) -> PipelineStatus:
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


def _waiting(asked: RowAsked, counts: Counts) -> PipelineStatus:
    name = asked.pipeline.name
    overdue_after = OVERDUE_WINDOWS * asked.rivals[name].takes_over_within
    model = asked.pipeline.leased.name
    return PipelineStatus(name, counts, overdue_after.total_seconds(), model=model)


# ---------------------------------------------------------------- who runs it


NO_ROOM: Final = "a replica has more pipelines than its report has room for"
NOT_ASKED: Final = "pipelines without counts: those before them took all the time that there was"


@dataclass(frozen=True, slots=True)
class _Told:
    """What the replicas that run a pipeline report of it."""

    running: Sequence[ReplicaState]
    reports: Sequence[Mapping[str, Any]]
    idle: int
    failing: int
    error: str

    @classmethod
    def of(cls, pipeline: str, replicas: LiveReplicas) -> _Told | str:
        """Return why a replica may run it although none says so, if that is so."""
        has_it = [one for one in replicas.live if pipeline in one.pipelines]
        running = [one for one in has_it if one.runs(pipeline)]
        is_cut = any(one.report.get(LEFT_OUT) for one in replicas.live)
        if not running and (unseen := replicas.unasked or (NO_ROOM if is_cut else "")):
            return unseen
        reports = [one.pipelines[pipeline] for one in running]
        failing = [report for report in reports if report.get("fetch_failures")]
        errors = [error for report in failing if (error := report.get("last_error"))]
        idle = len(has_it) - len(running)
        return cls(running, reports, idle, len(failing), str(next(iter(errors), "")))

    def whole(self, name: str) -> int:
        return int(summed(self.reports, name) or 0)


def with_replicas(facts: Facts, replicas: LiveReplicas) -> Facts:
    if replicas.known is None:
        return replace(facts, no_replicas=replicas.unasked)
    told = _Told.of(facts.pipeline, replicas)
    if isinstance(told, str):
        return replace(facts, no_replicas=told)
    totals = [each for one in told.reports if isinstance(each := one.get("totals"), dict)]
    presence = RunningReplicas(
        len(replicas.live),
        tuple(one.name for one in told.running),
        told.failing,
        told.error,
        {one.mark: one.name for one in replicas.known},
        summed(told.reports, "claimed_s"),
        told.whole("running"),
        told.whole("workers"),
        idle=told.idle,
        unreadable=int(summed(totals, "unreadable") or 0),
    )
    wing = facts.wing or graph_line(told.reports)
    in_progress = _in_progress(facts, replicas)
    return replace(facts, presence=presence, in_progress=in_progress, wing=wing)


def status_of(
    pipeline: str, waiting: PipelineStatus | AwayDatabase | None, replicas: LiveReplicas
) -> PipelineStatus:
    """Return the line of a pipeline; None as `waiting`: no time was left for its counts."""
    if waiting is None or isinstance(waiting, AwayDatabase):
        why = NOT_ASKED if waiting is None else waiting.text
        waiting = PipelineStatus(pipeline, Counts(), 0.0, unknown=(why,))
    if replicas.known is None:
        return waiting
    told = _Told.of(pipeline, replicas)
    if isinstance(told, str):
        return replace(waiting, unknown=(*waiting.unknown, f"replicas: {told}"))
    refused = waiting.counts.refused
    if len(told.reports) > told.failing and refused:
        # Claims are answered, so it is this user, or this process, that is refused.
        waiting = replace(
            waiting,
            counts=replace(waiting.counts, refused=""),
            unknown=(*waiting.unknown, f"{pipeline}: {refused}"),
        )
    graph = graph_line(told.reports)
    return replace(
        waiting,
        wing=waiting.wing or (None if graph is None else graph.text),
        rows_s=summed(told.reports, "settled_s"),
        p95_s=max(numbers_of(told.reports, "p95_s"), default=None),
        runs_on=len(told.reports),
        idle=told.idle,
        failing=told.failing,
        error=told.error,
        busy=told.whole("running"),
        workers=told.whole("workers"),
    )


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
    since_s, attempt = numbers_of([item], "since_s"), numbers_of([item], "attempt")
    if not (since_s and attempt):
        return None
    place = next((int(number) + 1 for number in numbers_of([item], "place")), None)
    # Since it was written down the row has been there for as long again.
    return InProgress(
        str(item.get("state")),
        since_s[0] + one.seen_s,
        int(attempt[0]),
        place=place,
        waiting=max(place or 0, int(summed([report], "queued") or 0)),
        starts_in_s=None if place is None else _starts_in_s(place, report),
    )


def _starts_in_s(place: int, report: Mapping[str, Any]) -> float | None:
    """Estimate when the row at `place` has a worker: by the rate, else by the median attempt."""
    if rate := summed([report], "settled_s"):
        return place / rate
    workers, took_s = summed([report], "workers"), summed([report], "p50_s")
    return place * took_s / workers if workers and took_s else None
