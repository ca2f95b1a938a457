"""Releases claimed rows unprocessed, and related rows that no outcome has released, so that
another replica takes them at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import events
from rowlock.database.faults import is_transient
from rowlock.errors import LockWaitTimeout, TransactionTimeout
from rowlock.leases.item import PipelineItem
from rowlock.leases.related.writes import release_unlocked_related
from rowlock.leases.release import release
from rowlock.leases.renew import LEASES_PER_STATEMENT_MAX
from rowlock.logs import get_logger
from rowlock.pipelines.context import PipelineContext

T = TypeVar("T")

logger = get_logger(__name__)


async def release_items(
    context: PipelineContext[Any],
    items: Sequence[PipelineItem[Any]],
    *,
    locked_in_background: bool = False,
) -> None:
    """Release `items`. If the database does not take it, at the second try either, their leases
    end by themselves.

    Rows that another transaction has locked are released behind the others, since they are waited
    for; with `locked_in_background` the caller does not wait.
    """
    locked: list[PipelineItem[Any]] = []
    for start in range(0, len(items), LEASES_PER_STATEMENT_MAX):
        chunk = items[start : start + LEASES_PER_STATEMENT_MAX]
        locked += await _release_chunk(context, chunk, waits=len(items) == 1)
    if locked and locked_in_background:
        context.background.begin(_release_locked(context, locked), purpose="release locked rows")
    elif locked:
        await _release_locked(context, locked)


async def _release_locked(
    context: PipelineContext[Any], items: Sequence[PipelineItem[Any]]
) -> None:
    for start in range(0, len(items), LEASES_PER_STATEMENT_MAX):
        chunk = items[start : start + LEASES_PER_STATEMENT_MAX]
        await _release_chunk(context, chunk, waits=True)


async def _release_chunk(
    context: PipelineContext[Any], items: Sequence[PipelineItem[Any]], *, waits: bool
) -> list[PipelineItem[Any]]:
    """Release `items`; return those that were locked or lost, unless locked ones were waited for.

    An error that may be one row's own is kept to that row, by halves.
    """
    try:
        released = await _release(context, items, waits=waits)
    except Exception as error:
        if len(items) > 1 and not is_transient(error):
            halves = items[: len(items) // 2], items[len(items) // 2 :]
            return [
                item for half in halves for item in await _release_chunk(context, half, waits=waits)
            ]
        logger.warning(
            "%s: %s rows were not released and stay leased until they expire",
            context.name,
            len(items),
            extra={"pipeline": context.name, "rows": len(items)},
            exc_info=error,
        )
        return []
    context.counters.released += len(released)
    left = [] if waits else [item for item in items if item.id not in released]
    for item in items:
        if waits or item.id in released:
            item.lose()
        if item.id in released:
            context.tell(events.ItemReleased, item)
    return left


async def release_related_of(
    context: PipelineContext[Any], *items: PipelineItem[Any], are_released: bool = False
) -> None:
    """Release the related rows of items whose own rows are no longer their own, and hint their
    pipelines.

    If the database does not take it, they expire. `are_released`: the transaction of an outcome has
    released them.
    """
    holders = [item for item in items if item.held]
    if are_released:
        _hint_related(context, holders)
        return
    for start in range(0, len(holders), LEASES_PER_STATEMENT_MAX):
        chunk = holders[start : start + LEASES_PER_STATEMENT_MAX]
        try:
            await _release(context, chunk, only_related=True)
        except Exception as error:
            for item in chunk:
                logger.warning(
                    "%s: related rows of row %s were not freed and stay leased until they expire",
                    context.name,
                    item.id,
                    extra={
                        "pipeline": context.name,
                        "row_id": item.id,
                        "rows": len(item.held or ()),
                    },
                    exc_info=error,
                )


async def _release(
    context: PipelineContext[Any],
    items: Sequence[PipelineItem[Any]],
    *,
    waits: bool = False,
    only_related: bool = False,
) -> set[Any]:
    # Of both tries: the second finds nothing left to do if only the answer to the first one's
    # COMMIT was lost.
    released: set[Any] = set()

    async def work(session: AsyncSession, connection: AsyncConnection) -> None:
        if not only_related:
            released.update(await release(connection, context.leased, items, waits=waits))
        await release_unlocked_related(connection, items)

    await _transact(context, work, purpose="free related rows" if only_related else "release rows")
    _hint_related(context, items)
    return released


def _hint_related(context: PipelineContext[Any], items: Sequence[PipelineItem[Any]]) -> None:
    # Pipelines of these rows passed them over as long as they were held.
    tables = [table for item in items if item.held is not None for table, _ in item.held.perhaps()]
    for model in dict.fromkeys(table.model for table in tables):
        if context.hinter.reaches(model):
            context.hinter.hint_fetch(model)


async def _transact(
    context: PipelineContext[Any],
    work: Callable[[AsyncSession, AsyncConnection], Awaitable[T]],
    *,
    purpose: str,
) -> T:
    try:
        return await context.transact(work, purpose=purpose)
    except Exception as error:
        # What took all its time is not tried again: a shutdown must end.
        if not is_transient(error) or isinstance(error, TransactionTimeout | LockWaitTimeout):
            raise
    # A pool may hold connections that died long ago, in an outage that is over: the first use of
    # one only finds that out.
    return await context.transact(work, purpose=purpose)
