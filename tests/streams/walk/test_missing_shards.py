"""A flow that lacks rows of its own: no reader takes what is left for all there is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from sqlalchemy import ColumnElement, delete, insert

from rowlock import PipelineManager, ShardsMissingError
from rowlock.streams.computing.hashing import BUCKETS
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..coordinator.rounds import coordinating
from .flows import Bank, add_up, open_bank
from .waiting import FAST, is_at_end, until

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
    """Return what a call returns that joins a transaction."""
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


@pytest.mark.parametrize("kind", ["one", "all", "overlap", "hole"])
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
    """Run a replica that has done all there was."""
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
