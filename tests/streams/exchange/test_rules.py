"""What holds while shards send each other messages: each rule in a scene of its own, round by
round.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from rowlock.stream_errors import ShardStateError
from rowlock.streams import Checkpoint, coordinator
from rowlock.streams.computing.hashing import BUCKETS, BucketRange
from rowlock.streams.coordinator import Expiry
from rowlock.streams.exchanging import are_complete
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.streams.shards.runner import Left
from rowlock.testing import TemporaryDatabase, run_until_settled

from ...lengths import at_length
from ..walk.flows import lose_leases
from .by_hand import by_hand, go_on, steps_of
from .chain import declare_chain
from .ledger import open_ledger

pytestmark = pytest.mark.either_database(but=["test_each_transfer_is_posted_twice"])

LOWER, UPPER = 0, BUCKETS // 2
"""Where two shards begin."""
SEVEN = Checkpoint(steps=7)
HOUR = timedelta(hours=1)


async def test_messages_are_read_once_all_have_sent(database: TemporaryDatabase) -> None:
    """Postings of a shard that is slower would be left out, and the step written without them."""
    ledger = await open_ledger(database, shards=2)
    async with by_hand(ledger, 2) as (one, other):
        await one.claim(LOWER)
        await other.claim(UPPER)
        await ledger.transfer_some(40)
        assert await one.until_stuck() is Left.MESSAGES
        assert await steps_of(ledger) == [(0, 0), (0, 0)]
        assert await ledger.rows("outputs") == []
        await go_on(other, one)
        assert await steps_of(ledger) == [(1, 1), (1, 1)]
        await ledger.check()


async def test_who_waits_and_for_whom(database: TemporaryDatabase) -> None:
    """A shard that waits for another one would be called busy, and an operator look at the wrong
    replica.
    """
    ledger = await open_ledger(database, shards=4)
    second, last = BUCKETS // 4, 3 * BUCKETS // 4
    async with by_hand(ledger, 2) as (one, other):
        await one.claim(LOWER, UPPER)
        await other.claim(second, last)
        await ledger.transfer_some(40)
        await one.until_stuck()
        waits = (
            "shards wait in step 0 at stage 'postings' for 2 shards, of which the first has"
            " buckets 16384..32768"
        )
        async with ledger.sessions() as session:
            found = await ledger.flow.status(session)
        assert found.text == waits
        first, awaited, *_ = [shard.text or "" for shard in found.shards]
        assert first == waits
        assert "16384..32768 is busy with step 0" in awaited
        await lose_leases(ledger, second, last)
        async with ledger.sessions() as session:
            found = await ledger.flow.status(session)
        assert found.text.startswith("no replica holds 2 shards")
        assert found.shards[0].text == found.text
        await other.claim(second, last)
        await go_on(other, one)
        await ledger.check()


async def test_a_replica_claims_while_it_waits(database: TemporaryDatabase) -> None:
    """A replica would wait for the messages of a shard that is its own to claim, for ever."""
    ledger = await open_ledger(database, shards=2)
    async with by_hand(ledger) as (one,):
        await one.claim(LOWER)
        await ledger.transfer_some(40)
        assert await one.until_stuck() is Left.MESSAGES
        await one.claim(UPPER)
        await go_on(one)
        assert await steps_of(ledger) == [(1, 1), (1, 1)]
        await ledger.check()


async def test_a_range_that_has_sent_is_not_split(database: TemporaryDatabase) -> None:
    """Its halves would send the same again, also where another holder has it by then."""
    ledger = await open_ledger(database, shards=2)
    async with by_hand(ledger, 2) as (one, other):
        await one.claim(LOWER)
        await other.claim(UPPER)
        await ledger.transfer_some(40)
        await one.until_stuck()
        await lose_leases(ledger, LOWER)
        await one.claim(LOWER)
        one.wants(4)
        await one.until_stuck()
        assert len(await ledger.shards()) == 2
        await go_on(one, other)
        # Behind the step it is split; its upper half waits for somebody.
        assert len(await ledger.shards()) == 3
        await one.claim(BUCKETS // 4)
        await ledger.transfer_some(80)
        await go_on(one, other)
        await ledger.check()


async def test_siblings_that_have_sent_are_not_joined(database: TemporaryDatabase) -> None:
    """Together they would send the same again."""
    ledger = await open_ledger(database, shards=4)
    async with by_hand(ledger, 2) as (one, other):
        await one.claim(LOWER, BUCKETS // 4)
        await other.claim(UPPER, 3 * BUCKETS // 4)
        await ledger.transfer_some(40)
        await one.until_stuck()
        await lose_leases(ledger, LOWER, BUCKETS // 4)
        await one.claim(LOWER, BUCKETS // 4)
        one.wants(2)
        await one.until_stuck()
        assert len(await ledger.shards()) == 4
        await go_on(one, other)
        assert len(await ledger.shards()) == 3
        await ledger.transfer_some(80)
        await go_on(one, other)
        await ledger.check()


async def test_a_shard_recovers_without_the_others(database: TemporaryDatabase) -> None:
    """A dead shard would have all others do their steps again, though its messages are recorded."""
    ledger = await open_ledger(database, shards=2, checkpoint=SEVEN)
    async with by_hand(ledger, 3) as (one, other, third):
        await one.claim(LOWER)
        await other.claim(UPPER)
        for _ in range(3):
            await ledger.transfer_some(40)
            await go_on(one, other)
        await lose_leases(ledger, UPPER)
        await third.claim(UPPER)
        await third.until_stuck()
        shard = third.shards[UPPER]
        assert (shard.at, shard.step, shard.version) == (3, 3, 0)
        assert one.shards[LOWER].at == 3
        await ledger.transfer_some(40)
        await go_on(one, third)
        await ledger.check()


async def test_a_shard_that_lags_catches_up(database: TemporaryDatabase) -> None:
    """Shards at two steps would give each other messages of different steps."""
    ledger = await open_ledger(database, shards=2)
    async with by_hand(ledger, 2) as (one, other):
        await one.claim(LOWER)
        await other.claim(UPPER)
        await ledger.transfer_some(40)
        # The other one sends, and is lost before it has written its step.
        assert await other.until_stuck() is Left.MESSAGES
        await lose_leases(ledger, UPPER)
        await one.until_stuck()
        assert [step for step, _ in await steps_of(ledger)] == [1, 0]
        await one.claim(UPPER)
        await ledger.transfer_some(40)
        await go_on(one)
        assert [step for step, _ in await steps_of(ledger)] == [2, 2]
        assert {row.step for row in await ledger.rows("exchange")} == {0, 1}
        await ledger.check()


async def test_who_leaves_waits_for_nobody(database: TemporaryDatabase) -> None:
    """Two replicas that shut down at once would wait for each other until they are killed."""
    ledger = await open_ledger(database, shards=2, checkpoint=SEVEN)
    async with by_hand(ledger, 3) as (one, other, third):
        await one.claim(LOWER)
        await other.claim(UPPER)
        await ledger.transfer_some(40)
        await go_on(one, other)
        await ledger.transfer_some(40)
        assert await one.until_stuck() is Left.MESSAGES
        one.give_away(LOWER)
        await one.until_stuck()
        assert one.shards == {}
        # What it has done of the step is left out, and what it did before is written.
        assert await steps_of(ledger) == [(1, 1), (1, 0)]
        await third.claim(LOWER)
        await go_on(third, other)
        await ledger.check()


async def test_who_leaves_in_a_replay_waits_for_nobody(database: TemporaryDatabase) -> None:
    """As above, while it does again what was written; or states of an earlier step be written as
    those of the row's.
    """
    ledger = await open_ledger(database, shards=2, checkpoint=SEVEN)
    async with by_hand(ledger, 2) as (one, other):
        await one.claim(LOWER, UPPER)
        for _ in range(2):
            await ledger.transfer_some(40)
            await go_on(one)
        assert await steps_of(ledger) == [(2, 0), (2, 0)]
        await lose_leases(ledger, LOWER, UPPER)
        await other.claim(LOWER)
        await other.round()
        other.give_away(LOWER)
        await other.until_stuck()
        assert other.shards == {}
        assert await steps_of(ledger) == [(2, 2), (2, 0)]
        await other.claim(LOWER, UPPER)
        await go_on(other)
        await ledger.check()


async def test_nothing_is_sent_without_the_lease(database: TemporaryDatabase) -> None:
    """A holder that was frozen past its lease would send beside the next one, other messages."""
    ledger = await open_ledger(database, shards=2)
    async with by_hand(ledger, 2) as (one, other):
        await one.claim(LOWER)
        await other.claim(UPPER)
        await ledger.transfer_some(40)
        await one.round()
        await lose_leases(ledger, LOWER)
        await one.until_stuck()
        assert await ledger.rows("exchange") == []
        await one.claim(LOWER)
        await go_on(one, other)
        await ledger.check()


async def test_a_shard_that_would_send_something_else_is_parked(
    database: TemporaryDatabase,
) -> None:
    """The others would have worked with messages that nobody has sent."""
    ledger = await open_ledger(database, shards=2)
    async with by_hand(ledger, 2) as (one, other):
        await one.claim(LOWER)
        await other.claim(UPPER)
        await ledger.transfer_some(40)
        await one.until_stuck()
        await lose_leases(ledger, LOWER)
        ledger.fee = 1
        await one.claim(LOWER)
        await go_on(one)
        ledger.fee = 0
        await go_on(one, other)
        (row,) = [row for row in await ledger.shards() if row.parked_at is not None]
        assert row.lo == LOWER
        assert "the messages to 'postings' have the digest" in row.last_error
        assert await steps_of(ledger) == [(0, 0), (1, 1)]
        # What was sent stands, so the other one has done its part.
        async with ledger.sessions.begin() as session:
            assert await ledger.flow.unpark(session) == 1
        await one.claim(LOWER)
        await go_on(one, other)
        await ledger.check()


async def test_messages_are_deleted_that_nobody_needs(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table would grow for ever; or a shard that begins anew find its messages gone."""
    ledger = await open_ledger(database, shards=2, checkpoint=SEVEN)
    async with by_hand(ledger, 2) as (one, other):
        await one.claim(LOWER)
        await other.claim(UPPER)
        for _ in range(9):
            await ledger.transfer_some(40)
            await go_on(one, other)
        assert {step for step, _ in await steps_of(ledger)} == {9}
        (version,) = {version for _, version in await steps_of(ledger)}
        assert version == 7
        monkeypatch.setattr(coordinator, "EXPIRY_ROWS_MAX", 7)
        transact = ledger.streams.tables.opened_by(ledger.sessions).transact
        await Expiry(ledger.flow.program, transact, present_for=HOUR).run(goes_on=lambda: True)
        assert {row.step for row in await ledger.rows("exchange")} == {7, 8}
        await lose_leases(ledger, LOWER, UPPER)
        await other.claim(LOWER)
        await one.claim(UPPER)
        await ledger.transfer_some(40)
        await go_on(one, other)
        await ledger.check()


