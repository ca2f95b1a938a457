"""Dead letters: events that fail again and again are moved to an output, and the shard goes on."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert

from rowlock import PipelineManager
from rowlock.errors import ConfigurationError
from rowlock.streams import DeadEvent, StepContext, Streams
from rowlock.streams.computing import compute as dead_letters
from rowlock.streams.computing.compute import DeadLetter, dead_results
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.computing.rows import SourceRows
from rowlock.streams.cut_plan import Checkpoint
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..walk.flows import (
    FAST,
    Bank,
    Paid,
    is_at_end,
    lose_leases,
    new_base,
    open_bank,
    parked,
    pay,
    until,
)
from ..walk.test_poison import RETRIES

pytestmark = pytest.mark.either_database(but=["test_events_that_fail_are_moved"])


async def dead(bank: Bank) -> list[tuple[int, DeadEvent]]:
    steps = bank.flow.dead_letters.consume(bank.sessions, follow=False)
    return [(one.step, value) async for one in steps for value in one.values]


def add_but(bank: Bank, broken: set[str], **options: Any) -> list[tuple[str, int]]:
    """Register a handler that adds up, and fails for some accounts; return its calls for these."""
    calls: list[tuple[str, int]] = []

    @bank.flow.by_key(state=int, poison="dead_letter")
    def add(step: StepContext, key: str, balance: int | None, events: list[Paid]) -> int:
        if key in broken:
            calls.append((key, step.number))
            step.set_timer(step.now)
            raise LookupError("no such account")
        return (balance or 0) + sum(event.cents for event in events)

    return calls


async def test_events_that_fail_are_moved(database: TemporaryDatabase) -> None:
    """One event would stop its shard for good, or be gone."""
    bank = await open_bank(database, failures_max=3, step_rows_max=10, **FAST, **RETRIES)
    broken = {"bad"}
    calls = add_but(bank, broken)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await pay(bank.sessions, bank.payment, [("bad", 1), ("good", 2), ("bad", 3)])
        await bank.pay(60)
        await until(partial(is_at_end, bank))
        broken.clear()
        await pay(bank.sessions, bank.payment, [("bad", 5)])
        await until(partial(is_at_end, bank))
    assert calls == [("bad", calls[0][1])] * 3
    letters = await dead(bank)
    assert [(step, one.position) for step, one in letters] == [(calls[0][1], 1), (calls[0][1], 3)]
    for _, one in letters:
        assert (one.stage, one.key, one.source) == ("add", "bad", "payments")
        assert "no such account" in one.error
        event = json.loads(one.payload or "")
        assert (event["position"], event["account"]) == (one.position, "bad")
    assert [json.loads(one.payload or "")["cents"] for _, one in letters] == [1, 3]
    assert await bank.balances() == {**bank.paid, "good": 2, "bad": 5}
    assert await parked(bank) == []


async def test_what_was_moved_is_moved_again_in_a_replay(database: TemporaryDatabase) -> None:
    """A replay would come out otherwise, or leave each letter twice."""
    checkpoint = Checkpoint(steps=1000)
    bank = await open_bank(
        database, shards=1, failures_max=2, checkpoint=checkpoint, **FAST, **RETRIES
    )
    calls = add_but(bank, {"bad"})
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await pay(bank.sessions, bank.payment, [("bad", 1), ("good", 2)])
        await until(partial(is_at_end, bank))
        await lose_leases(bank)
        await bank.pay(60)
        await until(partial(is_at_end, bank))
    assert len(calls) == 3
    assert [one.position for _, one in await dead(bank)] == [1]
    assert await parked(bank) == []
    assert await bank.balances() == {**bank.paid, "good": 2}


async def test_failures_of_one_step_do_not_count_in_the_next(database: TemporaryDatabase) -> None:
    """A shard that is unlucky now and then would be parked for it."""
    bank = await open_bank(database, shards=1, failures_max=3, step_rows_max=1, **FAST, **RETRIES)
    attempts: dict[int, int] = {}

    @bank.flow.by_key(state=int)
    def add(step: StepContext, key: str, balance: int | None, events: list[Paid]) -> int:
        attempts[step.number] = attempts.get(step.number, 0) + 1
        if attempts[step.number] < 3:
            raise LookupError("not now")
        return (balance or 0) + sum(event.cents for event in events)

    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await bank.pay(4)
        await until(partial(is_at_end, bank))
    assert await bank.balances() == bank.paid
    assert set(attempts.values()) == {3}


async def test_a_log_s_events_are_kept_as_they_were_sent(database: TemporaryDatabase) -> None:
    """An event that no code can read any more would be gone with its log."""
    base, _ = new_base()
    streams = Streams(base)
    usage = streams.log("usage", int, key=str)
    flow = streams.flow("sums", usage, shards=2, failures_max=1)

    @flow.by_key(state=int, poison="dead_letter")
    def sums(step: StepContext, key: str, state: int | None, events: list[int]) -> int:
        return (state or 0) + sum(events)

    await database.create_tables(base.metadata)
    row = {"stream": "usage", "key": "7", "bucket": bucket_of("7"), "payload": '{"seven": 7}'}
    async with database.session_factory.begin() as session:
        await usage.append(session, [1, 2, 3])
        await session.execute(insert(streams.tables.log).values(row))
    await run_until_settled(database.session_factory, streams.pipelines())
    letters = [
        value
        async for one in flow.dead_letters.consume(database.session_factory, follow=False)
        for value in one.values
    ]
    (letter,) = letters
    assert (letter.source, letter.position, letter.payload) == ("usage", 4, '{"seven": 7}')


async def test_a_timer_that_fails_leaves_a_letter(database: TemporaryDatabase) -> None:
    """A window that cannot be closed would stop its shard, or vanish."""
    bank = await open_bank(database, failures_max=1, **FAST)

    @bank.flow.by_key(state=int, poison="dead_letter")
    def add(step: StepContext, key: str, balance: int | None, events: list[Paid]) -> int:
        if not events:
            raise LookupError("cannot be closed")
        step.set_timer(step.now + timedelta(milliseconds=1))
        return 1

    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await pay(bank.sessions, bank.payment, [("one", 1)])

        async def is_there() -> bool:
            return bool(await dead(bank))

        await until(is_there)
    ((_, letter),) = await dead(bank)
    assert (letter.key, letter.source, letter.position, letter.payload) == ("one", None, None, None)
    assert await bank.balances() == {"one": 1}


async def test_dead_letters_may_be_wanted_later(database: TemporaryDatabase) -> None:
    """A flow that is parked could not be helped without a new name."""
    one, other = [await open_bank(database) for _ in range(2)]
    add_but(one, set())

    @other.flow.by_key(state=int)
    def add(step: StepContext, key: str, balance: int | None, events: list[Paid]) -> int:
        return 1

    assert one.flow.program.fingerprint == other.flow.program.fingerprint
    assert "dead_letters" in one.flow.program.outputs
    assert "dead_letters" not in other.flow.program.outputs
    third = await open_bank(database)
    with pytest.raises(ConfigurationError, match="has an output 'dead_letters' already"):
        third.flow.output("dead_letters", int)


def test_an_event_that_is_too_long_is_named_only() -> None:
    """A dead letter would be refused for its length, and its shard be parked after all."""
    texts = ["1" * (dead_letters.PAYLOAD_BYTES_MAX + more) for more in (0, 1)]
    rows = SourceRows("log", [7, 9], [1, 1], ["k", "k"], texts, Codec(int))
    results = dead_results("add", [DeadLetter("k", "LookupError", (rows,))])
    events = dead_letters.CODEC.decode_many([str(one.stored) for one in results])
    assert [(one.position, one.payload) for one in events] == [(7, texts[0]), (9, None)]
    assert {(one.output, one.key) for one in results} == {("dead_letters", "k")}
