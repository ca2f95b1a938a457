"""What of a stream may still be read, by any flow of the database, declared here or not.

The one idea: a shard that is opened anew begins at its *version*, so that is what counts, and not
the step that it does next. Rules of the other kind broke 29 of 32 runs of the prototype.

Every function joins the transaction of the connection that is its first parameter.
"""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.streams.frontier import frontier_of
from rowlock.streams.outputs.cursors import DISCARDED
from rowlock.streams.tables import StreamTables


async def lowest_version(connection: AsyncConnection, tables: StreamTables, flow_id: int) -> int:
    """Return the step at which a shard of a flow may begin again: the lowest of them, held or
    not; 0 if shards are missing, which may begin anywhere.
    """
    return await connection.scalar(select(frontier_of(tables, flow_id, column="version"))) or 0


async def first_needed_step(connection: AsyncConnection, tables: StreamTables, flow_id: int) -> int:
    """Return the first step of a flow whose rows may be read again: by a shard, or by a consumer
    that asks for the inputs of what it has not acknowledged.
    """
    cursors, outputs = tables.cursors.c, tables.outputs.c
    # Of an output without new results a consumer needs nothing, however long ago it read.
    unread = select(func.min(outputs.step)).where(
        outputs.flow_id == cursors.flow_id,
        outputs.output == cursors.output,
        outputs.step > cursors.step,
    )
    behind = select(unread.scalar_subquery().label("step")).where(
        cursors.flow_id == flow_id, cursors.consumer != DISCARDED
    )
    version = await lowest_version(connection, tables, flow_id)
    first = await connection.scalar(select(func.min(behind.subquery().c.step)))
    return version if first is None else min(version, first)


async def first_kept_result(
    connection: AsyncConnection, tables: StreamTables, flow_id: int
) -> int | None:
    """Return the first step of which a flow keeps results; None if there are none."""
    outputs = tables.outputs.c
    found = select(func.min(outputs.step)).where(outputs.flow_id == flow_id)
    first: int | None = await connection.scalar(found)
    return first


async def first_needed_position(
    connection: AsyncConnection, tables: StreamTables, source: str
) -> int | None:
    """Return the first position of a source that a flow may read again; None if none reads it."""
    return min((await needed_positions(connection, tables, source)).values(), default=None)


async def needed_positions(
    connection: AsyncConnection, tables: StreamTables, source: str
) -> dict[str, int]:
    """Return the first position of a source that each flow which reads it may read again, by the
    name of the flow.
    """
    flows, steps = tables.flows.c, tables.steps.c
    needed = {}
    found = select(flows.id, flows.name, flows.upto).order_by(flows.name)
    for flow_id, name, upto in (await connection.execute(found)).all():
        if source not in upto:
            continue
        first = await first_needed_step(connection, tables, flow_id)
        before = select(steps.upto).where(steps.flow_id == flow_id, steps.step == first - 1)
        reached = await connection.scalar(before)
        # Where that is not known, nothing may go.
        needed[name] = 0 if reached is None else reached[source] + 1
    return needed
