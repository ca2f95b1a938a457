"""Which process of an example holds how many shards of a flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowlock.streams import StreamFlow

from .child import Child
from .database import Sessions
from .server import Server


async def shards_held(
    flow: StreamFlow[Any], sessions: Sessions, replicas: Sequence[Child | Server]
) -> list[int]:
    """Return how many shards each process has; a replica's name ends with its pid."""
    async with sessions() as session:
        status = await flow.status(session)
    names = [shard.replica or "" for shard in status.shards]
    return [sum(name.endswith(f":{each.process.pid}") for name in names) for each in replicas]
