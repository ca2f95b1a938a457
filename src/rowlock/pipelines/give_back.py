"""Gives claimed rows back unprocessed, so that another replica takes them at once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import events
from rowlock.leases.item import PipelineItem
from rowlock.leases.related_rows import free_what_can_be
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
            released = await release(connection, context.leased, chunk)
            for item in chunk:
                await free_what_can_be(connection, item)
            return released

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


async def free_held(context: PipelineContext[Any], item: PipelineItem[Any]) -> None:
    """Free the related rows of an item whose own row is no longer its own. If the database does not take it, they expire."""
    if not item.held:
        return

    async def work(session: AsyncSession, connection: AsyncConnection) -> None:
        await free_what_can_be(connection, item)

    try:
        await context.transact(work, purpose="free related rows")
    except Exception as error:
        logger.warning(
            "%s: related rows of row %s were not freed and stay leased until they expire",
            context.name,
            item.id,
            extra={"pipeline": context.name, "row_id": item.id, "rows": len(item.held)},
            exc_info=error,
        )
