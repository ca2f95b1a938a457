"""How services change rows that may be leased: at once, by holding them, or by a request that the
pipeline sees to.

Not here: how rows are held and requests are written (``services/hold.py``,
``services/request.py``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker

from rowlock.hints.hinter import hint_after_commit, pipeline_hinter
from rowlock.rows.leased_table import LeasedTable, ModelT
from rowlock.rows.updates import Values
from rowlock.services.hold import HOLD_LOCK_TIMEOUT, HOLD_TIMEOUT, HeldByService, hold
from rowlock.services.request import write_request


@asynccontextmanager
async def hold_rows(
    session_factory: async_sessionmaker[AsyncSession],
    model: type[ModelT],
    ids: Iterable[Any],
    *,
    timeout: timedelta | float = HOLD_TIMEOUT,
    lock_timeout: timedelta | float = HOLD_LOCK_TIMEOUT,
    owner: str = "service",
) -> AsyncIterator[HeldByService[ModelT]]:
    """Hold rows for the time of the block, all or none: no pipeline and no other holder works on
    them meanwhile.

        async with hold_rows(session_factory, Volume, [volume_id], timeout=5) as held:
            async with session_factory.begin() as session:
                await held.guard(session)
                ...

    Opens short transactions of its own; between them no connection is held, neither while it waits
    nor inside the block. The transactions inside the block are the caller's: commit them there.

    Args:
        session_factory: the host's.
        model: a mapped class with the lock columns.
        ids: keys of the rows, at most `ACQUIRED_ROWS_MAX`; ids of rows that do not exist are passed
            over.
        timeout: how long to wait for them, a number being seconds, up to `WAIT_S_MAX`; 0 asks once.
        lock_timeout: after what time the rows are free if this process dies; renewed until the
            block ends.
        owner: who holds them, for `LockWaitTimeout.holder` and for those who look at the table.

    Raises:
        LockWaitTimeout: somebody held one of them for so long; says who, and how long their lease
            still lasts.
        LeaseLost: at the end of the block: the lease was lost before (a blocked event loop, a
            database that was away, a guarded transaction that took longer than the lease).
        PipelineError: at the end of the block: a guarded transaction is still open, or
            `held.rows` was changed and no transaction guarded, which writes nothing.
        TransactionTimeout: the database did not answer in time; rows that were leased are free
            when their lease ends.
        ModelError: `model` cannot be leased.
        ConfigurationError: the session factory is bound to no engine that can keep leases.
    """
    leased = LeasedTable.of(model)
    try:
        async with hold(
            session_factory, leased, ids, timeout=timeout, lock_timeout=lock_timeout, owner=owner
        ) as held:
            yield held
    finally:
        # Whoever was hinted meanwhile passed the rows over.
        if pipeline_hinter.reaches(model):
            pipeline_hinter.hint_fetch(model)


async def request_update(
    session: AsyncSession | async_scoped_session[AsyncSession],
    model: type,
    id: Any,  # noqa: A002
    values: Values,
) -> bool:
    """Write a service's own columns of a row, whoever holds its lease, make it due, and hint its
    pipelines after the commit.

        async with session_factory.begin() as session:
            found = await request_update(session, Volume, volume_id, {"to_be_deleted": True})

    Joins the caller's transaction, waits for no lease and writes no lock column. The next attempt
    sees the values. An attempt that runs now does not: name such columns in the pipeline's
    `intent`, and its outcome is not written but computed anew.

    A parked row is put back into play, with a clean count of attempts, if a column of `intent` is
    among the values: of any pipeline of the model that was built in this process. Where none was,
    each request counts as one.

    Without `ScheduleColumns` a row that was just processed still waits for
    `min_processing_interval`.

    Args:
        session: the caller's; what is pending in it is flushed first.
        model: a mapped class with the lock columns.
        id: the row's key.
        values: update map, keys being attributes or names; `NOW_PLACEHOLDER` stands for the
            transaction's time.

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
