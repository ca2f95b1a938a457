"""Who runs a pipeline and who has a row, told from what the replicas say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rowlock.insight.asking.databases import AwayDatabase
from rowlock.insight.counting.counts import Counts
from rowlock.insight.counting.pipeline_status import PipelineStatus
from rowlock.insight.counting.replicas import LiveReplicas, ReplicaState
from rowlock.insight.counting.waiting import Waiting
from rowlock.insight.counting.wings import graph_line
from rowlock.insight.observing.report import ROW_ID_CHARS_MAX, token_head
from rowlock.insight.shown import shown
from rowlock.insight.verdicts import (
    Facts,
    InProgress,
    RunningReplicas,
)
from rowlock.insight.wing_line import WingLine
from rowlock.rows.lock_tokens import mark_of

NO_ROOM: Final = "a replica has more pipelines than its report has room for"
NOT_ASKED: Final = "pipelines without counts: those before them took all the time that there was"


def with_replicas(facts: Facts, replicas: LiveReplicas) -> Facts:
    """Return the facts of a row with who runs its pipeline, and what the one says that has it."""
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
    """Return the line of a pipeline; with None, which is one for which there was no time left, and
    of a database that is away, what the replicas say.
    """
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
    return NO_ROOM if any(one.leaves_out for one in replicas.live) else ""


def _reports(pipeline: str, running: Iterable[ReplicaState]) -> list[Mapping[str, Any]]:
    return [one.pipelines[pipeline] for one in running]


def _failing(reports: Sequence[Mapping[str, Any]]) -> tuple[int, str]:
    """Return on how many replicas claims fail, and the first error of these."""
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
    """Return when a worker will have the row at `place` of a queue, by what was settled lately,
    or else by how long half of the attempts took.
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
