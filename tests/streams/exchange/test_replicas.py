"""A ledger on several replicas: shards move, are split and joined, and leases are lost, while
transfers come.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from rowlock.streams import Checkpoint
from rowlock.testing import TemporaryDatabase

from .ledger import Ledger, open_ledger, until

pytestmark = pytest.mark.either_database


async def holders(ledger: Ledger) -> list[int]:
    rows = [row for row in await ledger.shards() if row.lock_token is not None]
    return sorted(Counter(row.replica for row in rows).values())


async def test_a_new_replica_takes_its_share(database: TemporaryDatabase) -> None:
    """A posting would be lost between two replicas, or they would wait for each other for ever."""
    ledger = await open_ledger(database, shards=8, checkpoint=Checkpoint(steps=1))
    async with ledger.replicas():
        await ledger.transfer_some(200)
        async with ledger.replicas():
            await ledger.transfer_some(200)
            await until(lambda: is_shared(ledger, [4, 4]))
            await ledger.transfer_some(200)
            await ledger.wait_for_end()
        # What the second one had comes back.
        await ledger.transfer_some(200)
        await until(lambda: is_shared(ledger, [8]))
        await ledger.wait_for_end()
        await ledger.check()
    await ledger.check_states()


async def is_shared(ledger: Ledger, numbers: list[int]) -> bool:
    return await holders(ledger) == numbers


async def test_shards_are_split_and_joined_under_load(database: TemporaryDatabase) -> None:
    """A posting would be lost where ranges change, or the change would wait for quiet times."""
    ledger = await open_ledger(database, shards=2, checkpoint=Checkpoint(steps=7))
    async with ledger.replicas(2):
        await ledger.wait_for_end()
        for wanted in (8, 1, 4):
            is_over = asyncio.Event()
            load = asyncio.create_task(keep_going(ledger, is_over))
            async with ledger.sessions.begin() as session:
                await ledger.flow.reshard(session, wanted)
            await until(lambda wanted=wanted: are_so_many(ledger, wanted))
            is_over.set()
            await load
            await ledger.wait_for_end()
        await ledger.check()
    await ledger.check_states()


async def keep_going(ledger: Ledger, is_over: asyncio.Event) -> None:
    while not is_over.is_set():
        await ledger.transfer_some(5)


async def are_so_many(ledger: Ledger, wanted: int) -> bool:
    """Whether there are so many shards, all of one width."""
    rows = await ledger.shards()
    return len(rows) == wanted and len({row.hi - row.lo for row in rows}) == 1


@pytest.mark.parametrize(("steps", "replicas"), [(1, 2), (7, 1)])
async def test_lost_leases_change_nothing(
    database: TemporaryDatabase, steps: int, replicas: int
) -> None:
    """What was in memory would be lost with a lease, or be counted twice."""
    ledger = await open_ledger(database, checkpoint=Checkpoint(steps=steps))
    async with ledger.replicas(replicas):
        for lows in ((0,), (1 << 14, 1 << 15), (3 << 14,), ()):
            await ledger.transfer_some(120)
            await ledger.wait_for_end()
            await ledger.lose(*lows)
            await ledger.transfer_some(40)
            await ledger.lose(0)
        await ledger.wait_for_end()
        await ledger.check()
    await ledger.check_states()
