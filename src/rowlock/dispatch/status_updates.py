"""Writes what must be seen before an attempt is over: whatever the database does meanwhile, for as
long as the lease is trusted.

Attempts of a replica share transactions: while one is under way, the next ones gather. What an
outage interrupts is written again; and if an answer was lost, the token shows whether the status is
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Generic

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import PipelineItem
from rowlock.database.batcher import Batcher, within
from rowlock.errors import TransactionTimeout
from rowlock.leases.patch import Patch, is_unchanged, show, write_patches
from rowlock.logs import get_logger
from rowlock.spi import (
    ColumnValues,
    LeasedTable,
    ModelT,
    Retries,
    Values,
    column_values,
    in_transaction,
    is_transient,
)
from rowlock.tasks import finish

logger = get_logger(__name__)


class StatusUpdates(Generic[ModelT]):
    # A transaction ends within `timeout`; outages are waited out for `retry_timeout` at most.

    def __init__(
        self, leased: LeasedTable, *, name: str, timeout: timedelta, retry_timeout: timedelta
    ) -> None:
        self._leased = leased
        self._timeout = timeout
        self._retry_timeout_s = retry_timeout.total_seconds()
        self._batcher: Batcher[Patch[ModelT], ColumnValues | None] = Batcher(
            self._transact, name=f"{name} updates statuses", timeout=timeout
        )

    async def write(
        self, item: PipelineItem[ModelT], values: Values, *, unless_changed: Values
    ) -> None:
        """Write `values` to the row of `item` under its token, and show them in ``item.row``.

        Raises:
            LeaseLost: the row was decided elsewhere.
            TransactionTimeout: the database did not take it, although the lease goes on.
        """
        column_values(self._leased, values)
        retries = Retries(within(self._retry_timeout_s))
        while True:
            try:
                # Whole, also for who is cancelled: what was written must be known, or no later
                # write finds the row as it is.
                return await finish(
                    self._try(Patch(item, values, unless_changed), tries=retries.count),
                    purpose="write status",
                )
            except Exception as error:
                retries.failed()
                if not is_transient(error) or not item.is_trusted():
                    raise
                if retries.are_over:
                    raise TransactionTimeout(
                        purpose="write status", timeout_s=self._retry_timeout_s
                    ) from error
                extra = {"row_id": item.id, "tries": retries.count}
                logger.warning(
                    "A status update is tried again: %s", item.id, extra=extra, exc_info=error
                )
            await retries.rest()

    async def check(self, item: PipelineItem[ModelT], values: Values) -> None:
        """Raise `LeaseLost` unless the row is under its token with `values`; not in an outage."""

        async def work(session: AsyncSession, connection: AsyncConnection) -> bool:
            return await is_unchanged(connection, self._leased, item, values=values)

        try:
            unchanged = await in_transaction(
                item.session_factory,
                self._leased,
                work,
                purpose="look at a row",
                timeout=self._timeout,
                writes=False,
                autocommit=True,
            )
        except Exception as error:
            if not is_transient(error):
                raise
            logger.info(
                "A row could not be looked at: %s",
                item.id,
                extra={"row_id": item.id},
                exc_info=error,
            )
        else:
            if not unchanged:
                raise item.lease_lost()

    async def _try(self, patch: Patch[ModelT], *, tries: int) -> None:
        written = await self._write(patch)
        if written is None and tries and "status" in patch.values:
            # An earlier try may have been committed, though its answer was lost: the token is still
            # this attempt's.
            written = await self._write(
                replace(patch, unless_changed={"status": patch.values["status"]})
            )
        if written is None:
            raise patch.item.lease_lost()
        show(self._leased, patch.item.row, written)

    async def _write(self, patch: Patch[ModelT]) -> ColumnValues | None:
        written = await self._batcher.submit(patch)
        if written is None and patch.item.is_trusted():
            [written] = await self._transact([patch], waits=True)
        return written

    async def _transact(
        self, patches: Sequence[Patch[ModelT]], *, waits: bool = False
    ) -> list[ColumnValues | None]:
        async def work(
            session: AsyncSession, connection: AsyncConnection
        ) -> list[ColumnValues | None]:
            if not waits:
                self._batcher.begun()
            return await write_patches(connection, self._leased, patches, waits=waits)

        factory, purpose = patches[0].item.session_factory, "write status updates"
        return await in_transaction(
            factory, self._leased, work, purpose=purpose, timeout=self._timeout
        )
