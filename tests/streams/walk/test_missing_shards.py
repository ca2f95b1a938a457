"""A flow that lacks rows of its own, or has those of another moment: no reader takes what is left
for all there is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import ColumnElement, delete, insert, select, update
from sqlalchemy.orm import DeclarativeBase

from rowlock import PipelineManager, ShardsMissingError
from rowlock.streams import FORGET, Checkpoint, Streams
from rowlock.streams.computing.hashing import BUCKETS, bucket_of
from rowlock.testing import TemporaryDatabase, run_until_settled

from ...lengths import at_length
from ..coordinator.rounds import coordinating, write
from .flows import FAST, Bank, add_up, is_at_end, open_bank, until

pytestmark = pytest.mark.either_database

QUARTER = BUCKETS // 4


async def done_bank(database: TemporaryDatabase) -> Bank:
    """Return a bank that has done some steps, and whose coordinator has seen that."""
    bank = await open_bank(database, **FAST)
    add_up(bank)
    await bank.pay(120)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    async with coordinating(bank) as rounds:
        await rounds.one()
    return bank


async def lose(bank: Bank, *where: ColumnElement[bool], table: str = "shards") -> None:
    async with bank.sessions.begin() as session:
        await session.execute(delete(getattr(bank.streams.tables, table)).where(*where))


async def consume(bank: Bank) -> list[int]:
    return [each.step async for each in bank.flow.outputs["seen"].consume(bank.sessions)]


async def in_session(bank: Bank, call: Callable[..., Awaitable[Any]], *given: Any) -> Any:
    async with bank.sessions.begin() as session:
        return await call(session, *given)


async def snapshot(bank: Bank) -> None:
    async with bank.flow.snapshot(bank.sessions):
        pass


async def last_payment(bank: Bank) -> Any:
    async with bank.sessions() as session:
        return await session.get(bank.payment, 120)


async def wait_for_last(bank: Bank) -> int:
    step: int = await bank.flow.wait_for(bank.sessions, await last_payment(bank), timeout=60)
    return step


READERS: dict[str, Callable[[Bank], Awaitable[Any]]] = {
    "wait_for": wait_for_last,
    "consume": consume,
    "snapshot": snapshot,
    "verify": lambda bank: bank.flow.verify(bank.sessions, 0, 0),
    "discard": lambda bank: in_session(bank, bank.flow.outputs["seen"].discard, 1),
    "reshard": lambda bank: in_session(bank, bank.flow.reshard, 8),
}


@pytest.mark.parametrize("kind", at_length(["all", "hole"], ["one", "all", "overlap", "hole"]))
async def test_every_reader_stops_where_shards_are_missing(
    database: TemporaryDatabase, kind: str
) -> None:
    """The frontier is computed from ranges that cover 0 to 65,535 without gap or overlap; else each
    reader stops with `ShardsMissingError`; the status and the coordinator name what is missing.
    """
    bank = await done_bank(database)
    shards, before = bank.streams.tables.shards, await bank.flow_row()
    step, first = (await bank.shards())[0].step, shards.c.lo == 0
    await lose(bank, *{"one": [first], "all": []}.get(kind, [shards.c.lo == 3 * QUARTER]))
    # As many buckets as there are, of which some are there twice, or in no range of any flow.
    half = QUARTER // 2
    added = {"overlap": [half, QUARTER + half], "hole": [QUARTER + 1, 3 * QUARTER + 1]}
    for lo in added.get(kind, []):
        row = {"id": lo, "flow_id": before.id, "lo": lo, "hi": lo + half, "step": step}
        async with bank.sessions.begin() as session:
            await session.execute(insert(shards).values(row))
    for read in READERS.values():
        with pytest.raises(ShardsMissingError, match="no shard has the buckets"):
            await read(bank)
    found = await in_session(bank, bank.flow.status)
    assert "no shard has the buckets" in found.text
    assert (found.state, found.frontier) == ("running", before.frontier)
    async with coordinating(bank) as rounds:
        row = await rounds.one()
    assert row.stalled == found.text
    assert row.frontier == before.frontier


@asynccontextmanager
async def working(bank: Bank) -> AsyncIterator[PipelineManager]:
    async with PipelineManager(bank.sessions, bank.streams.pipelines()) as manager:
        await bank.pay(60)
        await until(partial(is_at_end, bank))
        yield manager


async def test_a_running_replica_stops_where_a_shard_is_missing(
    database: TemporaryDatabase,
) -> None:
    """A replica that runs already stops its steps, releases its shards and is unhealthy; when the
    row is back it goes on, and no payment is lost or counted twice.
    """
    bank = await open_bank(database, **FAST, retry_delay=0.05, retry_delay_max=0.2)
    add_up(bank)
    async with working(bank) as manager:
        gone = (await bank.shards())[1]
        await lose(bank, bank.streams.tables.shards.c.id == gone.id)

        async def has_stopped() -> bool:
            held = [row for row in await bank.shards() if row.lock_token is not None]
            return not held and "ShardsMissingError" in str(manager.health())

        await until(has_stopped)
        assert not manager.health().healthy
        await bank.pay(60)
        values = dict(gone._mapping, lock_token=None, lock_owner=None, lock_expires_at=None)
        async with bank.sessions.begin() as session:
            await session.execute(insert(bank.streams.tables.shards).values(values))
        await until(partial(is_at_end, bank))
    assert await bank.balances() == bank.paid


async def test_a_flow_over_results_stops_where_a_shard_of_the_other_is_missing(
    database: TemporaryDatabase,
) -> None:
    """A flow over results reads no step that a missing shard of the other flow has not done."""
    bank = await done_bank(database)
    over = bank.streams.flow("over", bank.flow.outputs["seen"])
    over.by_key()(lambda step, key, state, events: None)
    await run_until_settled(bank.sessions, bank.streams.pipelines(over))
    of_bank = bank.streams.tables.shards.c.flow_id == bank.flow.program.id
    await lose(bank, of_bank, bank.streams.tables.shards.c.lo == 0)
    found = await in_session(bank, over.status)
    assert "shards of the flow 'balances' are missing" in found.text
    with pytest.raises(ShardsMissingError):
        await over.wait_for(bank.sessions, await last_payment(bank), timeout=60)


async def test_steps_that_are_missing_are_an_error(database: TemporaryDatabase) -> None:
    """A flow whose cuts were deleted says which row it needs, and does nothing."""
    bank = await done_bank(database)
    before = await bank.results()
    await lose(bank, table="steps")
    await bank.pay(60)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):

        async def is_told() -> bool:
            errors = [row.last_error or "" for row in await bank.shards()]
            return any("has no row of step" in error for error in errors)

        await until(is_told)
    assert await bank.results() == before


async def worked(bank: Bank, payments: int) -> None:
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

    for number in (1, 4):
        await worked(bank, 60)
        await write(bank, "shards", state_keys=None)
        async with bank.sessions.begin() as session:
            await bank.flow.reshard(session, number)
        await worked(bank, 60)
    shards, balances = await bank.shards(), await bank.balances()
    assert [row.parked_at for row in shards] == [None] * 4
    for row in shards:
        own = [key for key in balances if row.lo <= bucket_of(key) < row.hi]
        assert (row.state_keys, row.state_keys_at) == (len(own), row.version)


async def test_a_new_flow_says_what_it_never_had(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A new flow over a log whose first events were deleted says from where it begins, in the log
    and in its status, as long as it lasts; and reads what is left.
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
    async with database.session_factory.begin() as session:
        await log.append(session, [4])
    await run_until_settled(database.session_factory, streams.pipelines())
    told = f"the flow metering begins behind position {gone.last} of usage"
    assert any(told in line for line in caplog.messages)
    async with database.session_factory() as session:
        (source,) = (await flow.status(session)).sources
    assert (source.begins_after, source.done) == (gone.last, gone.last + 1)