def test_messages_from_two_layouts_are_an_error() -> None:
    """Messages that came twice would be counted twice, without a word."""
    all_ = BucketRange(0, BUCKETS)
    lower, upper = all_.halves
    assert are_complete([all_])
    assert are_complete([lower, upper, lower])
    assert not are_complete([lower])
    with pytest.raises(ShardStateError, match="came twice"):
        are_complete([all_, lower])


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


@pytest.mark.parametrize(("steps", "shards"), at_length([(7, 2)], [(1, 16), (7, 1), (7, 2)]))
async def test_each_transfer_is_posted_twice(
    database: TemporaryDatabase, steps: int, shards: int
) -> None:
    """A posting would be lost, or counted twice, in one of the modes or layouts."""
    ledger = await open_ledger(database, shards=shards, checkpoint=Checkpoint(steps=steps))
    for _ in range(3):
        await ledger.transfer_some(150)
        # Without the coordinator, which deletes messages that no shard needs.
        pipelines = [one for one in ledger.streams.pipelines() if isinstance(one, FlowPipeline)]
        await run_until_settled(ledger.sessions, pipelines)
        # What stops writes its states, in every mode.
        await ledger.check_states()
    await ledger.check()
    row = await ledger.flow_row()
    assert {(one.step, one.version) for one in await ledger.shards()} == {(row.next_step,) * 2}
    assert row.next_step >= 9
