"""Gives claimed rows back unprocessed, so that another replica takes them at once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import events
from rowlock.leases.item import PipelineItem
from rowlock.leases.release import release
from rowlock.leases.renew import LEASES_PER_STATEMENT_MAX
from rowlock.pipelines.context import PipelineContext

logger = logging.getLogger(__name__)


async def give_back(context: PipelineContext[Any], items: Sequence[PipelineItem[Any]]) -> None:
    """Release `items`. If the database does not take it, their leases end by themselves."""
    for start in range(0, len(items), LEASES_PER_STATEMENT_MAX):
        chunk = items[start : start + LEASES_PER_STATEMENT_MAX]

        async def work(
            session: AsyncSession, connection: AsyncConnection, chunk: Sequence[PipelineItem[Any]] = chunk
        ) -> int:
            return await release(connection, context.leased, chunk)

        try:
            released = await context.transact(work, purpose="release rows")
        except Exception as error:
            logger.warning(
                "%s: %s rows were not released and stay leased until they expire",
                context.name,
                len(chunk),
                extra={"pipeline": context.name, "rows": len(chunk)},
                exc_info=error,
            )
            continue
        context.counters.released += released
        for item in chunk:
            item.lose()
            events.emit(events.ItemReleased(context.name, item.id, item.lock_token))
