"""Steps that fail in the second stage: the others wait within the step, until it is done."""

from __future__ import annotations

import pytest

from rowlock.streams import Checkpoint
from rowlock.streams.computing.hashing import bucket_of
from rowlock.testing import TemporaryDatabase

from ...lengths import at_length
from ..walk.flows import until_parked
from .ledger import open_ledger

pytestmark = pytest.mark.either_database(but=["test_results_that_the_database_refuses"])

RETRIES = {"retry_delay": 0.01, "retry_delay_max": 0.02}


@pytest.mark.parametrize(
    ("steps", "replicas"), at_length([(7, 2)], [(1, 1), (1, 2), (7, 1), (7, 2)])
)
async def test_the_others_wait_within_the_step(
    database: TemporaryDatabase, steps: int, replicas: int
) -> None:
    """One account would have a step written in part: money that left one account would be in none,
    or be in one twice once the shard is unparked.
    """
    ledger = await open_ledger(
        database, checkpoint=Checkpoint(steps=steps), failures_max=3, **RETRIES
    )
    async with ledger.replicas(replicas):
        await ledger.transfer_some(60)
        await ledger.wait_for_end()
        ledger.broken["a7"] = (await ledger.flow_row()).next_step
        await ledger.transfer_some(60)

        (text,) = await until_parked(ledger)
        assert "'post' failed for the key 'a7'" in text
        assert "no such account" in text
        (bad,) = [row for row in await ledger.shards() if row.parked_at is not None]
        assert bad.lo <= bucket_of("a7") < bad.hi
        await ledger.transfer_some(60)
        # Those that were further, were it in memory, are nowhere.
        rows = await ledger.rows("outputs")
        assert max(row.step for row in rows) <= bad.failed_step
        ledger.broken.clear()
        async with ledger.sessions.begin() as session:
            assert await ledger.flow.unpark(session) == 1
        await ledger.wait_for_end()
        await ledger.check()
    await ledger.check_states()


@pytest.mark.parametrize("replicas", at_length([1], [1, 2]))
async def test_results_that_the_database_refuses(
    database: TemporaryDatabase, replicas: int
) -> None:
    """One result that cannot be stored would stop all shards, and none would be named."""
    ledger = await open_ledger(database, failures_max=2, checkpoint=Checkpoint(steps=7), **RETRIES)
    async with ledger.replicas(replicas):
        await ledger.transfer_some(40)
        await ledger.wait_for_end()
        ledger.unstorable.add("a7")
        await ledger.transfer_some(60)

        await until_parked(ledger)
        (bad,) = [row for row in await ledger.shards() if row.parked_at is not None]
        assert bad.lo <= bucket_of("a7") < bad.hi
        ledger.unstorable.clear()
        async with ledger.sessions.begin() as session:
            assert await ledger.flow.unpark(session) == 1
        await ledger.wait_for_end()
        await ledger.check()
    await ledger.check_states()
