"""What flows and graphs have to say of themselves, in a line each.

The one idea: a wing is looked at only if the host has a pipeline of it, so it is imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.questions import RowQuestion, ask_part, ask_value
from rowlock.insight.shown import duration, shown
from rowlock.insight.verdicts import Refused
from rowlock.insight.wing_line import WingLine
from rowlock.pipelines.pipeline import Pipeline

CAUSE_CHARS_MAX: Final = 160
"""Most characters of what a flow waits for."""


async def flow_line(connection: AsyncConnection, pipeline: Pipeline[Any]) -> WingLine | None:
    """Return how far the flow is that a pipeline coordinates, or whose shards it works on, and what
    it waits for; None for any other pipeline; joins the caller's transaction.
    """
    program = _program_of(pipeline)
    if program is None:
        return None
    from rowlock.streams.queries.status_reader import status_of  # noqa: PLC0415 - a wing

    found = await ask_part(connection, partial(status_of, connection, program), apart=True)
    if isinstance(found, Refused):
        return WingLine("flow", program.name, f"? {shown(found.why, CAUSE_CHARS_MAX)}")
    lag = f"{found.lag_rows:,} rows behind"
    if found.lag_rows and found.lag_s >= 1:
        lag += f" for {duration(found.lag_s)}"
    told = f"{found.state}, step {found.frontier:,} of {found.next_step:,}, {lag}"
    if found.lag_rows:
        told += f": {shown(found.text, CAUSE_CHARS_MAX)}"
    return WingLine("flow", found.flow, told)


async def flow_of_row(
    connection: AsyncConnection, pipeline: Pipeline[Any], question: RowQuestion
) -> WingLine | None:
    """Return the same for a row, which may be of another flow: then None."""
    program, columns = _program_of(pipeline), question.leased.table.c
    if program is None:
        return None
    is_of_it = columns.get("flow_id", question.leased.key) == program.id
    mine = select(func.count()).where(question.is_it, is_of_it)
    if await ask_value(connection, mine, apart=True) != 1:
        return None
    return await flow_line(connection, pipeline)


def coordinates(pipeline: Pipeline[Any]) -> bool:
    """Whether a pipeline works on the row of a flow, and not on its shards."""
    return _is_of(pipeline, "rowlock.streams.coordinating.coordinator", "CoordinatorPipeline")


def _program_of(pipeline: Pipeline[Any]) -> Any:
    is_of_flow = _is_of(pipeline, "rowlock.streams.shards.pipeline", "FlowPipeline")
    if not (is_of_flow or coordinates(pipeline)):
        return None
    return getattr(pipeline, "program")  # noqa: B009 - its class is not imported


def _is_of(pipeline: Pipeline[Any], module: str, name: str) -> bool:
    found = sys.modules.get(module)
    return found is not None and isinstance(pipeline, getattr(found, name))


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


def graph_line(reports: Sequence[Mapping[str, Any]]) -> WingLine | None:
    """Return what the replicas say of the graph of one pipeline; None if they say nothing."""
    told = [one["graph"] for one in reports if isinstance(one.get("graph"), dict)]
    if not told:
        return None
    held = sum(int(one.get("held") or 0) for one in told)
    slowest = dict.fromkeys(str(one["bottleneck"]) for one in told if one.get("bottleneck"))
    bottleneck = f", slowest at {', '.join(map(shown, slowest))}" if slowest else ""
    return WingLine("graph", f"{held:,}", f"values inside{bottleneck}")
