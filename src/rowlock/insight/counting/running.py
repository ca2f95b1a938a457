"""Who runs a pipeline, told from what the replicas say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rowlock.insight.counting.counts import Counts
from rowlock.insight.counting.replicas import LiveReplicas, ReplicaState
from rowlock.insight.counting.status import PipelineStatus
from rowlock.insight.verdicts import (
    OVERDUE_WINDOWS,
    Facts,
    PipelinePause,
    Rules,
    RunningReplicas,
)


def with_replicas(facts: Facts, replicas: LiveReplicas) -> Facts:
    """Return the facts of a row with who runs its pipeline."""
    if replicas.known is None:
        return facts
    running = _running(facts.pipeline, replicas)
    failing = [one for one in running if one.pipelines[facts.pipeline].get("fetch_failures")]
    errors = [one.pipelines[facts.pipeline].get("last_error") for one in failing]
    presence = RunningReplicas(
        len(replicas.live),
        tuple(one.name for one in running),
        len(failing),
        str(next((error for error in errors if error), "")),
        {one.mark: one.name for one in replicas.known},
    )
    return replace(facts, presence=presence)


def status_of(
    pipeline: str,
    counts: Counts,
    replicas: LiveReplicas,
    *,
    rules: Rules,
    pause: PipelinePause | None,
) -> PipelineStatus:
    """Return the line of a pipeline."""
    overdue_after_s = OVERDUE_WINDOWS * rules.takes_over_within.total_seconds()
    if replicas.known is None:
        return PipelineStatus(pipeline, counts, overdue_after_s, pause)
    reports = [one.pipelines[pipeline] for one in _running(pipeline, replicas)]
    rates, slowest = _numbers(reports, "settled_s"), _numbers(reports, "p95_s")
    return PipelineStatus(
        pipeline,
        counts,
        overdue_after_s,
        pause,
        rows_s=sum(rates) if rates else None,
        p95_s=max(slowest, default=None),
        runs_on=len(reports),
    )


def _running(pipeline: str, replicas: LiveReplicas) -> list[ReplicaState]:
    return [one for one in replicas.live if pipeline in one.pipelines and not one.draining]


def _numbers(reports: list[Mapping[str, Any]], name: str) -> list[float]:
    values = (report.get(name) for report in reports)
    return [float(value) for value in values if isinstance(value, int | float)]
