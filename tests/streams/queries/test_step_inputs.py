"""What a step was made of: its events and its parts, asked for later."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, update

from rowlock.rows.database_time import database_time_after
from rowlock.stream_errors import NotProcessedYet, StepExpired
from rowlock.streams import StepContext, StepInputs, Streams
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..walk.flows import Bank, add_up, new_base, open_bank

pytestmark = pytest.mark.either_database(but=["test_each_event_is_in_one_step"])


async def done_bank(database: TemporaryDatabase, payments: int = 120, **settings: Any) -> Bank:
    bank = await open_bank(database, **settings)
    add_up(bank)
    await bank.pay(payments)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    return bank


async def inputs(bank: Bank, step: int) -> StepInputs[Any]:
    async with bank.sessions() as session:
        return await bank.flow.inputs_of(session, step)


async def test_each_event_is_in_one_step(database: TemporaryDatabase) -> None:
    """Whoever doubts a result could not find what it was made of; or a shard that did nothing, or
    too much, would leave no trace.
    """
    bank = await done_bank(database)
    next_step = (await bank.flow_row()).next_step
    steps = [await inputs(bank, step) for step in range(next_step)]
    positions = [row.position for one in steps for row in one.rows]
    assert positions == list(range(1, 121))
    paid: Counter[str] = Counter()
    for one in steps:
        assert one.values == [row.value for row in one.rows]
        assert all(row.key == row.value.account for row in one.rows)
        for event in one.values:
            paid[event.account] += event.cents
    assert paid == bank.paid
    assert {row.source for one in steps for row in one.rows} == {"payments"}
    assert [one.now for one in steps] == sorted(one.now for one in steps)
    results = Counter(step for step, _, _ in await bank.results())
    for made_of in steps:
        async with bank.sessions() as session:
            parts = await bank.flow.parts_of(session, made_of.step)
        assert [part.lo for part in parts] == sorted({part.lo for part in parts})
        assert {part.step for part in parts} == {made_of.step}
        assert sum(part.rows for part in parts) == len(made_of.rows)
        assert sum(part.outputs for part in parts) == results[made_of.step]
    paid = Counter()
    async for result in bank.flow.outputs["seen"].consume(bank.sessions, follow=False):
        async with bank.sessions() as session:
            made_of = await result.inputs(session)
        assert (made_of.step, made_of.now) == (result.step, result.now)
        for event in made_of.values:
            paid[event.account] += event.cents
        assert {row.key: row.value for row in result.rows} == {
            key: paid[key] for key in {event.account for event in made_of.values}
        }
    assert paid == bank.paid


async def test_steps_that_cannot_be_asked_about(database: TemporaryDatabase) -> None:
    """A step that is not there would look like one without events."""
    bank = await open_bank(database)
    add_up(bank)
    with pytest.raises(NotProcessedYet, match="not cut"):
        await inputs(bank, 0)
    bank = await done_bank(database)
    next_step = (await bank.flow_row()).next_step
    with pytest.raises(NotProcessedYet) as early:
        await inputs(bank, next_step)
    assert (early.value.flow, early.value.what) == ("balances", f"step {next_step}")
    with pytest.raises(StepExpired):
        await inputs(bank, -1)
    steps = bank.streams.tables.steps
    async with bank.sessions.begin() as session:
        await session.execute(delete(steps).where(steps.c.step <= 0))
    for step in (0, 1):
        with pytest.raises(StepExpired) as expired:
            await inputs(bank, step)
        assert expired.value.first == 2
    assert (await inputs(bank, 2)).step == 2


async def test_events_that_were_deleted_are_not_left_out(database: TemporaryDatabase) -> None:
    """A step would seem to have fewer events than it had."""
    base, _ = new_base()
    streams = Streams(base)
    words = streams.log("words", str, key=str)
    flow = streams.flow("lengths", words, shards=2)

    @flow.by_key()
    def length(step: StepContext, key: str, state: None, events: list[str]) -> None:
        return None

    await database.create_tables(base.metadata)
    async with database.session_factory.begin() as session:
        added = await words.append(session, ["one", "two", "three"])
    await run_until_settled(database.session_factory, streams.pipelines())
    async with database.session_factory() as session:
        assert (await flow.inputs_of(session, 0)).values == ["one", "two", "three"]
    async with database.engine.begin() as connection:
        old = update(streams.tables.log).values(at=database_time_after(timedelta(days=-8)))
        await connection.execute(old)
        assert await words.expire(connection, added.last) == 2
    async with database.session_factory() as session:
        with pytest.raises(StepExpired, match="words"):
            await flow.inputs_of(session, 0)
