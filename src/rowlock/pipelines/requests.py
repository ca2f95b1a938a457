"""Ask a pipeline for something: the asynchronous way for a service to change a row that may be leased."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

from rowlock.leases.request import write_request
from rowlock.pipelines.hinter import hint_after_commit
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import Values


async def request_update(
    session: AsyncSession | async_scoped_session[AsyncSession],
    model: type,
    id: Any,  # noqa: A002, ANN401
    values: Values,
) -> bool:
    """Write a service's own columns of a row, whoever holds its lease, make it due, and hint its pipelines after the commit.

        async with session_factory.begin() as session:
            found = await request_update(session, Volume, volume_id, {"to_be_deleted": True})

    Joins the caller's transaction, waits for no lease and writes no lock column. The next attempt sees the values. An attempt that
    runs now does not: name such columns in the pipeline's `intent`, and its outcome is not written but computed anew.

    Without `ScheduleColumns` a row that was just processed still waits for `min_processing_interval`.

    Args:
        session: the caller's; what is pending in it is flushed first.
        model: a mapped class with the lock columns.
        id: the row's key.
        values: update map, keys being attributes or names; `NOW_PLACEHOLDER` stands for the transaction's time.

    Returns:
        Whether there is such a row.

    Raises:
        OutcomeError: a column is unknown, the key, or one that rowlock keeps.
        ModelError: `model` cannot be leased.
    """
    own = session() if isinstance(session, async_scoped_session) else session
    found = await write_request(own, LeasedTable.of(model), id, values=values)
    if found:
        hint_after_commit(own, model)
    return found
