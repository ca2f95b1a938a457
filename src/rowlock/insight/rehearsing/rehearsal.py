"""Runs `process` for rows as if it were claimed, and writes nothing.

The one idea: the row is held as a service holds it, so that no pipeline works on it meanwhile; what
the host's code gets is an item like any other, whose sessions only read. What it returns is decided
upon as always, and shown instead of written.

Not here: keeping sessions from writing (``read_only.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.clock import monotonic, utc_now
from rowlock.containment import contained_task
from rowlock.database.binds import bind_of
from rowlock.errors import ConfigurationError
from rowlock.hints.hinter import PipelineHinter
from rowlock.insight.rehearsing.answer import RowRehearsal, row_rehearsal
from rowlock.insight.rehearsing.read_only import (
    ReadOnlySessions,
    refused_to_rehearsals,
    rehearsal_context,
)
from rowlock.leases.item import PipelineItem
from rowlock.leases.load import load_rows
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.host_code.call import Ended, Result
from rowlock.pipelines.outcomes import Reset
from rowlock.pipelines.pipeline import Pipeline
from rowlock.pipelines.settling.decisions import decide
from rowlock.services.hold import HOLD_LOCK_TIMEOUT, HeldByService, hold

OWNER: Final = "plan"
"""Holds the rows meanwhile, for whoever looks at the table."""
IDS_MAX: Final = 100
"""Most rows that are rehearsed at once."""
REHEARSAL_TIMEOUT: Final = timedelta(seconds=60)
"""Longest time for `process` of one row."""
HOLD_WAIT: Final = timedelta(seconds=5)
"""How long a row is waited for that somebody holds."""
FILE_WAIT: Final = timedelta(seconds=5)
"""How long a session waits for a file that is locked."""
RELATED_MAX: Final = 1_000
"""Most related rows that are shown to `process`."""


class ReadingLocker:
    """Shows related rows instead of locking them."""

    async def lock(
        self,
        item: PipelineItem[Any],
        model: type[Any],
        where: ColumnElement[bool],
        *,
        shared: bool,
    ) -> list[Any]:
        """Return the rows as they are."""
        async with item.session() as session:
            return await _rows(session, model, where)


async def _rows(session: AsyncSession, model: type[Any], where: ColumnElement[bool]) -> list[Any]:
    found = (await session.scalars(select(model).where(where).limit(RELATED_MAX))).unique()
    rows = list(found)
    session.expunge_all()
    return rows


class PipelineRehearsal:
    """Rehearses rows of one pipeline.

    Args:
        session_factory: the host's.
        pipeline: need not run.
        hidden: columns of which no value is shown.

    Raises:
        ConfigurationError: the pipeline does not say that it may be rehearsed.
    """

    def __init__(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        pipeline: Pipeline[Any],
        *,
        hidden: Collection[Column[Any]] = (),
    ) -> None:
        if not pipeline.rehearsable:
            raise ConfigurationError(
                f"{pipeline.name} is not to be rehearsed: what its process does to other systems"
                " is done, and only the database is kept as it is. Where that may be done, or where"
                " process asks item.is_rehearsal first, set rehearsable = True on the class"
            )
        self._session_factory, self._pipeline, self._hidden = session_factory, pipeline, hidden

    async def rehearse(self, keys: Sequence[Any]) -> tuple[RowRehearsal, ...]:
        """Return what would come of each row, one after the other.

        Raises:
            LockWaitTimeout: somebody holds a row.
            LeaseLost: a row was not held until the end.
            TransactionTimeout: the database did not answer in time.
        """
        leased = self._pipeline.leased
        sessions = ReadOnlySessions(self._session_factory, file_wait=FILE_WAIT)
        # Nobody is woken, and no actor is started.
        context = self._pipeline.build_run(self._session_factory, PipelineHinter()).context
        tables = [leased, *(lock.leased for lock in self._pipeline.declared_locks)]
        pools = {bind_of(self._session_factory(), table).engine.pool for table in tables}
        try:
            with refused_to_rehearsals(pools):
                return tuple([await self._row(context, key, sessions) for key in keys])
        finally:
            context.calls.close()
            await sessions.close()

    async def _row(
        self, context: PipelineContext[Any], key: Any, sessions: ReadOnlySessions
    ) -> RowRehearsal:
        async with hold(
            self._session_factory,
            self._pipeline.leased,
            [key],
            timeout=HOLD_WAIT,
            lock_timeout=HOLD_LOCK_TIMEOUT,
            owner=OWNER,
        ) as held:
            if not held.rows:
                return RowRehearsal(str(key), None)
            item = self._item(held, sessions)
            item.stop = context.stop
            await self._load(context, item)
            decision = decide(context, item, await _attempted(context, item))
            outcome = Reset() if isinstance(decision, Ended) else decision
            return row_rehearsal(item, self._pipeline.leased, outcome, hidden=self._hidden)

    def _item(self, held: HeldByService[Any], sessions: Any) -> PipelineItem[Any]:
        leased, row = self._pipeline.leased, held.rows[0]
        return PipelineItem(
            id=held.keys[0],  # pyright: ignore[reportCallIssue]
            lock_token=held.lock_token,
            lock_owner=held.lock_owner,
            lock_expires_at=utc_now() + HOLD_LOCK_TIMEOUT,
            prev_lock_expired=False,
            attempt=row.attempts + 1 if leased.has_schedule else 1,
            place=float("-inf"),
            claimed_at=monotonic(),
            # The hold is renewed meanwhile, and says at its end whether it was lost.
            trusted_until=monotonic() + 2 * REHEARSAL_TIMEOUT.total_seconds(),
            session_factory=sessions,
            locker=ReadingLocker(),
            leased=leased,
            is_rehearsal=True,
        )

    async def _load(self, context: PipelineContext[Any], item: PipelineItem[Any]) -> None:
        async with item.session() as session:
            [row] = await load_rows(
                session,
                context.leased,
                [item],
                options=self._pipeline.options(),
                compared=context.intent,
            )
        if row is None:
            raise item.lease_lost()
        item.row = row


async def _attempted(context: PipelineContext[Any], item: PipelineItem[Any]) -> Result:
    attempt = context.calls.attempt(context.hooks.process, item)
    item.begun_at = monotonic()
    task = contained_task(attempt.run(), name="rowlock: rehearsal", context=rehearsal_context())
    try:
        async with asyncio.timeout(REHEARSAL_TIMEOUT.total_seconds()):
            return await task
    except TimeoutError:
        return Ended.TIMED_OUT
    finally:
        item.ended_at = monotonic()
