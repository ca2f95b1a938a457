"""Replicas of a flow that come and go, and which shards they hold."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from sqlalchemy import select

from rowlock import PipelineManager

from .flows import Bank
from .waiting import until


async def holders(bank: Bank) -> dict[int, Any]:
    return {row.lo: row.replica for row in await bank.shards() if row.lock_token is not None}


async def started(stack: AsyncExitStack, bank: Bank) -> AsyncExitStack:
    """Start a replica, which ends with what is returned, or with `stack`."""
    own = await stack.enter_async_context(AsyncExitStack())
    await own.enter_async_context(PipelineManager(bank.sessions, bank.streams.pipelines()))
    return own


async def is_shared(bank: Bank, replicas: int) -> bool:
    """Whether so many replicas hold as many shards each; one that is claimed and not open yet still
    has the name of the replica before.
    """
    found = await holders(bank)
    table = bank.streams.tables.replicas
    async with bank.sessions() as session:
        there = set(await session.scalars(select(table.c.id)))
    held = Counter(found.values())
    return list(held.values()) == [8 // replicas] * replicas and held.keys() <= there


async def shared(bank: Bank, replicas: int) -> dict[int, Any]:
    """Return the holders once so many replicas hold as many shards each; a shard that has done a
    step since has the name of its holder.
    """
    await until(lambda: is_shared(bank, replicas))
    at = max(row.step for row in await bank.shards())

    async def are_past() -> bool:
        return all(row.step > at for row in await bank.shards()) and await is_shared(bank, replicas)

    await until(are_past)
    return await holders(bank)
