"""Why a flow has no row: it was never started, or the row was deleted beneath it."""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import PipelineError
from rowlock.streams.program import FlowProgram

NEVER_STARTED: Final = "new"
"""The state of a flow that has no row."""
LOST: Final = "lost"
"""The state of a flow whose row was deleted, while others of it are there."""


class Absence(NamedTuple):
    """A flow without a row.

    Attributes:
        state: `NEVER_STARTED` or `LOST`.
        text: why, in words.
    """

    state: str
    text: str


async def absence_of(connection: AsyncConnection, program: FlowProgram) -> Absence:
    """Return why a flow has no row; joins the caller's transaction."""
    shards = program.tables.shards
    own = select(func.count()).select_from(shards).where(shards.c.flow_id == program.id)
    count = await connection.scalar(own)
    if not count:
        return Absence(NEVER_STARTED, "it was never started")
    return Absence(
        LOST,
        f"its row in {program.tables.flows.name} was deleted, and {count} shards of it are there:"
        " nothing is cut until the row is back, from a backup of one moment with all others of it",
    )


async def no_row(connection: AsyncConnection, program: FlowProgram) -> PipelineError:
    """Return the error of what needs the row of a flow that has none; joins the caller's
    transaction.
    """
    absence = await absence_of(connection, program)
    if absence.state == LOST:
        return PipelineError(f"the flow {program.name!r}: {absence.text}")
    return PipelineError(
        f"the flow {program.name!r} has no row yet: it is made when a manager with"
        " streams.pipelines() starts"
    )
