"""Discarding results that are no longer needed: the decision is the host's, the refusal is not."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import CursorResult, delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.database.binds import bind_of
from rowlock.execution import execute
from rowlock.rows.leased_table import LeasedTable
from rowlock.stream_errors import StillNeeded
from rowlock.streams.coordinating.needs import needed_positions
from rowlock.streams.frontier import read_frontier
from rowlock.streams.outputs.cursors import (
    DISCARDED,
    ResultsOf,
    lock_discarding,
    move_cursor,
)

DISCARD_ROWS_MAX = 50_000
"""Most results that are deleted in one transaction, unless one step has more."""


async def discard(session: AsyncSession, output: ResultsOf, before: int) -> int:
    """Delete the results of steps before `before`, in the caller's transaction; return how many.

    Raises:
        StillNeeded: a consumer may read them.
        ShardsMissingError: the shards of the flow do not have each bucket once.
    """
    tables = output.tables
    bind = {"bind": bind_of(session, LeasedTable.of(tables.flow_model))}
    # Before anything is read: a flow that is being created may need what no flow has needed so far.
    await lock_discarding(await session.connection(bind), output)
    await _check(session, output, before, bind=bind)
    rows = tables.outputs
    own = [rows.c.flow_id == output.flow_id, rows.c.output == output.name]
    below = [*own, rows.c.step < before]
    surplus = select(rows.c.step).where(*below).order_by(rows.c.step).offset(DISCARD_ROWS_MAX)
    first_left = (await execute(session, surplus.limit(1), bind_arguments=bind)).scalar()
    if first_left is not None:
        lowest = select(func.min(rows.c.step)).where(*below)
        first = (await execute(session, lowest, bind_arguments=bind)).scalar_one()
        # Whole steps, and one at least.
        before = max(first_left, first + 1)
    gone = [*own, rows.c.step < before]
    newest = select(func.max(rows.c.step)).where(*gone)
    last = (await execute(session, newest, bind_arguments=bind)).scalar()
    if last is None:
        return 0
    done = await execute(session, delete(rows).where(*gone), bind_arguments=bind)
    # Not the step before `before`: a consumer that has no results to read behind its cursor lacks
    # nothing.
    await move_cursor(session, output, DISCARDED, step=last)
    return cast("CursorResult[Any]", done).rowcount


async def _check(
    session: AsyncSession, output: ResultsOf, before: int, *, bind: dict[str, Any]
) -> None:
    """Refuse what consumers need, and steps that are not complete."""
    tables, name = output.tables, f"{output.flow}/{output.name}"
    cursors, rows = tables.cursors, tables.outputs
    connection = await session.connection(bind)
    end = await read_frontier(connection, tables, output.flow)
    if end is None or end < before:
        raise StillNeeded(source=name, step=end or 0, by="the flow itself, which has not done them")
    of_output = (cursors.c.flow_id == output.flow_id, cursors.c.output == output.name)
    unread = (
        select(rows.c.step)
        .where(rows.c.flow_id == output.flow_id, rows.c.output == output.name)
        .where(rows.c.step > cursors.c.step, rows.c.step < before)
    )
    behind = (
        select(cursors.c.consumer, cursors.c.step)
        .where(*of_output, cursors.c.consumer != DISCARDED, unread.exists())
        .order_by(cursors.c.step)
        .limit(1)
    )
    slowest = (await execute(session, behind, bind_arguments=bind)).first()
    if slowest is not None:
        who = f"the consumer {slowest.consumer!r}"
        raise StillNeeded(source=name, step=slowest.step + 1, by=who)
    for flow, position in (await needed_positions(connection, tables, name)).items():
        needed = select(func.min(rows.c.step)).where(
            rows.c.flow_id == output.flow_id,
            rows.c.output == output.name,
            # The position of a result is one more than its step.
            rows.c.step >= position - 1,
            rows.c.step < before,
        )
        first = await connection.scalar(needed)
        if first is not None:
            raise StillNeeded(source=name, step=first, by=f"the flow {flow!r}")
