"""Flows over the results of other flows, on both databases."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError

from rowlock import PipelineManager
from rowlock.errors import ConfigurationError
from rowlock.stream_errors import PositionsWentBackError, StepExpired, StillNeeded
from rowlock.streams.computing.handlers import StepContext
from rowlock.streams.computing.rows import EventBatch
from rowlock.streams.flow import StreamFlow
from rowlock.streams.flow_row import ensure_flow
from rowlock.streams.outputs import Output
from rowlock.streams.streams import Streams
from rowlock.testing import TemporaryDatabase, run_until_settled

from ...lengths import at_length
from .flows import FAST, Bank, add_up, open_bank, until
from .test_steps import held, write_of

pytestmark = pytest.mark.either_database(
    but=["test_a_flow_over_an_output", "test_results_are_kept_for_the_flow_that_reads_them"]
)


@dataclass
class Chain:
    """A bank whose balances are read by another flow."""

    bank: Bank
    seen: Output[int]
    below: StreamFlow[int]

    async def run(self, flow: StreamFlow[Any]) -> None:
        await run_until_settled(self.bank.sessions, self.bank.streams.pipelines(flow))

    async def sums(self) -> dict[str, int]:
        c = self.bank.streams.tables.state.c
        async with self.bank.sessions() as session:
            found = select(c.key, c.value).where(c.flow_id == self.below.program.id)
            return {key: int(value) for key, value in await session.execute(found)}

    async def expected(self) -> dict[str, int]:
        """Return what these states are to be: a sum by SQL."""
        sums = Counter[str]()
        for _, key, value in await self.bank.results():
            sums[key] += value
        return dict(sums)

    async def inputs(self) -> list[list[int]]:
        """Return the positions that each step of the second flow has read."""
        async with self.bank.sessions() as session:
            flows = self.bank.streams.tables.flows
            of_below = flows.c.id == self.below.program.id
            end = await session.scalar(select(flows.c.next_step).where(of_below)) or 0
            steps = [await self.below.inputs_of(session, step) for step in range(end)]
        return [[row.position for row in step.rows] for step in steps]


def sum_up(bank: Bank, **settings: Any) -> Chain:
    seen: Output[int] = bank.flow.outputs["seen"]
    options: dict[str, Any] = {"shards": 2, "poll_interval": 0.05, **settings}
    below = bank.streams.flow("sums", seen, **options)

    @below.by_key(state=int)
    def add(step: StepContext, key: str, total: int | None, events: Sequence[int]) -> int:
        return (total or 0) + sum(events)

    return Chain(bank, seen, below)


async def open_chain(database: TemporaryDatabase, payments: int = 200, **settings: Any) -> Chain:
    """Return two flows, of which the first has done all its steps."""
    bank = await open_bank(database, **FAST)
    add_up(bank)
    await bank.pay(payments)
    chain = sum_up(bank, **{**FAST, **settings})
    await chain.run(bank.flow)
    return chain


@pytest.mark.parametrize("rows_max", at_length([20], [1, 20, 10_000]))
async def test_a_flow_over_an_output(database: TemporaryDatabase, rows_max: int) -> None:
    """Results would be lost or counted twice, a step of the first flow be divided among two, or one
    that has more rows than a step may have never be read.
    """
    chain = await open_chain(database, step_rows_max=rows_max)
    for _ in range(2):
        await chain.run(chain.below)
        assert await chain.sums() == await chain.expected()
        await chain.bank.pay(40)
        await chain.run(chain.bank.flow)
    await chain.run(chain.below)
    steps = await chain.inputs()
    read = [position for step in steps for position in step]
    assert read == [step + 1 for step, _, _ in await chain.bank.results()]
    assert not any(set(one) & set(other) for one, other in pairwise(steps))
    if rows_max == 1:
        assert all(len(set(step)) <= 1 for step in steps)
    checked = await chain.below.verify(chain.bank.sessions, 0, len(steps) - 1)
    assert (checked.rows, checked.differences) == (len(read), [])


async def test_both_flows_at_once(database: TemporaryDatabase) -> None:
    """The second flow would not hear of results, or read a step that a shard has not done."""
    bank = await open_bank(database, **FAST)
    add_up(bank)
    chain = sum_up(bank, **FAST)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        for _ in range(3):
            await bank.pay(60)

        async def is_at_end() -> bool:
            async with bank.sessions() as session:
                status = await bank.flow.status(session)
            return status.state == "running" and status.lag_rows == 0

        await until(is_at_end)
        async for step in chain.seen.consume(bank.sessions, follow=False):
            await chain.below.wait_for(bank.sessions, step, timeout=60)
        assert await chain.sums() == await chain.expected()


async def test_results_without_a_key_have_one_shard(database: TemporaryDatabase) -> None:
    """Each shard of the first flow would have a state of its own for what has no key."""
    bank = await open_bank(database, **FAST)
    counts = bank.flow.output("seen", int)

    @bank.flow.batch()
    def count(step: StepContext, batch: EventBatch[Any], states: Any) -> None:
        step.emit(counts, len(batch.rows))

    await bank.pay(100)
    chain = sum_up(bank, shards=8)
    await chain.run(bank.flow)
    await chain.run(chain.below)
    assert await chain.sums() == {"": 100}


async def test_a_step_is_read_when_all_shards_have_done_it(database: TemporaryDatabase) -> None:
    """A step would be read without the results of a slow shard, or the wait for it have no name."""
    bank = await open_bank(database, shards=2)
    add_up(bank)
    await bank.pay(10)
    # One shard, since the rows that are written by hand have buckets that are not of their key.
    chain = sum_up(bank, shards=1)
    async with held(bank) as ((one, other), committer):
        steps = bank.streams.tables.steps
        async with bank.sessions.begin() as session:
            (before,) = (await session.execute(steps.select())).mappings().all()
            await session.execute(steps.insert().values({**before, "step": 0}))
            flows = bank.streams.tables.flows
            await session.execute(flows.update().values(next_step=1))
        await committer.commit([await write_of(bank, one)])
        await chain.run(chain.below)
        assert await chain.sums() == {}
        async with bank.sessions() as session:
            status = await chain.below.status(session)
        assert "the flow 'balances', whose slowest shard is at step 0" in status.text
        write = await write_of(bank, other)
        write.states = []
        await committer.commit([write])
        await chain.run(chain.below)
        assert await chain.sums() == {"key": 2}


async def test_results_are_kept_for_the_flow_that_reads_them(database: TemporaryDatabase) -> None:
    """A flow would miss results that were discarded, without a word."""
    chain = await open_chain(database)
    results = await chain.bank.results()
    middle, end = results[len(results) // 2][0], results[-1][0] + 1
    async with chain.bank.sessions.begin() as session:
        gone = await chain.seen.discard(session, middle)
    assert gone == sum(step < middle for step, _, _ in results)
    await chain.run(chain.below)
    assert await chain.sums() == await chain.expected()
    await chain.bank.pay(20)
    await chain.run(chain.bank.flow)
    async with chain.bank.sessions.begin() as session:
        with pytest.raises(StillNeeded, match="the flow 'sums'") as caught:
            await chain.seen.discard(session, end + 1)
    assert caught.value.step == end
    async with chain.bank.sessions.begin() as session:
        assert await chain.seen.discard(session, end) == len(results) - gone
    await chain.run(chain.below)
    async with chain.bank.sessions.begin() as session:
        assert await chain.seen.discard(session, end + 1)
        with pytest.raises(StepExpired):
            await chain.below.inputs_of(session, 0)


async def test_a_flow_is_not_created_while_results_are_discarded(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A new flow would begin with results that are deleted at this moment."""
    chain = await open_chain(postgresql_database, payments=20)
    (source,) = chain.below.sources.values()
    async with chain.bank.sessions.begin() as one, chain.bank.sessions() as other:
        await chain.seen.discard(one, 0)
        await other.execute(text("SET lock_timeout = '50ms'"))
        with pytest.raises(DBAPIError, match="lock timeout"):
            await source.lock_begin(await other.connection())


