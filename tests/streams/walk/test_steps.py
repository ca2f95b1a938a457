"""Steps from payments to balances, on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import PipelineItem
from rowlock.pipelines.context import PipelineContext
from rowlock.streams.computing.compute import KeyState
from rowlock.streams.computing.hashing import BucketRange
from rowlock.streams.cut_plan import Checkpoint
from rowlock.streams.cutter import Cutter, KnownFlow
from rowlock.streams.key_states import StateWrite
from rowlock.streams.outputs import ResultRow
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.streams.shards.replicas import OwnShard
from rowlock.streams.shards.steps import PartRow, StepWrite
from rowlock.streams.shards.writing import StepWriter, Telling
from rowlock.testing import TemporaryDatabase, run_until_settled, stepping

from ...lengths import at_length
from .flows import Bank, add_up, open_bank

pytestmark = pytest.mark.either_database(
    but=[
        "test_each_payment_is_counted_once",
        "test_nothing_is_written_without_the_lease",
        "test_of_two_cuts_one_counts",
    ]
)


@pytest.mark.parametrize(("steps", "shards"), at_length([(5, 2)], [(1, 16), (5, 1), (1000, 16)]))
async def test_each_payment_is_counted_once(
    database: TemporaryDatabase, steps: int, shards: int
) -> None:
    """Payments would be lost, or counted twice, in one of the modes."""
    bank = await open_bank(database, shards=shards, checkpoint=Checkpoint(steps=steps))
    add_up(bank)
    for _ in range(3):
        await bank.pay(150)
        await run_until_settled(bank.sessions, bank.streams.pipelines())
        # What stops writes its states, in every mode.
        assert await bank.balances() == bank.paid
    rows = await bank.shards()
    next_step = (await bank.flow_row()).next_step
    assert [(row.step, row.version) for row in rows] == [(next_step, next_step)] * shards
    assert next_step >= 9


async def write_of(bank: Bank, item: PipelineItem[Any]) -> StepWrite:
    """Return what a shard writes of its first step."""
    (row,) = [row for row in await bank.shards() if row.id == item.id]
    part = PartRow(0, rows=1, input_digest="in", outputs=1, output_digest="out", seconds=0.1)
    result = ResultRow(0, row.lo, 0, row.lo, "key", "1")
    nothing: Any = None
    shard = OwnShard(item, BucketRange(row.lo, row.hi), nothing, nothing)
    state = StateWrite("add", "key", row.lo, 1, KeyState("1"))
    write = StepWrite(shard, 1, [part], {"seen": [result]}, [state])
    write.version = 1
    return write


@asynccontextmanager
async def held(bank: Bank) -> AsyncIterator[tuple[list[PipelineItem[Any]], StepWriter]]:
    """Give the shards of a new flow, claimed, and what commits steps of them."""
    # Nothing renews these leases, however slow the machine is.
    settings = {**bank.flow.pipeline_settings, "lock_timeout": 3600}
    pipeline = FlowPipeline(bank.flow.program, **settings)
    async with stepping(bank.sessions, pipeline) as steps:
        items = await steps.fetch_once()
        context = steps.run.context
        telling = Telling("pipeline", "balances")
        yield items, StepWriter(bank.flow.program, context, telling, replica=uuid4())


async def written(bank: Bank) -> list[int]:
    return [await bank.count(table) for table in ("parts", "outputs", "state")]


async def test_nothing_is_written_without_the_lease(database: TemporaryDatabase) -> None:
    """A holder that was frozen past its lease would write beside the next one."""
    bank = await open_bank(database, shards=2)
    add_up(bank)
    async with held(bank) as ((lost, kept), committer):
        shards = bank.streams.tables.shards
        async with bank.sessions.begin() as session:
            other = update(shards).where(shards.c.id == lost.id).values(lock_token=uuid4())
            await session.execute(other)
        writes = [await write_of(bank, lost), await write_of(bank, kept)]
        writes[1].states = []
        assert await committer.commit(writes) == {kept.lock_token}
        assert await written(bank) == [1, 1, 0]
    assert sorted(row.step for row in await bank.shards()) == [0, 1]


async def test_nothing_is_written_twice(database: TemporaryDatabase) -> None:
    """A COMMIT whose answer was lost would be followed by another one of the same step."""
    bank = await open_bank(database, shards=1)
    add_up(bank)
    async with held(bank) as ((item,), committer):
        assert await committer.commit([await write_of(bank, item)]) == {item.lock_token}
        again = await write_of(bank, item)
        again.parts, again.results = [], {}
        assert await committer.commit([again]) == set()
        assert await written(bank) == [1, 1, 1]


async def known_to(bank: Bank, context: PipelineContext[Any]) -> KnownFlow:
    """Return the flow as a replica knows it that has just looked."""
    known = KnownFlow(bank.flow.program)

    async def look(session: AsyncSession, connection: AsyncConnection) -> None:
        await known.look(connection, first=0)

    await context.transact(look, purpose="look", writes=False)
    return known


async def test_of_two_cuts_one_counts(database: TemporaryDatabase) -> None:
    """Two replicas would do the same step over different rows."""
    bank = await open_bank(database)
    add_up(bank)
    pipeline = bank.pipeline()
    async with stepping(bank.sessions, pipeline) as steps:
        await steps.fetch_once()
        context = steps.run.context
        first, second = await known_to(bank, context), await known_to(bank, context)
        await bank.pay(10)
        cuts = await Cutter(bank.flow.program, context.transact).cut(first, [])
        await bank.pay(10)
        assert await Cutter(bank.flow.program, context.transact).cut(second, []) is None
    assert isinstance(cuts, Sequence)
    (cut,) = cuts
    row = await bank.flow_row()
    assert (row.next_step, row.upto) == (1, cut.upto)


async def test_a_cut_after_a_pause_is_none(database: TemporaryDatabase) -> None:
    """The answer to a pause would not be binding."""
    bank = await open_bank(database)
    add_up(bank)
    pipeline = bank.pipeline()
    async with stepping(bank.sessions, pipeline) as steps:
        await steps.fetch_once()
        known = await known_to(bank, steps.run.context)
        await bank.pay(10)
        async with bank.sessions.begin() as session:
            assert await bank.flow.pause(session) == 0
        cutter = Cutter(bank.flow.program, steps.run.context.transact)
        assert await cutter.cut(known, []) is None
    assert (await bank.flow_row()).next_step == 0
