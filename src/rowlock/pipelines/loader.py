"""Reads rows for workers under their tokens, many at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock.clock import monotonic
from rowlock.database.batcher import Batcher, Retries, within
from rowlock.database.faults import is_of_the_schema, is_transient
from rowlock.errors import describe
from rowlock.leases.claim import load_rows, row_hidden
from rowlock.leases.item import PipelineItem
from rowlock.leases.renew import tokens_still_held
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import contained
from rowlock.pipelines.context import PipelineContext
from rowlock.rows.leased_table import ModelT

logger = get_logger(__name__)

FRESH_S = 0.1
"""A claimed row is read again if work begins later than this after the claim, in seconds."""
ROWS_DIFFER_S = 60.0
"""For so long after a row could be read, a failure is one row's own, in seconds."""
LOADER = "loader"
"""Under this name the pipeline's health shows that no row can be read."""
TOKENS_GONE_MAX = 10
"""After so many trusted leases in a row whose tokens were gone, the pipeline is unhealthy."""


HIDDEN: Any = object()
"""Stands for a row that is there under its token and was not returned."""


class Loader(Generic[ModelT]):
    def __init__(self, context: PipelineContext[ModelT]) -> None:
        self.context = context
        self._others_load_until = -math.inf
        self._tokens_gone = 0
        self._batcher: Batcher[PipelineItem[ModelT], ModelT | None] = Batcher(
            self._load_together,
            name=f"{context.name} reads rows",
            timeout=context.settings.database_timeout,
            is_grace_over=lambda: context.grace_over,
        )

    def check_fresh(self, item: PipelineItem[ModelT], now: float) -> bool:
        """Whether work on `item` may begin with its claim's row, sent a moment before `now`."""
        is_fresh = self.context.queue.starts_soon = now - item.claimed_at < FRESH_S
        return is_fresh and item.has_row and item.is_trusted(now)

    async def load(self, item: PipelineItem[ModelT]) -> bool:
        """Read the row of `item` into it; False if the lease is no longer its own. A transient
        error is waited out for `lock_timeout` at most; a filter of the host's that hides the row
        raises `NoResultFound`.
        """
        retries = Retries(within(self.context.settings.lock_timeout.total_seconds()))
        while item.is_trusted():
            try:
                row = await self._batcher.submit(item)
            except Exception as error:
                retries.failed()
                if self.concerns_all_rows(error):
                    self.context.failures.failed(LOADER, describe(error))
                if not is_transient(error) or retries.are_over or self.context.grace_over:
                    raise
                extra = {
                    "pipeline": self.context.name,
                    "row_id": item.id,
                    "tries": retries.count,
                }
                text = "%s: reading row %s is tried again"
                logger.warning(text, self.context.name, item.id, extra=extra, exc_info=error)
                await retries.rest()
                continue
            if row is HIDDEN:
                raise row_hidden()
            if row is None:
                self._record_token_gone(item)
                return False
            self._tokens_gone = 0
            if LOADER in self.context.failures.errors:
                self._others_load_until = monotonic() + ROWS_DIFFER_S
                self.context.failures.succeeded(LOADER)
            item.row = row
            return True
        return False

    def _record_token_gone(self, item: PipelineItem[ModelT]) -> None:
        """Count trusted leases that were lost: one is a person's doing, many a trigger's."""
        if not item.is_trusted():
            return
        self._tokens_gone += 1
        if self._tokens_gone >= TOKENS_GONE_MAX:
            self.context.failures.failed(
                LOADER,
                f"{self._tokens_gone} leases in a row were gone before work began: does a trigger"
                " or a service clear lock_token?",
            )

    def concerns_all_rows(self, error: Exception) -> bool:
        """Whether no row can be read; one kind of rows may have its own table."""
        return is_of_the_schema(error) and monotonic() >= self._others_load_until

    async def _load_together(self, items: Sequence[PipelineItem[ModelT]]) -> list[ModelT | None]:
        options = await contained(self._options)

        async def work(session: AsyncSession, connection: AsyncConnection) -> list[ModelT | None]:
            context = self.context
            self._batcher.begun()
            rows = await load_rows(
                session, context.leased, items, options=options, compared=context.intent
            )
            if None not in rows:
                return rows
            held = await tokens_still_held(connection, context.leased, items)
            return [
                HIDDEN if row is None and item.lock_token in held else row
                for row, item in zip(rows, items, strict=True)
            ]

        return await self.context.transact(work, purpose="read rows", writes=False, autocommit=True)

    async def _options(self) -> Sequence[LoaderOption]:
        return self.context.hooks.options()
