"""Deletes messages that no shard can need any more.

A shard that is opened anew begins at its version and needs the messages of all steps from there on,
so these are kept until the version of each shard is above their step; what a shard does next, its
`step`, says nothing about that.
"""

from __future__ import annotations

from sqlalchemy import Table, delete, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection


async def delete_messages(
    connection: AsyncConnection, table: Table, flow_id: int, *, below: int, limit: int
) -> int:
    """Delete messages of steps below `below`, `limit` rows at most, and return how many there were;
    joins the caller's transaction.

    Args:
        connection: in a transaction.
        table: of the messages.
        flow_id: whose they are.
        below: the lowest version of all shards, held or not, as it was read in this
            transaction or before.
        limit: most rows that are deleted.
    """
    own = table.c
    key = (own.step, own.stage, own.lo, own.to_lo)
    gone = select(*key).where(own.flow_id == flow_id, own.step < below).limit(limit)
    result = await connection.execute(
        delete(table).where(own.flow_id == flow_id, tuple_(*key).in_(gone))
    )
    return result.rowcount
