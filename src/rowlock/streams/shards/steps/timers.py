"""Timers of a shard, read from its states."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.own_shard import OwnShard
from rowlock.streams.state.cache import ShardCache
from rowlock.streams.state.store import TIMERS_READ_MAX, StoredTimer, read_timers


async def open_timers(
    connection: AsyncConnection, program: FlowProgram, shard: OwnShard, *, until: Any = None
) -> None:
    """Read the timers of a shard: the earliest, or those up to `until` at least; joins the caller's
    transaction.
    """
    cache: ShardCache = shard.cache
    while True:
        after = cache.timers_read_until
        found: list[StoredTimer] = await read_timers(
            connection, program.tables.state, program.id, ranges=[shard.range], after=after
        )
        for timer in found:
            stage = cache[timer.name]
            # What is newer in memory counts.
            if timer.key not in stage.dirty:
                stage.timers.set(timer.key, timer.at)
        is_all = len(found) < TIMERS_READ_MAX
        cache.timers_read_until = None if is_all else found[-1].at
        if is_all or until is None or found[-1].at > until:
            return
