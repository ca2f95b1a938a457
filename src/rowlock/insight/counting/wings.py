"""What flows and graphs have to say of themselves, in a line each.

The one idea: a wing is looked at only if the host has a pipeline of it, so it is imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.questions import ask_part
from rowlock.insight.shown import duration, shown
from rowlock.insight.verdicts import Refused
from rowlock.pipelines.pipeline import Pipeline

CAUSE_CHARS_MAX: Final = 160
"""Most characters of what a flow waits for."""


async def flow_line(connection: AsyncConnection, pipeline: Pipeline[Any]) -> str | None:
    """Return how far the flow is that a pipeline coordinates, and what it waits for; None for any
    other pipeline; joins the caller's transaction.
    """
    coordinators = sys.modules.get("rowlock.streams.coordinating.coordinator")
    if coordinators is None or not isinstance(pipeline, coordinators.CoordinatorPipeline):
        return None
    program: Any = getattr(pipeline, "program")  # noqa: B009 - its class is not imported
    from rowlock.streams.queries.status_reader import status_of  # noqa: PLC0415 - a wing

    found = await ask_part(connection, partial(status_of, connection, program), apart=True)
    if isinstance(found, Refused):
        return f"flow {program.name}: ? {shown(found.why, CAUSE_CHARS_MAX)}"
    lag = f"{found.lag_rows:,} rows behind"
    if found.lag_rows and found.lag_s >= 1:
        lag += f" for {duration(found.lag_s)}"
    told = (
        f"flow {found.flow}: {found.state}, step {found.frontier:,} of {found.next_step:,}, {lag}"
    )
    return told if not found.lag_rows else f"{told}: {shown(found.text, CAUSE_CHARS_MAX)}"


def graph_report(pipeline: Pipeline[Any]) -> dict[str, Any] | None:
    """Return what a replica says of the graph of one of its pipelines; None if it has none."""
    statistics = getattr(pipeline, "graph_statistics", None)
    if statistics is None:
        return None
    now = statistics()
    return {
        "held": sum(one.held for one in now.operators),
        "bottleneck": None if now.bottleneck is None else shown(now.bottleneck, 60),
    }


def graph_line(reports: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what the replicas say of the graph of one pipeline; None if they say nothing."""
    told = [one["graph"] for one in reports if isinstance(one.get("graph"), dict)]
    if not told:
        return None
    held = sum(int(one.get("held") or 0) for one in told)
    slowest = dict.fromkeys(str(one["bottleneck"]) for one in told if one.get("bottleneck"))
    bottleneck = f", slowest at {', '.join(map(shown, slowest))}" if slowest else ""
    return f"graph: {held:,} values inside{bottleneck}"
