"""Writes the history of one database: in batches, behind the commits of the outcomes.

The one idea: whatever becomes of it, no outcome is harmed. It has a task of its own, its
transactions are short and bounded, and what fails is tried again, ever less often; the log says
it once.

Not here: which events are written (``recorder.py``), and the statements (``statements.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.backoff import exponential
from rowlock.clock import monotonic, sleep
from rowlock.containment import without_exits
from rowlock.database.faults import is_of_the_values
from rowlock.database.transaction import in_transaction
from rowlock.errors import describe
from rowlock.insight.history.queue import HistoryBatch, HistoryQueue
from rowlock.insight.history.statements import (
    DELETED_AT_ONCE_MAX,
    ClockReading,
    delete_old,
    read_clock,
    write_batch,
)
from rowlock.logs import get_logger
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.lock_tokens import replica_mark

logger = get_logger(__name__)

T = TypeVar("T")

WRITE_EVERY_S: Final = 0.5
"""The rest between two writes, in seconds."""
REST_S_MAX: Final = 5.0
"""The longest rest behind failures, in seconds."""
TIMEOUT: Final = timedelta(seconds=3)
"""Longest time for one transaction."""
CLOCK_KEPT_S: Final = 5.0
"""For how long the times of entries are counted from one answer of the database, in seconds."""
DELETE_EVERY_S: Final = 300.0
"""How often old entries are looked for, in seconds; at once again where there were many."""
DELETE_AFTER: Final = 10_000
"""They are also looked for behind so many entries."""
DELETIONS_MAX: Final = 10
"""Most transactions that delete, between two writes."""


class HistoryWriter:
    """The history of one database.

    Args:
        session_factory: of a manager with this database.
        leased: a table in it, which tells a session with several engines where to go.
        history: the table of the history.
        models: the class of the rows of each pipeline, which grows while more become known.

    Attributes:
        queue: what waits to be written.
    """

    def __init__(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        leased: LeasedTable,
        *,
        history: Table,
        models: Mapping[str, str],
    ) -> None:
        self.queue = HistoryQueue()
        self._session_factory, self._leased = session_factory, leased
        self._history, self._models = history, models
        self._lock = asyncio.Lock()
        self._known_clock: ClockReading | None = None
        self._failures = 0
        self._written = 0
        self._deletes_at_s = monotonic() + DELETE_EVERY_S

    def __repr__(self) -> str:
        return f"<HistoryWriter {len(self.queue)} wait>"

    @property
    def is_failing(self) -> bool:
        """Whether the database did not take the last entries."""
        return self._failures > 0

    async def run(self) -> None:
        """Write for as long as there is somebody to write for."""
        while True:
            await sleep(
                WRITE_EVERY_S
                if not self._failures
                else exponential(self._failures, first_s=WRITE_EVERY_S, most_s=REST_S_MAX)
            )
            await self.write()

    async def write(self) -> bool:
        """Write what waits, and delete what is old; return whether that has worked."""
        # Two who write at once would write the same batch.
        async with self._lock:
            try:
                await without_exits(self._write_all)
            except Exception as error:  # noqa: BLE001
                self._failed(error)
                return False
            return True

    async def _write_all(self) -> None:
        while (batch := self.queue.batch()) is not None:
            await self._write_or_leave_out(batch)
            self.queue.confirm()
            self._written += len(batch.noted)
            self._succeeded()
        if monotonic() >= self._deletes_at_s or self._written >= DELETE_AFTER:
            await self._delete()

    async def _write_or_leave_out(self, batch: HistoryBatch) -> None:
        try:
            await self._write_one(batch)
        except Exception as error:
            if not is_of_the_values(error):
                raise
            if not batch.simplify():
                # All that waits behind it would wait for ever.
                self.queue.leave_out()
                raise
            await self._write_or_leave_out(batch)

    async def _write_one(self, batch: HistoryBatch) -> None:
        clock = await self._clock()

        async def work(session: AsyncSession, connection: AsyncConnection) -> None:
            await write_batch(connection, self._history, batch, models=self._models, clock=clock)

        # Where others wait for the one who writes, nothing is asked in between.
        is_first = batch.entries is None
        await self._transact(work, purpose="write the history", autocommit=is_first)

    async def _clock(self) -> ClockReading:
        """Return what the database's clock said a moment ago."""
        known = self._known_clock
        if known is None or monotonic() - known.now_s >= CLOCK_KEPT_S:

            async def work(session: AsyncSession, connection: AsyncConnection) -> ClockReading:
                return await read_clock(connection)

            purpose = "ask for the time of the history"
            known = await self._transact(work, purpose=purpose, writes=False)
            self._known_clock = known
        return known

    async def _delete(self) -> None:
        async def work(session: AsyncSession, connection: AsyncConnection) -> int:
            return await delete_old(connection, self._history)

        self._written = 0
        for _ in range(DELETIONS_MAX):
            deleted = await self._transact(work, purpose="delete old entries of the history")
            if deleted < DELETED_AT_ONCE_MAX:
                self._deletes_at_s = monotonic() + DELETE_EVERY_S
                return
        self._deletes_at_s = monotonic()

    async def _transact(
        self,
        work: Callable[[AsyncSession, AsyncConnection], Awaitable[T]],
        *,
        purpose: str,
        **how: bool,
    ) -> T:
        return await in_transaction(
            self._session_factory, self._leased, work, purpose=purpose, timeout=TIMEOUT, **how
        )

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._known_clock = None
        if self._failures > 1:
            return
        logger.warning(
            "The history cannot be written (told once; no row is harmed, and what does not find"
            " room meanwhile is counted): %s",
            describe(error, chars_max=300),
            extra=self._fields(),
        )

    def _succeeded(self) -> None:
        if self._failures:
            self._failures = 0
            logger.info("The history is written again", extra=self._fields())

    def tell_lost(self) -> None:
        """Log what waits still, when nobody will write it any more."""
        if count := len(self.queue):
            logger.warning(
                "%s entries of the history were not written before the end",
                count,
                extra={**self._fields(), "entries": count},
            )
            self.queue.drop(count)

    def _fields(self) -> dict[str, Any]:
        return {"replica": replica_mark()}
