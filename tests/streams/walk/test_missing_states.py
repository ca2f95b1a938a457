"""States that are of another moment than their shards, and events that a new flow never had."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.orm import DeclarativeBase

from rowlock import PipelineManager
from rowlock.streams import FORGET, Checkpoint, Streams
from rowlock.streams.computing.hashing import bucket_of
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..coordinator.rounds import write
from .flows import Bank, add_up, open_bank
from .waiting import FAST, is_at_end, until

pytestmark = pytest.mark.either_database


async def worked(bank: Bank, payments: int) -> None:
    """Pay, and have a replica of its own do all of it."""
    await bank.pay(payments)
    await run_until_settled(bank.sessions, bank.streams.pipelines())


@pytest.mark.parametrize(("lost", "steps"), [("all", 1), ("one", 3), ("newer", 3)])
async def test_states_of_another_moment_park_their_shard(
    database: TemporaryDatabase, lost: str, steps: int
) -> None:
    """States that were emptied, lost in part or not restored with their shards are found when a
    shard is opened: it is parked, and no sum begins at 0 again.
    """
    checkpoint = Checkpoint(steps=steps)
    bank = await open_bank(database, shards=2, checkpoint=checkpoint, step_rows_max=9, **FAST)
    add_up(bank)
    for _ in range(3):
        await worked(bank, 50)
    state, results = bank.streams.tables.state, await bank.results()
    async with bank.sessions.begin() as session:
        key = await session.scalar(select(state.c.key).order_by(state.c.bucket).limit(1))
        if lost == "newer":
            await session.execute(update(state).values(version=state.c.version + 10**6))
        else:
            await session.execute(delete(state).where(*[state.c.key == key] * (lost == "one")))
    parked = 1 if lost == "one" else 2
    await bank.pay(50)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):

        async def is_parked() -> bool:
            rows = [row for row in await bank.shards() if row.parked_at is not None]
            return len(rows) == parked and all("of another moment" in r.last_error for r in rows)

        async def is_told() -> bool:
            async with bank.sessions() as session:
                return "of another moment" in (await bank.flow.status(session)).text

        await until(is_parked)
        await until(is_told)
        first = (await bank.shards())[0].hi if lost == "one" else 0
        new = [one for one in await bank.results() if one not in results]
        assert all(first and bucket_of(key) >= first for _, key, _ in new)
        async with bank.sessions.begin() as session:
            assert await bank.flow.unpark(session) == parked
        if lost != "newer":
            await until(partial(is_at_end, bank))


async def test_states_are_counted_whatever_happens_to_shards(database: TemporaryDatabase) -> None:
    """Splits, joins, dropped states and an upgrade from tables without the count raise no alarm."""
    bank = await open_bank(database, shards=2, **FAST)
    bank.flow.output("seen", int)

    @bank.flow.by_key(state=int)
    def add(step: Any, key: str, balance: int | None, events: list[Any]) -> Any:
        return FORGET if balance and balance % 2 else (balance or 0) + events[0].cents

    for number in (4, 1, 2, 8):
        await worked(bank, 90)
        await write(bank, "shards", state_keys=None)
        async with bank.sessions.begin() as session:
            await bank.flow.reshard(session, number)
        await worked(bank, 90)
    shards, balances = await bank.shards(), await bank.balances()
    assert [row.parked_at for row in shards] == [None] * 8
    for row in shards:
        own = [key for key in balances if row.lo <= bucket_of(key) < row.hi]
        assert (row.state_keys, row.state_keys_at) == (len(own), row.version)


async def test_a_new_flow_says_what_it_never_had(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A new flow over a log whose first events were deleted says from where it begins, in the log
    and in its status, as long as it lasts.
    """
    base: Any = type("Base", (DeclarativeBase,), {})
    streams = Streams(base)
    log = streams.log("usage", int, key=str, keep=timedelta(0))
    flow = streams.flow("metering", log, shards=2)
    flow.by_key()(lambda step, key, state, events: None)
    await database.create_tables(base.metadata)
    async with database.session_factory.begin() as session:
        gone = await log.append(session, [1, 2, 3])
    async with database.engine.begin() as connection:
        await log.expire(connection, gone.last + 1)
    await run_until_settled(database.session_factory, streams.pipelines())
    told = f"the flow metering begins behind position {gone.last} of usage"
    assert any(told in line for line in caplog.messages)
    async with database.session_factory() as session:
        (source,) = (await flow.status(session)).sources
    assert source.begins_after == gone.last
