"""A replica whose view of its shards is out of date, or that is amid a replay: it changes nothing
that it does not know.
"""

from __future__ import annotations

import pytest
from sqlalchemy import update

from rowlock.streams import Checkpoint
from rowlock.streams.computing.hashing import BUCKETS
from rowlock.streams.shards.dividing import Dividing
from rowlock.streams.shards.replicas import OwnShard
from rowlock.testing import TemporaryDatabase

from .by_hand import by_hand, go_on, steps_of
from .ledger import Ledger, open_ledger

pytestmark = pytest.mark.either_database

LOWER, UPPER = 0, BUCKETS // 2
"""Where two shards begin."""
SEVEN = Checkpoint(steps=7)


async def rewrite(ledger: Ledger, lo: int, **values: int) -> None:
    """Write the row of a shard, and leave its lease as it is."""
    shards = ledger.streams.tables.shards
    async with ledger.sessions.begin() as session:
        await session.execute(update(shards).where(shards.c.lo == lo).values(values))


@pytest.mark.parametrize("values", [{"step": 2}, {"version": 0}], ids=str)
async def test_no_split_of_what_is_known_wrongly(
    database: TemporaryDatabase, values: dict[str, int]
) -> None:
    """The upper half would begin at a step that its buckets are not at, or with other states."""
    ledger = await open_ledger(database, shards=1)
    async with by_hand(ledger) as (one,):
        await one.claim(LOWER)
        await ledger.transfer_some(40)
        await go_on(one)
        assert await steps_of(ledger) == [(1, 1)]
        await rewrite(ledger, LOWER, **values)
        one.wants(2)
        await one.round()
        assert len(await ledger.shards()) == 1
        assert not one.shards[LOWER].is_open


async def test_a_half_is_hinted_though_the_answer_is_lost(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the upper half would wait until replicas look around, which they do less often the
    calmer it is.
    """
    ledger = await open_ledger(database, shards=1)
    split, hints = Dividing.split, []

    async def and_lose_the_answer(self: Dividing, shard: OwnShard) -> bool:
        await split(self, shard)
        raise ConnectionResetError("the answer is lost")

    monkeypatch.setattr(Dividing, "split", and_lose_the_answer)
    async with by_hand(ledger) as (one,):
        one.hinter.attach(ledger.flow.program.shards_topic, lambda: hints.append("claim"))
        await one.claim(LOWER)
        one.wants(2)
        with pytest.raises(ConnectionResetError):
            await one.round()
        assert hints == ["claim"]
        assert len(await ledger.shards()) == 2


async def test_nothing_is_sent_of_another_step(database: TemporaryDatabase) -> None:
    """The others would go on with messages that nobody stands by."""
    ledger = await open_ledger(database, shards=2)
    async with by_hand(ledger) as (one,):
        await one.claim(LOWER)
        await one.round()
        await ledger.transfer_some(40)
        await one.cut()
        await rewrite(ledger, LOWER, step=1)
        await one.round()
        assert await ledger.rows("exchange") == []
        assert not one.shards[LOWER].is_open


async def test_who_does_not_trust_its_lease_does_nothing(database: TemporaryDatabase) -> None:
    """A step would be computed for a lease that may be another replica's by then."""
    ledger = await open_ledger(database, shards=2, checkpoint=SEVEN)
    async with by_hand(ledger) as (one,):
        await one.claim(LOWER, UPPER)
        await ledger.transfer_some(40)
        await go_on(one)
        one.shards[UPPER].item.trusted_until = float("-inf")
        await one.round()
        assert [one.shards[lo].is_open for lo in (LOWER, UPPER)] == [True, False]
