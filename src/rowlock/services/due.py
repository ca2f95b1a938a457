"""What services say about a row's time, also while it is being worked on: make it due, set it
aside, or put it back. Writes no lock column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, ColumnExpressionArgument, func, inspect, true, update
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.database.transaction import bind_of
from rowlock.errors import ERROR_TEXT_CHARS_MAX, ModelError, PipelineError, shorten
from rowlock.execution import execute
from rowlock.hints import hint_after_commit
from rowlock.rows.assignments import ColumnValues, without_onupdate
from rowlock.rows.database_time import database_now
from rowlock.rows.leased_table import LeasedTable
from rowlock.services.request import attribute_name, write_past_lease


async def make_due(session: AsyncSession, row: object) -> None:
    """Make `row` due now, in the caller's transaction: no minimum interval delays a request of a
    service.

    A parked row stays parked, and the outcome of an attempt that is under way keeps the due time.
    Hint the pipeline after the commit, as after any change. What is pending in the session is
    flushed first.

    Raises:
        ModelError: the model has no `ScheduleColumns`.
        PipelineError: the row was deleted meanwhile.
    """
    await _write(session, row, due_now_values)


async def park(session: AsyncSession, row: object, reason: str) -> None:
    """Set `row` aside, in the caller's transaction, until it is unparked: nothing claims
    it, and its `last_error` is `reason`.

    The outcome of an attempt that is under way is written, and the row stays parked, for this
    reason. What is pending in the session is flushed first.

    Raises:
        ModelError: the model has no `ScheduleColumns`.
        PipelineError: the row was deleted meanwhile, or `reason` is no text or says nothing.
    """
    if not isinstance(reason, str) or not reason.strip():
        raise PipelineError(f"say in `reason` why the row is parked, not {reason!r:.100}")
    await _write(session, row, lambda leased: parked_values(leased, reason))


async def unpark(
    session: AsyncSession, row: object, *, where: ColumnExpressionArgument[bool] | None = None
) -> int:
    """Put a parked `row`, or all parked rows of a model, back into play, due now and with a clean
    count of attempts, in the caller's transaction.

        await unpark(session, volume)
        count = await unpark(session, Volume, where=Volume.last_error.contains("TransportError"))

    Rows of a model are found and written by one statement, and their pipelines are hinted after the
    commit. After one row, hint the pipeline yourself, as after any change.

    Returns how many rows were put back. What is pending in the session is flushed first.

    Raises:
        ModelError: the model has no `ScheduleColumns`.
        PipelineError: the row was deleted meanwhile, or `where` is no SQL expression, or is given
            beside one row.
    """
    if isinstance(row, type):
        return await _unpark_all(session, row, where)
    if where is not None:
        raise PipelineError("unpark takes `where` beside a model, such as Volume, not beside a row")
    await _write(session, row, unparked_values)
    return 1


async def _unpark_all(session: AsyncSession, model: type, where: object) -> int:
    leased = check_schedule(LeasedTable.of(model))
    condition = true() if where is None else getattr(where, "expression", where)
    if not isinstance(condition, ColumnElement):
        raise PipelineError(
            f"unpark takes one SQL expression as `where`, such as {leased.name}.last_error =="
            f" '...', not {where!r:.100}"
        )
    bind_of(session, leased)  # refuses a session that is not async
    await session.flush()
    values = without_onupdate(leased, unparked_values(leased))
    statement = (
        update(leased.model)
        .where(leased.attribute("parked_at").is_not(None), condition)
        .values({attribute_name(leased, column): value for column, value in values.items()})
        .returning(leased.attribute(leased.key_name))
    )
    result = await execute(session, statement, execution_options={"synchronize_session": "fetch"})
    hint_after_commit(session, model)
    return len(result.all())


def due_now_values(leased: LeasedTable) -> ColumnValues:
    return {leased.column("due_at"): database_now()}


def parked_values(leased: LeasedTable, reason: str) -> ColumnValues:
    """A row that was parked before keeps its time."""
    parked_at = leased.column("parked_at")
    length = getattr(leased.column("last_error").type, "length", None) or ERROR_TEXT_CHARS_MAX
    text = shorten(reason, chars_max=min(length, ERROR_TEXT_CHARS_MAX))
    since = func.coalesce(parked_at, database_now())
    return {parked_at: since, leased.column("last_error"): text}


def unparked_values(leased: LeasedTable) -> ColumnValues:
    return {
        leased.column("parked_at"): None,
        leased.column("attempts"): 0,
        leased.column("due_at"): database_now(),
    }


def check_schedule(leased: LeasedTable) -> LeasedTable:
    if not leased.has_schedule:
        raise ModelError(
            f"{leased.name} has no ScheduleColumns, so its rows have no time of their own; mix"
            " them in",
            model=leased.name,
            column="due_at",
        )
    return leased


async def _write(
    session: AsyncSession, row: Any, values_of: Callable[[LeasedTable], ColumnValues]
) -> None:
    leased = check_schedule(LeasedTable.of(type(row)))
    values = without_onupdate(leased, values_of(leased))
    bind_of(session, leased)  # refuses a session that is not async
    # A row added in this transaction has no key before the flush.
    await session.flush()
    if (identity := inspect(row).identity) is None:
        raise PipelineError(
            f"this {leased.name} is not in the database; add it to the session first"
        )
    [key] = identity
    if not await write_past_lease(session, leased, key, values=values):
        raise PipelineError(
            f"{leased.name} {key} is no longer there; it was deleted by another transaction"
        )
