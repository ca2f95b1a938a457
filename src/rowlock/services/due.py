"""What services say about a row's time: make it due, or release it from being parked. Writes no
lock column.

A service may say so while the row is being worked on: the outcome keeps a due time that changed
meanwhile.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.errors import ModelError, PipelineError
from rowlock.rows.assignments import ColumnValues, without_onupdate
from rowlock.rows.database_time import database_now
from rowlock.rows.leased_table import LeasedTable
from rowlock.services.request import write_past_lease


async def make_due(session: AsyncSession, row: object) -> None:
    """Make `row` due now, in the caller's transaction: no minimum interval delays a request of a
    service.

    A parked row stays parked. Hint the pipeline after the commit, as after any change. What else is
    pending in the session is flushed first, and the instance's own attributes are set.

    Raises:
        ModelError: the model has no `ScheduleColumns`.
        PipelineError: the row was deleted meanwhile.
    """
    leased = _scheduled(row)
    await _write(session, leased, row, values={leased.column("due_at"): database_now()})


async def unpark(session: AsyncSession, row: object) -> None:
    """Put a parked `row` back into play, due now and with a clean count of attempts, in the
    caller's transaction.

    Raises:
        ModelError: the model has no `ScheduleColumns`.
        PipelineError: the row was deleted meanwhile.
    """
    leased = _scheduled(row)
    values = {
        leased.column("parked_at"): None,
        leased.column("attempts"): 0,
        leased.column("due_at"): database_now(),
    }
    await _write(session, leased, row, values=values)


def _scheduled(row: object) -> LeasedTable:
    leased = LeasedTable.of(type(row))
    if not leased.has_schedule:
        raise ModelError(
            f"{leased.name} has no ScheduleColumns, so its rows have no time of their own; mix"
            " them in",
            model=leased.name,
            column="due_at",
        )
    return leased


async def _write(
    session: AsyncSession, leased: LeasedTable, row: Any, *, values: ColumnValues
) -> None:
    # A row added in this transaction has no key before the flush.
    await session.flush()
    identity = inspect(row).identity
    if identity is None:
        raise PipelineError(
            f"this {leased.name} is not in the database; add it to the session first"
        )
    key = identity[0]
    if not await write_past_lease(session, leased, key, values=without_onupdate(leased, values)):
        raise PipelineError(
            f"{leased.name} {key} is no longer there; it was deleted by another transaction"
        )
