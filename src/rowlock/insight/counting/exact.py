"""Exact counts of one pipeline, by a scan of its whole table, and who is to make them.

The one idea: a scan costs as much as the table is large, so one replica of all makes it: the live
one with the lowest mark among those that are willing. Every function joins the transaction of its
caller.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, case, false, func, null, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.counting.replicas import read_replicas
from rowlock.insight.observing.presence import DEAD_AFTER
from rowlock.rows.database_time import database_now, database_time_after
from rowlock.rows.eligibility import EligibleParts, order_column
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.model_check import with_zone

WILLING = "census"
"""In the report of a replica that counts, if its turn to do so comes."""


@dataclass(frozen=True, slots=True)
class ExactCounts:
    """What a pipeline has waiting.

    Attributes:
        due: rows that are ready and free and whose time has come.
        oldest_s: for how long the first of them has been due; 0 if there is none, None if the model
            has no ``due_at``.
        resting: rows that are ready and free and whose time has not come.
        ended: rows that are ready and whose lease has ended.
        parked: rows that were set aside; None if the model has no ``parked_at``.
    """

    due: int
    oldest_s: float | None
    resting: int
    ended: int
    parked: int | None


async def counts_here(connection: AsyncConnection, replicas: Table, mark: str) -> bool:
    """Return whether the replica with this mark is the one that counts."""
    columns = replicas.c
    lowest = select(func.min(columns.mark)).where(
        columns.seen_at > database_time_after(-DEAD_AFTER),
        columns.draining == false(),
        columns.report[WILLING].as_boolean(),
    )
    return bool((await connection.execute(lowest)).scalar() == mark)


async def running_replicas(connection: AsyncConnection, replicas: Table) -> Counter[str]:
    """Return how many live replicas run each pipeline; one that is registered and was not started,
    or was stopped, does not run.
    """
    known = await read_replicas(connection, replicas)
    return Counter(
        pipeline for one in known.live for pipeline in one.pipelines if one.runs(pipeline)
    )


async def exact_counts(
    connection: AsyncConnection, leased: LeasedTable, parts: EligibleParts
) -> ExactCounts:
    """Count by one scan of the table."""
    has_parked = leased.has_schedule
    waits = and_(parts.ready, parts.free)
    is_parked: ColumnElement[bool] = (
        leased.attribute("parked_at").is_not(None) if has_parked else false()
    )
    has_ended = and_(parts.ready, leased.attribute("lock_expires_at") <= database_now())
    due = and_(waits, parts.due)
    oldest: Any = null()
    if leased.has_schedule:
        oldest = func.min(case((due, order_column(leased))), type_=order_column(leased).type)
    statement = select(
        database_now(),
        _number_of(due),
        _number_of(and_(waits, ~parts.due, ~is_parked)),
        _number_of(has_ended),
        _number_of(is_parked),
        oldest,
    ).select_from(leased.model)
    at, *numbers, first = (await connection.execute(statement)).one()
    first = with_zone(first, leased.column(order_column(leased).key))
    counted = [int(number) for number in numbers]
    oldest_s = None
    if leased.has_schedule:
        oldest_s = 0.0 if first is None else max(0.0, (at - first).total_seconds())
    return ExactCounts(
        counted[0], oldest_s, counted[1], counted[2], counted[3] if has_parked else None
    )


def _number_of(condition: ColumnElement[bool]) -> Any:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)
