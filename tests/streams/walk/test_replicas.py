"""Two replicas of a flow, as two managers in one process, on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from rowlock import PipelineManager
from rowlock.streams.cut_plan import Checkpoint
from rowlock.testing import TemporaryDatabase

from .flows import add_up, open_bank
from .waiting import FAST, is_at_end, until

pytestmark = pytest.mark.either_database


@pytest.mark.parametrize("steps", [1, 1000])
async def test_a_lost_lease_changes_nothing(database: TemporaryDatabase, steps: int) -> None:
    """Whoever lost its lease would write on, or what it had in memory would be lost with it."""
    bank = await open_bank(database, checkpoint=Checkpoint(steps=steps), **FAST)
    add_up(bank)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        for _ in range(4):
            await bank.pay(100)
            await until(lambda: is_at_end(bank))
            # As if the lease had run out and nobody had taken the row yet.
            shards = bank.streams.tables.shards
            async with bank.sessions.begin() as session:
                taken = update(shards).where(shards.c.lo >= 1 << 15)
                free = {"lock_token": None, "lock_owner": None, "lock_expires_at": None}
                await session.execute(taken.values(free))
        await bank.pay(100)
        await until(lambda: is_at_end(bank))
    assert await bank.balances() == bank.paid
    last = {key: value for _, key, value in await bank.results()}
    assert last == bank.paid
    assert len(await bank.results()) == len({(step, key) for step, key, _ in await bank.results()})
