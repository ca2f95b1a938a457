"""Steps that fail, and rows that no handler can get: their shard is parked while the others go on,
or they are set aside.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import pytest
from sqlalchemy import delete, text, update

from rowlock import PipelineManager
from rowlock.streams import StreamStatus
from rowlock.streams.computing.handlers import StepContext
from rowlock.streams.computing.hashing import BUCKETS, BucketRange, bucket_of
from rowlock.streams.cut_plan import Checkpoint
from rowlock.testing import TemporaryDatabase

from .flows import (
    FAST,
    MEANT,
    Bank,
    Paid,
    add_up,
    is_at_end,
    lose_leases,
    open_bank,
    parked,
    pay,
    until,
    until_parked,
)

pytestmark = pytest.mark.either_database

RETRIES = {"retry_delay": 0.01, "retry_delay_max": 0.02}


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

        (text,) = await until_parked(bank)
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


async def test_what_parks_all_shards_is_told(database: TemporaryDatabase) -> None:
    """A row that was changed after its step would be counted as it is now, without a word; or an
    operator start replicas, and none of them hold a shard that is parked.
    """
    bank = await open_bank(database, checkpoint=Checkpoint(steps=1000), **FAST)
    add_up(bank)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await bank.pay(40)
        await until(partial(is_at_end, bank))
        async with bank.sessions.begin() as session:
            await session.execute(
                update(bank.payment).execution_options(**MEANT).values(cents=bank.payment.cents + 1)
            )
        await lose_leases(bank)
        for error in await until_parked(bank, 4):
            assert "its replay came out otherwise" in error
            assert "the flow 'balances', shard " in error
            assert "over payments" in error
            assert "replay-mismatch-error" in error
    before = await status(bank)
    await bank.pay(1)
    for found in (before, await status(bank)):
        for told in (found.text, *(one.text or "" for one in found.shards)):
            assert "is parked at step" in told
            assert "its replay came out otherwise" in told
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


LOOSE = {
    "sqlite": (
        "DROP TABLE payments",
        "CREATE TABLE payments (position INTEGER PRIMARY KEY AUTOINCREMENT, bucket INTEGER,"
        " account, cents INTEGER NOT NULL)",
    ),
    "postgresql": (
        "ALTER TABLE payments ALTER COLUMN account DROP NOT NULL, ALTER COLUMN account TYPE text",
    ),
}
"""What makes the database take any key."""


async def loose_bank(
    database: TemporaryDatabase, poison: Literal["park", "dead_letter"], shards: int
) -> tuple[Bank, int]:
    """Return a bank with some payments, of which the first ones have no usable key, and how many
    these are.
    """
    bank = await open_bank(database, shards=shards, failures_max=2, **FAST, **RETRIES)

    @bank.flow.by_key(state=int, poison=poison)
    def add(step: StepContext, key: str, balance: int | None, events: list[Paid]) -> int:
        return (balance or 0) + sum(event.cents for event in events)

    keys: list[object] = [None, "k" * 300]
    if database.dialect_name == "sqlite":
        keys += [b"\x00\xff", 2.5]
    insert = text("INSERT INTO payments (account, cents) VALUES (:key, 1)")
    async with bank.sessions.begin() as session:
        for statement in LOOSE[database.dialect_name]:
            await session.execute(text(statement))
        for key in keys:
            await session.execute(insert, {"key": key})
    await bank.pay(60)
    return bank, len(keys)


async def test_a_row_without_a_key_stops_its_own_shard(database: TemporaryDatabase) -> None:
    """One row that a script has written would stop all shards of each replica, for ever."""
    bank, bad = await loose_bank(database, "park", shards=8)
    buckets = {bucket_of(f"position {at} of payments") for at in range(1, bad + 1)}
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):

        async def is_all_but_these() -> bool:
            flow = await bank.flow_row()
            return (
                flow is not None
                and flow.upto["payments"] == 60 + bad
                and all(
                    row.parked_at is not None or row.step == flow.next_step
                    for row in await bank.shards()
                )
            )

        await until(is_all_but_these)
        stopped = [row for row in await bank.shards() if row.parked_at is not None]
        ranges = [BucketRange(row.lo, row.hi) for row in stopped]
        assert all(any(bucket in each for bucket in buckets) for each in ranges)
        assert all(any(bucket in each for each in ranges) for bucket in buckets)
        assert all("of payments has no key" in why for why in await parked(bank))
        # Added anew: another key in the same row would be of a shard that has done the step.
        await pay(bank.sessions, bank.payment, [("mended", 1)] * bad)
        async with bank.sessions.begin() as session:
            await session.execute(
                delete(bank.payment).execution_options(**MEANT).where(bank.payment.position <= bad)
            )
            assert await bank.flow.unpark(session) == len(stopped)
        await until(partial(is_at_end, bank))
    assert await bank.balances() == {**bank.paid, "mended": bad}


async def test_a_row_without_a_key_is_set_aside(database: TemporaryDatabase) -> None:
    """A flow that sets aside what it cannot use would stand still for a row without a key."""
    bank, bad = await loose_bank(database, "dead_letter", shards=4)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await until(partial(is_at_end, bank))
    assert await parked(bank) == []
    assert await bank.balances() == bank.paid
    steps = bank.flow.dead_letters.consume(bank.sessions, follow=False)
    letters = [letter async for step in steps for letter in step.values]
    assert sorted(one.position or 0 for one in letters) == list(range(1, bad + 1))
    assert {one.key for one in letters} == {
        f"position {one.position} of payments" for one in letters
    }
    assert all("has no key" in one.error for one in letters)
    last = (await bank.flow_row()).next_step - 1
    assert (await bank.flow.verify(bank.sessions, 0, last)).differences == []


async def test_a_row_in_another_bucket_is_set_aside(database: TemporaryDatabase) -> None:
    """Two shards would each count some events of a key, and the balance lack those of one."""
    bank = await open_bank(database, failures_max=1, **FAST, **RETRIES)

    @bank.flow.by_key(state=int, poison="dead_letter")
    def add(step: StepContext, key: str, balance: int | None, events: list[Paid]) -> int:
        return (balance or 0) + sum(event.cents for event in events)

    await bank.pay(60)
    (account, *_) = bank.paid
    async with bank.sessions.begin() as session:
        session.add(
            bank.payment(account=account, cents=7, bucket=bucket_of(account) ^ (BUCKETS // 2))
        )
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await until(partial(is_at_end, bank))
    assert await bank.balances() == bank.paid
    steps = bank.flow.dead_letters.consume(bank.sessions, follow=False)
    (letter,) = [letter async for step in steps for letter in step.values]
    assert f"and its key {account!r} has {bucket_of(account)}" in letter.error
