"""Sees that the rows are there which a pipeline declares: before its first claim, and then as often
as lock columns are swept.

Not here: how they are inserted (``database/declared_rows.py``).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Generic

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.backoff import jittered
from rowlock.clock import monotonic
from rowlock.database.declared_rows import DeclaredRow, ensure_rows, mark_of, not_ready
from rowlock.database.faults import is_outage
from rowlock.logs import get_logger
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.host_code.hooks import ready_condition
from rowlock.pipelines.host_code.row_schedules import Periodic, checked_time
from rowlock.rows.leased_table import ModelT

logger = get_logger(__name__)


class PeriodicRows(Generic[ModelT]):
    """The declared rows of one pipeline.

    Attributes:
        context: what the actors of the pipeline share.
    """

    def __init__(self, context: PipelineContext[ModelT]) -> None:
        self.context = context
        schedules = context.schedules
        self._rows: dict[Any, Periodic] = {} if schedules is None else dict(schedules.periodic)
        self._looks_at = monotonic() if self._rows else float("inf")

    @property
    def are_due(self) -> bool:
        """Whether they are to be looked for."""
        return self._looks_at <= monotonic()

    async def ensure(self) -> None:
        """Insert those that are not there. What the database refuses is logged: other rows need not
        wait for it.

        Raises:
            Exception: the database is not there.
        """
        try:
            await self._ensure()
        except Exception as error:
            if is_outage(error):
                raise
            logger.exception(
                "%s: periodic rows could not be inserted",
                self.context.name,
                extra={"pipeline": self.context.name, "rows": len(self._rows)},
            )
        period_s = self.context.settings.orphaned_after.total_seconds()
        self._looks_at = monotonic() + jittered(period_s)

    async def _ensure(self) -> None:
        try:
            unready = await self.context.transact(self._work, purpose="insert periodic rows")
        except Exception as error:
            if is_outage(error):
                raise
            # Another replica was there at the same moment; a second time tells what else it is.
            unready = await self.context.transact(self._work, purpose="insert periodic rows")
        if unready:
            logger.warning(
                "%s: periodic rows are not ready and are never claimed: %s; change their values, or"
                " ready()",
                self.context.name,
                unready,
                extra={"pipeline": self.context.name, "keys": unready},
            )

    async def _work(self, session: AsyncSession, connection: AsyncConnection) -> list[Any]:
        context = self.context
        rows = {
            key: DeclaredRow(partial(_next_after, row), mark_of(row.schedule), row.values)
            for key, row in self._rows.items()
        }
        await ensure_rows(connection, context.leased, rows)
        ready = ready_condition(context.name, context.leased, context.hooks)
        return await not_ready(connection, context.leased, list(rows), ready=ready)


def _next_after(row: Periodic, now: Any) -> Any:
    assert row.schedule is not None
    return checked_time(row.schedule.next_after(now))
