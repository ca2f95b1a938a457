"""Tells a host once, soon after the start, that its claims have no index, or that heartbeats write
one.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.database.binds import bind_of
from rowlock.database.claim_slots import claim_slot
from rowlock.leases.claim_request import ClaimRequest
from rowlock.leases.indexes.index_look import IndexLook, look_at_indexes
from rowlock.logs import get_logger
from rowlock.pipelines.context import PipelineContext

logger = get_logger(__name__)

LOOK_AFTER_S = 3.0
"""How long after the start the indexes are looked at, in seconds: the first claims come first."""


async def tell_indexes(context: PipelineContext[Any], request: ClaimRequest) -> IndexLook | None:
    """Look at the indexes of the table, and log what is to be mended; None if they cannot be
    looked at.
    """

    async def work(session: AsyncSession, connection: AsyncConnection) -> IndexLook:
        return await look_at_indexes(connection, request)

    timeout = context.settings.database_timeout
    try:
        engine = bind_of(context.session_factory(), context.leased).engine
        # A crowd that started together looks together.
        async with claim_slot(engine, wait_s=timeout.total_seconds()):
            look = await context.transact(work, purpose="look at indexes", writes=False)
    except Exception as error:
        logger.debug(
            "%s: the indexes could not be looked at",
            context.name,
            extra={"pipeline": context.name},
            exc_info=error,
        )
        return None
    for problem in problems_of(context.name, context.leased.table.name, look):
        logger.warning("%s: %s", context.name, problem, extra={"pipeline": context.name})
    return look


def problems_of(name: str, table_name: str, look: IndexLook) -> list[str]:
    """Return what is to be mended, and how."""
    problems = []
    if not look.is_served and look.candidates:
        problems.append(
            f"its claims can use none of {', '.join(look.candidates)}: the order is another, or the"
            " condition is not implied by ready(); until then each claim reads all rows of"
            f" {table_name}. due_index({name}) makes the index of the pipeline (documentation: How"
            " to, Adopt in migrations)"
        )
    elif not look.is_served:
        problems.append(
            f"{table_name} has no index for its claims, so each of them reads and sorts all rows;"
            f" due_index({name}), below the class, makes one (documentation: How to, Adopt in"
            " migrations)"
        )
    problems += [
        f"the index {index} mentions {column}, so every claim and heartbeat writes all indexes of"
        f" {table_name}; drop it, claims look at the lock columns by themselves"
        for index, column in look.with_lock_columns.items()
    ]
    return problems
