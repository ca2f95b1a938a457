"""A shard that is slow, and one that is parked, beside one that is neither."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import select, update

from rowlock import database_now
from rowlock.streams.computing.hashing import BUCKETS
from rowlock.testing import TemporaryDatabase

from ..exchange.by_hand import by_hand
from .flows import Bank, add_up, open_bank

LOWER, UPPER = 0, BUCKETS // 2
"""Where two shards begin."""
AHEAD_MAX = 3
FREE = {"lock_token": None, "lock_owner": None, "lock_expires_at": None}


async def rows_of_steps(bank: Bank) -> list[int]:
    """Return how many payments each step has."""
    steps = bank.streams.tables.steps
    async with bank.sessions() as session:
        uptos = list(await session.scalars(select(steps.c.upto).order_by(steps.c.step)))
    return [after["payments"] - before["payments"] for before, after in pairwise(uptos)]


async def test_a_slow_shard_makes_steps_longer(database: TemporaryDatabase) -> None:
    """Steps would be cut a payment at a time while one shard is slow, which then does each of them
    in a transaction of its own.
    """
    bank: Any = await open_bank(database, shards=2, steps_ahead_max=AHEAD_MAX)
    add_up(bank)
    async with by_hand(bank, 2) as (one, slow):
        await one.claim(LOWER)
        await slow.claim(UPPER)
        for _ in range(AHEAD_MAX + 4):
            await bank.pay(5)
            await one.until_stuck()
        assert await rows_of_steps(bank) == [5] * AHEAD_MAX
        assert [row.step for row in await bank.shards()] == [AHEAD_MAX, 0]
        await slow.until_stuck()
        await one.until_stuck()
        assert await rows_of_steps(bank) == [5] * AHEAD_MAX + [20]


@pytest.mark.parametrize("lease", [{}, FREE], ids=["held", "free"])
async def test_a_parked_shard_does_not_hold_back_the_cut(
    database: TemporaryDatabase, lease: dict[str, None]
) -> None:
    """One event that cannot be handled would stop the whole flow."""
    bank: Any = await open_bank(database, shards=2, steps_ahead_max=AHEAD_MAX)
    add_up(bank)
    async with by_hand(bank, 2) as (one, other):
        await one.claim(LOWER)
        await other.claim(UPPER)
        shards = bank.streams.tables.shards
        parked = update(shards).where(shards.c.lo == UPPER).values(parked_at=database_now())
        async with bank.sessions.begin() as session:
            await session.execute(parked.values(lease))
        for _ in range(AHEAD_MAX + 4):
            await bank.pay(5)
            await one.until_stuck()
        assert await rows_of_steps(bank) == [5] * (AHEAD_MAX + 4)
        assert [row.step for row in await bank.shards()] == [AHEAD_MAX + 4, 0]
