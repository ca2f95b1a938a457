"""Rehearses rows: `process` is run for each as if it were claimed, and nothing is written.

The one idea: the row is held as a service holds it, so that no pipeline works on it meanwhile. What
`process` returns is decided upon as always, and shown instead of written.

Not here: how `process` is run without writing (``attempt.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Column
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.clock import monotonic, utc_now
from rowlock.insight.rehearsing.answer import RowRehearsal, row_rehearsal
from rowlock.insight.rehearsing.attempt import (
    REHEARSAL_TIMEOUT,
    ReadOnlyProcess,
    check_rehearsable,
    read_only_process,
)
from rowlock.leases.item import PipelineItem
from rowlock.leases.load import load_rows
from rowlock.pipelines.host_code.call import Ended
from rowlock.pipelines.outcomes import Reset
from rowlock.pipelines.pipeline import Pipeline
from rowlock.services.hold import HOLD_LOCK_TIMEOUT, HeldByService, hold

OWNER: Final = "plan"
"""Holds the rows meanwhile, for whoever looks at the table."""
IDS_MAX: Final = 100
"""Most rows that are rehearsed at once."""
HOLD_WAIT: Final = timedelta(seconds=5)
"""How long a row is waited for that somebody holds."""


class PipelineRehearsal:
    """Rehearses rows of one pipeline.

    Args:
        session_factory: the host's.
        pipeline: need not run.
        hidden: columns of which no value is shown.
        redact: makes of an error's text what is shown.

    Raises:
        ConfigurationError: the pipeline does not say that it may be rehearsed.
    """

    def __init__(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        pipeline: Pipeline[Any],
        *,
        hidden: Collection[Column[Any]] = (),
        redact: Callable[[str], str] = str,
    ) -> None:
        check_rehearsable(pipeline)
        self._redact = redact
        self._session_factory, self._pipeline, self._hidden = session_factory, pipeline, hidden

    async def rehearse(self, keys: Sequence[Any]) -> tuple[RowRehearsal, ...]:
        """Return what would come of each row, one after the other.

        Raises:
            LockWaitTimeout: somebody holds a row.
            LeaseLost: a row was not held until the end.
            TransactionTimeout: the database did not answer in time.
        """
        async with read_only_process(self._session_factory, self._pipeline) as process:
            return tuple([await self._row(process, key) for key in keys])

    async def _row(self, process: ReadOnlyProcess, key: Any) -> RowRehearsal:
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
            item = self._item(held, process)
            await self._load(process, item)
            result = await process.run(item)
            decision = process.decide(item, Ended.TIMED_OUT if result is None else result)
            outcome = Reset() if isinstance(decision, Ended) else decision
            row = row_rehearsal(item, self._pipeline.leased, outcome, hidden=self._hidden)
            return row if row.reason is None else replace(row, reason=self._redact(row.reason))

    def _item(self, held: HeldByService[Any], process: ReadOnlyProcess) -> PipelineItem[Any]:
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
            session_factory=process.sessions,
            locker=process.locker,
            leased=leased,
            is_rehearsal=True,
        )

    async def _load(self, process: ReadOnlyProcess, item: PipelineItem[Any]) -> None:
        async with item.session() as session:
            [row] = await load_rows(
                session,
                process.context.leased,
                [item],
                options=self._pipeline.options(),
                compared=process.context.intent,
            )
        if row is None:
            raise item.lease_lost()
        item.row = row
