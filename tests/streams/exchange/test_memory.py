"""Messages that stay in memory: all shards take part, and write what follows, or none does."""

from __future__ import annotations

import pytest

from rowlock.stream_errors import ShardStateError
from rowlock.streams import Checkpoint
from rowlock.streams.computing.hashing import BUCKETS, BucketRange, bucket_of
from rowlock.streams.exchanging import MemoryExchange, are_complete
from rowlock.streams.shards.states import Run, StepFailures
from rowlock.streams.shards.steps import may_stay_in_memory
from rowlock.testing import TemporaryDatabase

from .by_hand import by_hand, go_on, in_memory, steps_of
from .chain import declare_chain
from .ledger import open_ledger

pytestmark = pytest.mark.either_database(
    but=["test_what_the_database_refuses_is_written_by_nobody"]
)

LOWER, UPPER = 0, BUCKETS // 2
"""Where two shards begin."""
SEVEN = Checkpoint(steps=7)


async def test_who_leaves_writes_with_all_that_shared_its_memory(
    database: TemporaryDatabase,
) -> None:
    """The others could not be opened anew: nobody would have the messages of the one that left."""
    ledger = await open_ledger(database, shards=2, checkpoint=SEVEN)
    async with by_hand(ledger, 2) as (one, other):
        await one.claim(LOWER, UPPER)
        await in_memory(ledger, one, steps=3)
        one.give_away(UPPER)
        await go_on(one)
        assert list(one.shards) == [LOWER]
        assert await steps_of(ledger) == [(3, 3), (3, 3)]
        await other.claim(UPPER)
        await ledger.lose(LOWER)
        await one.claim(LOWER)
        await ledger.transfer_some(40)
        await go_on(one, other)
        assert [step for step, _ in await steps_of(ledger)] == [4, 4]
        await ledger.check()


async def test_messages_have_no_place_in_the_memory_of_some(database: TemporaryDatabase) -> None:
    """Messages would be given to shards that are not there."""
    ledger = await open_ledger(database, shards=2)
    async with by_hand(ledger, 2) as (one, other):
        await one.claim(LOWER)
        await other.claim(UPPER)
        await one.until_stuck()
        await other.until_stuck()
        lower, upper = one.shards[LOWER], other.shards[UPPER]
        MemoryExchange([lower, upper])
        with pytest.raises(ShardStateError, match="cannot stay in memory"):
            MemoryExchange([lower])
        assert may_stay_in_memory([lower, upper])
        assert not may_stay_in_memory([lower])
        assert not may_stay_in_memory([lower, upper], memory_from=1)
        lower.failures = StepFailures(1, 0)
        assert not may_stay_in_memory([lower, upper])
        lower.failures = StepFailures()
        lower.state = Run(1, 1)
        assert not may_stay_in_memory([lower, upper])
        with pytest.raises(ShardStateError, match="cannot stay in memory"):
            MemoryExchange([lower, upper])


def test_messages_from_two_layouts_are_an_error() -> None:
    """Messages that came twice would be counted twice, without a word."""
    all_ = BucketRange(0, BUCKETS)
    lower, upper = all_.halves
    assert are_complete([all_])
    assert are_complete([lower, upper, lower])
    assert not are_complete([lower])
    with pytest.raises(ShardStateError, match="came twice"):
        are_complete([all_, lower])


async def test_what_fails_in_memory_is_written_by_nobody(database: TemporaryDatabase) -> None:
    """The others would go on, and who does the failed step again wait for their messages."""
    ledger = await open_ledger(database, shards=2)
    async with by_hand(ledger) as (one,):
        await one.claim(LOWER, UPPER)
        ledger.broken["a7"] = 0
        await ledger.transfer_some(40)
        bad = LOWER if bucket_of("a7") < UPPER else UPPER
        await one.until(lambda: bad not in one.shards)
        assert await steps_of(ledger) == [(0, 0), (0, 0)]
        assert await ledger.rows("outputs") == []
        # The other one does it through the database now, and waits for nobody's memory.
        await one.until_stuck()
        ledger.broken.clear()
        await ledger.make_due()
        await one.claim(bad)
        await go_on(one)
        assert await steps_of(ledger) == [(1, 1), (1, 1)]
        await ledger.check()


async def test_what_the_database_refuses_is_written_by_nobody(database: TemporaryDatabase) -> None:
    """The others would be written one by one, and one that is lost meanwhile be left behind."""
    ledger = await open_ledger(database, shards=2)
    async with by_hand(ledger) as (one,):
        await one.claim(LOWER, UPPER)
        ledger.unstorable.add("a7")
        await ledger.transfer_some(40)
        bad = LOWER if bucket_of("a7") < UPPER else UPPER
        await one.until(lambda: bad not in one.shards)
        # It was found once what it sends was recorded, for whoever takes it over.
        assert {row.step for row in await ledger.rows("exchange")} == {0}
        ledger.unstorable.clear()
        await ledger.make_due()
        await one.claim(bad)
        await ledger.transfer_some(40)
        await go_on(one)
        assert await steps_of(ledger) == [(2, 2), (2, 2)]
        await ledger.check()


async def test_states_behind_different_steps_are_not_written_together(
    database: TemporaryDatabase,
) -> None:
    """A version would have the states of an earlier step, and a posting be lost."""
    ledger = await open_ledger(database, shards=2, checkpoint=SEVEN)
    async with by_hand(ledger, 4) as (one, other, third, fourth):
        await one.claim(LOWER)
        await other.claim(UPPER)
        for _ in range(2):
            await ledger.transfer_some(40)
            await go_on(one, other)
        await ledger.transfer_some(40)
        await one.until_stuck()
        await other.until_stuck()
        assert await steps_of(ledger) == [(2, 0), (3, 0)]
        await ledger.lose(LOWER, UPPER)
        await third.claim(LOWER, UPPER)
        await third.until(
            lambda: all(shard.is_open and shard.at == 2 for shard in third.shards.values())
        )
        third.give_away(LOWER)
        await third.until(lambda: LOWER not in third.shards)
        assert await steps_of(ledger) == [(2, 2), (3, 0)]
        await fourth.claim(LOWER)
        await ledger.transfer_some(40)
        await go_on(third, fourth)
        assert [step for step, _ in await steps_of(ledger)] == [4, 4]
        await ledger.check()


async def test_steps_go_one_by_one_through_the_database(database: TemporaryDatabase) -> None:
    """With three stages, two replicas that begin other steps at once would wait for each other."""
    ledger = await open_ledger(database)
    flow = declare_chain(ledger, "chain", shards=2, step_rows_max=40)
    async with by_hand(ledger, 2, flow=flow) as (one, other):
        await one.claim(LOWER)
        await other.claim(UPPER)
        await ledger.transfer_some(40)
        # This one begins the first step alone, the other one has three before it.
        await one.until_stuck()
        for _ in range(2):
            await ledger.transfer_some(40)
            await one.cut()
        await go_on(other, one)
        assert [step for step, _ in await steps_of(ledger)] == [3, 3]
