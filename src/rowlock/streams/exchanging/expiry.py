"""Deletes messages that no shard can need any more.

A shard that is opened anew begins at its version and needs the messages of all steps from there on,
so these are kept until the version of each shard is above their step; what a shard does next, its
`step`, says nothing about that.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Table, delete, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

DELETED_MAX = 5000
"""Most rows that are deleted in one transaction."""


def expirable_below(versions: Iterable[int]) -> int:
    """Return the step below which messages may be deleted.

    Args:
        versions: the versions of all shards of a flow, whoever holds them; of no shards, nothing
            may be deleted.
    """
    return min(versions, default=0)


async def delete_messages(
    connection: AsyncConnection, table: Table, flow_id: int, *, below: int, limit: int = DELETED_MAX
) -> int:
    """Delete messages of steps below `below`, `limit` rows at most, and return how many there were;
    joins the caller's transaction.

    Args:
        connection: in a transaction.
        table: of the messages.
        flow_id: whose they are.
        below: as `expirable_below` says, of versions that were read in this transaction or before.
        limit: most rows that are deleted.
    """
    own = table.c
    key = (own.step, own.stage, own.lo, own.to_lo)
    gone = select(*key).where(own.flow_id == flow_id, own.step < below).limit(limit)
    result = await connection.execute(
        delete(table).where(own.flow_id == flow_id, tuple_(*key).in_(gone))
    )
    return result.rowcount
