"""What a replica has in memory of its shards is dropped where it may not be what is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import Apply, Fetcher, PipelineManager
from rowlock.streams.computing.handlers import StepContext
from rowlock.streams.computing.hashing import BUCKETS, bucket_of
from rowlock.streams.cut_plan import Checkpoint
from rowlock.streams.cutter import Cutter
from rowlock.streams.shards.steps import ShardDid, StepWrite
from rowlock.streams.shards.writing import StepWriter
from rowlock.testing import TemporaryDatabase, stepping

from ..exchange.by_hand import by_hand
from .flows import FAST, Bank, Paid, add_up, is_at_end, lose_leases, open_bank, pay, until
from .test_steps import known_to

pytestmark = pytest.mark.either_database


@pytest.mark.parametrize("is_written", [False, True])
async def test_states_that_were_not_written_are_read_again(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    """The payments of a step would count twice whose COMMIT has failed, or whose answer was lost:
    its states in memory are as of behind it.
    """
    bank = await open_bank(database, shards=2, **FAST)
    add_up(bank)
    commit, failed = StepWriter.commit, []

    async def once_in_vain(self: StepWriter, writes: Sequence[StepWrite]) -> frozenset[UUID]:
        if not failed:
            failed.append(len(writes))
            if is_written:
                await commit(self, writes)
            raise ConnectionResetError("the answer is lost")
        return await commit(self, writes)

    monkeypatch.setattr(StepWriter, "commit", once_in_vain)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await bank.pay(40)
        await until(partial(is_at_end, bank))
    assert failed
    assert await bank.balances() == bank.paid


async def test_a_shard_that_was_claimed_here_again(database: TemporaryDatabase) -> None:
    """What waits for the former lease would wait for ever, and steps that were under way be done
    for it.
    """
    bank = await open_bank(database, shards=1)
    add_up(bank)
    pipeline = bank.pipeline()
    async with stepping(bank.sessions, pipeline) as steps:
        steps.run.pool.start()
        await steps.fetch_once()
        shards = pipeline.runner.shards

        async def is_open() -> bool:
            return any(shard.is_open for shard in shards.values())

        await until(is_open)
        (former,) = shards.values()
        await lose_leases(bank)
        # It is in no claim of this replica until its loss is noticed.
        steps.run.heartbeater._lose_all(steps.run.heartbeater.tracked())

        async def is_another() -> bool:
            if not steps.run.heartbeater.tracked():
                await Fetcher.fetch_once(steps.run.fetcher, 1)
            return shards.get(former.item.id, former) is not former

        await until(is_another)
        shards[former.item.id].leave(Apply())
        await until(lambda: has_none(shards))


async def has_none(shards: Mapping[Any, Any]) -> bool:
    return not shards


async def test_cuts_that_no_shard_needs_are_forgotten(database: TemporaryDatabase) -> None:
    """All cuts of a flow would stay in memory; and behind a gap each look would read them again
    from there on.
    """
    bank = await open_bank(database, step_rows_max=5)
    add_up(bank)
    async with stepping(bank.sessions, bank.pipeline()) as steps:
        await steps.fetch_once()
        transact = steps.run.context.transact
        await bank.pay(30)
        known = await known_to(bank, steps.run.context)
        cuts = await Cutter(bank.flow.program, transact).cut(known, [])
        assert isinstance(cuts, Sequence)
        assert len(cuts) == 6

        async def look(session: AsyncSession, connection: AsyncConnection) -> None:
            await known.look(connection, first=4)

        await transact(look, purpose="look", writes=False)
    assert [step for step in range(-1, 6) if known.cut(step) is not None] == [3, 4, 5]


async def test_a_snapshot_behind_the_step_that_fails(database: TemporaryDatabase) -> None:
    """A reader would be given the states of an earlier step as those of a snapshot that was cut,
    and that a shard has not done.
    """
    bank = await open_bank(database, shards=2, step_rows_max=1)

    @bank.flow.by_key(state=int)
    def add(step: StepContext, key: str, balance: int | None, events: list[Paid]) -> int:
        if step.number == 1 and key == "bad":
            raise LookupError("no such account")
        return (balance or 0) + sum(event.cents for event in events)

    async with by_hand_of(bank) as (one,):
        lo = BUCKETS // 2 * (bucket_of("bad") >= BUCKETS // 2)
        for key in ("good", "bad"):
            await pay(bank.sessions, bank.payment, [(key, 1)])
            await one.cut()
        flows = bank.streams.tables.flows
        async with bank.sessions.begin() as session:
            await session.execute(update(flows).values(snapshots_requested=1))
        await pay(bank.sessions, bank.payment, [("good", 1)])
        await one.cut()
        await one.claim(0, BUCKETS // 2)
        await one.until(lambda: lo not in one.shards)
        rows = {row.lo: (row.step, row.version, row.snapshot) for row in await bank.shards()}
        other = BUCKETS // 2 - lo
        assert rows == {lo: (1, 1, None), other: (3, 3, 3)}


def by_hand_of(bank: Bank) -> Any:
    """Give a replica of a bank that holds no shard."""
    ledger: Any = bank
    return by_hand(ledger)


async def test_a_replay_hands_out_nothing(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results would be there twice, or the record of a step be that of its replay; or what was in
    memory alone would be lost with the leases.
    """
    bank = await open_bank(database, checkpoint=Checkpoint(steps=1000), **FAST)
    add_up(bank)
    replayed: list[ShardDid] = []
    before = StepWriter.write

    async def write(self: StepWriter, done: Sequence[ShardDid]) -> None:
        replayed.extend(one for one in done if one.is_replay)
        await before(self, done)

    monkeypatch.setattr(StepWriter, "write", write)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await bank.pay(200)
        await until(partial(is_at_end, bank))
        results, parts = await bank.results(), await bank.count("parts")
        await lose_leases(bank)
        await bank.pay(50)
        await until(partial(is_at_end, bank))
    assert sum(one.step - one.steps.cuts[0].step for one in replayed) >= 4
    assert [(one.results, one.parts) for one in replayed] == [({}, [])] * len(replayed)
    after = await bank.results()
    assert after[: len(results)] == results
    assert len({(step, key) for step, key, _ in after}) == len(after)
    assert parts < await bank.count("parts")
    assert await bank.balances() == bank.paid == {key: value for _, key, value in after}
