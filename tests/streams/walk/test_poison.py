"""Steps that fail: tried again, and their shard parked while the others go on."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import update

from rowlock import PipelineManager
from rowlock.streams import StreamStatus
from rowlock.streams.computing.handlers import StepContext
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.cut_plan import Checkpoint
from rowlock.testing import TemporaryDatabase

from .flows import Bank, add_up, open_bank
from .payments import MEANT, Paid, pay
from .waiting import FAST, is_at_end, until

pytestmark = pytest.mark.either_database

RETRIES = {"retry_delay": 0.01, "retry_delay_max": 0.02}


async def parked(bank: Bank) -> list[str]:
    return [row.last_error for row in await bank.shards() if row.parked_at is not None]


async def test_a_shard_that_fails_is_parked_and_the_others_go_on(
    database: TemporaryDatabase,
) -> None:
    """One event would stop a flow, or be tried for ever; or what it did would be written."""
    bank = await open_bank(database, failures_max=3, **FAST, **RETRIES)
    attempts = []
    is_broken = True

    @bank.flow.by_key(state=int)
    def add(step: StepContext, key: str, balance: int | None, events: list[Paid]) -> int:
        if key == "bad" and is_broken:
            attempts.append(step.number)
            raise LookupError("no such account")
        return (balance or 0) + sum(event.cents for event in events)

    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await pay(bank.sessions, bank.payment, [("bad", 1)])
        bank.paid["bad"] += 1
        await bank.pay(200)

        async def is_parked() -> bool:
            return bool(await parked(bank))

        await until(is_parked)
        (text,) = await parked(bank)
        assert "no such account" in text
        assert "'bad'" in text
        assert len(attempts) == 3
        assert len(set(attempts)) == 1
        lo = next(row.lo for row in await bank.shards() if row.parked_at is not None)

        async def do_the_others_go_on() -> bool:
            row = await bank.flow_row()
            steps = {one.step for one in await bank.shards() if one.lo != lo}
            return row.upto["payments"] >= 201 and steps == {row.next_step}

        await until(do_the_others_go_on)
        is_broken = False
        async with bank.sessions.begin() as session:
            assert await bank.flow.unpark(session) == 1
        await until(partial(is_at_end, bank))
        # Also where the replica dies then, and the shard is free: it fails no more.
        assert [row.last_error for row in await bank.shards()] == [None] * 4
    assert await bank.balances() == bank.paid


async def test_a_replay_that_comes_out_otherwise_parks_its_shard(
    database: TemporaryDatabase,
) -> None:
    """A row that was changed after its step would be counted as it is now, without a word."""
    bank = await open_bank(database, checkpoint=Checkpoint(steps=1000), **FAST)
    add_up(bank)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await pay(bank.sessions, bank.payment, [("one", 1), ("two", 2)])
        await until(partial(is_at_end, bank))
        async with bank.sessions.begin() as session:
            await session.execute(
                update(bank.payment)
                .execution_options(**MEANT)
                .values(cents=5)
                .where(bank.payment.cents == 1)
            )
            shards = bank.streams.tables.shards
            free = {"lock_token": None, "lock_owner": None, "lock_expires_at": None}
            await session.execute(update(shards).values(free))

        async def is_parked() -> bool:
            return bool(await parked(bank))

        await until(is_parked)
        (text,) = await parked(bank)
        assert "its replay came out otherwise" in text
        assert "the flow 'balances', shard " in text
        assert "over payments" in text
        assert "replay-mismatch-error" in text
        (row,) = [row for row in await bank.shards() if row.parked_at is not None]
        assert row.lo <= bucket_of("one") < row.hi


async def test_what_parks_all_shards_is_told(database: TemporaryDatabase) -> None:
    """An operator would start replicas, and none of them would hold a shard that is parked."""
    bank = await open_bank(database, checkpoint=Checkpoint(steps=1000), **FAST)
    add_up(bank)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await bank.pay(40)
        await until(partial(is_at_end, bank))
        async with bank.sessions.begin() as session:
            await session.execute(
                update(bank.payment).execution_options(**MEANT).values(cents=bank.payment.cents + 1)
            )
            shards = bank.streams.tables.shards
            free = {"lock_token": None, "lock_owner": None, "lock_expires_at": None}
            await session.execute(update(shards).values(free))

        async def are_parked() -> bool:
            return len(await parked(bank)) == 4

        await until(are_parked)
    before = await status(bank)
    await bank.pay(1)
    for found in (before, await status(bank)):
        for text in (found.text, *(one.text or "" for one in found.shards)):
            assert "is parked at step" in text
            assert "its replay came out otherwise" in text
        assert "and 3 more are parked" in found.text
        assert all(one.is_parked and one.error for one in found.shards)
    async with bank.sessions.begin() as session:
        await session.execute(
            update(bank.payment)
            .execution_options(**MEANT)
            .values(cents=bank.payment.cents - 1)
            .where(bank.payment.position <= 40)
        )
        assert await bank.flow.unpark(session) == 4
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await until(partial(is_at_end, bank))
    assert await bank.balances() == bank.paid


async def status(bank: Bank) -> StreamStatus:
    async with bank.sessions() as session:
        return await bank.flow.status(session)
