"""Runs `process` for an item whose sessions only read, as rehearsals do.

The one idea: the host's code gets an item like any other and is called as always; what comes of it
is decided as always, too. Its sessions cannot write, the host's own pools are refused to it, and
related rows are read instead of locked.

Not here: which rows, and whether anything is held meanwhile (``rehearsal.py``);
keeping sessions from writing (``read_only.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.clock import monotonic
from rowlock.containment import contained_task
from rowlock.database.binds import bind_of
from rowlock.errors import ConfigurationError
from rowlock.hints.hinter import PipelineHinter
from rowlock.insight.rehearsing.read_only import (
    ReadOnlySessions,
    refused_to_rehearsals,
    rehearsal_context,
)
from rowlock.leases.acquire import Acquired
from rowlock.leases.item import PipelineItem
from rowlock.leases.related.locker import RelatedLocker
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.host_code.call import Result
from rowlock.pipelines.pipeline import Pipeline
from rowlock.pipelines.settling.decisions import Decision, decide

REHEARSAL_TIMEOUT: Final = timedelta(seconds=60)
"""Longest time for `process` of one row."""
FILE_WAIT: Final = timedelta(seconds=5)
"""How long a session waits for a file that is locked."""
RELATED_MAX: Final = 1_000
"""Most related rows that are shown to `process`."""


def check_rehearsable(pipeline: Pipeline[Any]) -> None:
    """Refuse a pipeline whose `process` is not to be run without writing.

    Raises:
        ConfigurationError: the pipeline does not say ``rehearsable = True``.
    """
    if not pipeline.rehearsable:
        raise ConfigurationError(
            f"{pipeline.name} is not to be rehearsed: what its process does to other systems"
            " is done, and only the database is kept as it is. Where that may be done, or where"
            " process asks item.is_rehearsal first, set rehearsable = True on the class"
        )


class ReadingLocker:
    """Shows related rows instead of locking them.

    Args:
        locker: knows the tables that the pipeline declares.
    """

    def __init__(self, locker: RelatedLocker) -> None:
        self._locker = locker

    async def lock(
        self,
        item: PipelineItem[Any],
        model: type[Any],
        where: ColumnElement[bool],
        *,
        shared: bool,
    ) -> list[Any]:
        """Return the rows as they are. An outcome may name them as if they were locked.

        Raises:
            ConfigurationError: the pipeline does not declare `model`.
        """
        leased = self._locker.table_of(model)
        if item.leased is not None and leased.table is item.leased.table:
            where = where & (leased.attribute(leased.key_name) != item.id)
        async with item.session() as session:
            rows = await _rows(session, model, where)
        keys = tuple(getattr(row, leased.key_name) for row in rows)
        item.held_rows().may_hold(leased, Acquired(keys, {}))
        item.held_rows().holds(leased, {key: {} for key in keys})
        return rows


async def _rows(session: AsyncSession, model: type[Any], where: ColumnElement[bool]) -> list[Any]:
    found = (await session.scalars(select(model).where(where).limit(RELATED_MAX))).unique()
    rows = list(found)
    session.expunge_all()
    return rows


@dataclass(frozen=True, slots=True)
class ReadOnlyProcess:
    """`process` of one pipeline, of which nothing is written.

    Attributes:
        context: of a pipeline that is not started.
        sessions: of the items.
        locker: of the items.
    """

    context: PipelineContext[Any]
    sessions: Any
    locker: ReadingLocker

    async def run(self, item: PipelineItem[Any]) -> Result | None:
        """Run it for an item, which has its row; None if it did not end within
        `REHEARSAL_TIMEOUT`.
        """
        item.stop = self.context.stop
        attempt = self.context.calls.attempt(self.context.hooks.process, item)
        item.begun_at = monotonic()
        task = contained_task(attempt.run(), name="rowlock: rehearsal", context=rehearsal_context())
        try:
            # The time is not left to a cancellation, which `process` may ignore.
            done, _ = await asyncio.wait({task}, timeout=REHEARSAL_TIMEOUT.total_seconds())
            return task.result() if done else None
        finally:
            task.cancel()
            item.ended_at = monotonic()

    def decide(self, item: PipelineItem[Any], result: Result) -> Decision:
        """Return what comes of a result, as it would be settled."""
        return decide(self.context, item, result)


@asynccontextmanager
async def read_only_process(
    session_factory: async_sessionmaker[AsyncSession], pipeline: Pipeline[Any]
) -> AsyncIterator[ReadOnlyProcess]:
    """Have `process` of a pipeline, which need not run, in the block; meanwhile the host's pools
    are refused to it.
    """
    sessions = ReadOnlySessions(session_factory, file_wait=FILE_WAIT)
    # Nobody is woken, and no actor is started.
    context = pipeline.build_run(session_factory, PipelineHinter()).context
    tables = [pipeline.leased, *(lock.leased for lock in pipeline.declared_locks)]
    pools = {bind_of(session_factory(), table).engine.pool for table in tables}
    try:
        with refused_to_rehearsals(pools):
            yield ReadOnlyProcess(context, sessions, ReadingLocker(context.locker))
    finally:
        context.calls.close()
        await sessions.close()