async def test_results_are_not_discarded_while_a_flow_over_them_is_created(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A new flow would begin with results that were deleted behind its back."""
    chain = await open_chain(postgresql_database, payments=20)
    end = (await chain.bank.results())[-1][0] + 1

    async def discard() -> None:
        async with chain.bank.sessions.begin() as session:
            await chain.seen.discard(session, end)

    async with chain.bank.sessions() as creating:

        async def transact(work: Any, **_: Any) -> Any:
            return await work(creating, await creating.connection())

        await ensure_flow(chain.below.program, transact)
        discarding = asyncio.create_task(discard())
        await until(partial(is_waiting, chain))
        await creating.commit()
    with pytest.raises(StillNeeded, match="the flow 'sums'"):
        await discarding
    await chain.run(chain.below)
    assert await chain.sums() == await chain.expected()


async def is_waiting(chain: Chain) -> bool:
    waits = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with chain.bank.sessions() as session:
        return bool(await session.scalar(text(waits)))


async def test_a_flow_that_starts_now(database: TemporaryDatabase) -> None:
    """A flow that wants what comes would get what was."""
    chain = await open_chain(database, start="now")
    await chain.run(chain.below)
    assert await chain.sums() == {}
    before = Counter(await chain.expected())
    await chain.bank.pay(30)
    await chain.run(chain.bank.flow)
    await chain.run(chain.below)
    assert await chain.sums() == Counter(await chain.expected()) - before


async def test_a_flow_that_was_begun_anew_is_told(database: TemporaryDatabase) -> None:
    """The steps of a flow that was deleted and created again would be taken for old ones."""
    chain = await open_chain(database)
    (source,) = chain.below.sources.values()
    async with chain.bank.sessions() as session:
        flows = chain.bank.streams.tables.flows.c
        last = await session.scalar(select(func.max(flows.next_step))) or 0
        connection = await session.connection()
        await source.watcher().look(connection, recorded=last)
        with pytest.raises(PositionsWentBackError):
            await source.watcher().look(connection, recorded=last + 1)


async def test_what_is_no_source_is_refused(database: TemporaryDatabase) -> None:
    """A flow would wait for ever for results that are rows elsewhere."""
    bank = await open_bank(database)
    rows = bank.flow.output("rows", into=bank.payment)
    with pytest.raises(ConfigurationError, match="TableSource"):
        bank.streams.flow("below", rows)
    kept: Output[int] = bank.flow.output("kept", int)
    (base,) = bank.payment.__bases__[-1:]
    other = type("Base", base.__bases__, {})
    with pytest.raises(ConfigurationError, match="other streams"):
        Streams(other).flow("below", kept)
