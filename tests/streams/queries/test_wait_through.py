"""Waits for a flow over the results of another one, for what that one reads."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert, select

from rowlock import PipelineManager
from rowlock.errors import ConfigurationError
from rowlock.stream_errors import NotProcessedYet
from rowlock.streams.computing.handlers import StepContext
from rowlock.streams.flow import StreamFlow
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..walk.flows import FAST, add_up, open_bank
from ..walk.test_flow_over_flow import sum_up
from .test_wait_for import LONG_S, pay_one

pytestmark = pytest.mark.either_database


async def test_what_the_first_flow_reads_is_waited_for(database: TemporaryDatabase) -> None:
    """A service would have to find out by itself which step of the first flow has its row."""
    bank = await open_bank(database, **FAST)
    add_up(bank)
    sums = bank.streams.flow("sums", bank.flow.outputs["seen"], shards=2, **FAST)
    summed = sums.output("summed", int)
    total = bank.streams.flow("total", summed, shards=1, **FAST)

    @sums.by_key(state=int)
    def add(step: StepContext, key: str, before: int | None, seen: list[int]) -> int:
        after = (before or 0) + sum(seen)
        step.emit(summed, after)
        return after

    @total.by_key(state=int)
    def last(step: StepContext, key: str, before: int | None, sums: list[int]) -> int:
        return sums[-1]

    async def run(flow: StreamFlow[Any]) -> None:
        await run_until_settled(bank.sessions, bank.streams.pipelines(flow))

    async def newest(flow: StreamFlow[Any]) -> dict[str, int]:
        c = bank.streams.tables.state.c
        async with bank.sessions() as session:
            found = select(c.key, c.value).where(c.flow_id == flow.program.id)
            return {key: int(value) for key, value in await session.execute(found)}

    wait = partial(total.wait_for, bank.sessions)
    payment = await pay_one(bank, "a")
    with pytest.raises(NotProcessedYet, match="'total' has not done position 1") as caught:
        await wait(payment, timeout=0)
    assert caught.value.flow == "total"
    assert "the flow 'balances' has not done" in caught.value.reason
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        for cents, expected in ((2, 1), (3, 1 + 3)):
            await wait(payment, timeout=LONG_S)
            assert await newest(total) == {"a": expected}
            payment = await pay_one(bank, "a", cents)
        await wait(payment, timeout=LONG_S)
    await bank.pay(1)
    await run(bank.flow)
    payment = await pay_one(bank, "b")
    await run(bank.flow)
    with pytest.raises(NotProcessedYet, match=r"'total' .*: the flow 'sums' has not done position"):
        await wait(payment, timeout=0)
    for flow in (sums, total):
        await run(flow)
    assert await wait(payment, timeout=0) > 0
    with pytest.raises(ConfigurationError, match="nothing of these"):
        await wait(object(), timeout=0)


async def test_a_step_without_results_is_waited_for(database: TemporaryDatabase) -> None:
    """Who waits for a payment that changes nothing would wait for ever."""
    bank = await open_bank(database)
    seen = bank.flow.output("seen", int)

    @bank.flow.by_key(state=int)
    def add(step: StepContext, key: str, balance: int | None, events: list[Any]) -> int:
        if key == "loud":
            step.emit(seen, 1)
        return 0

    chain = sum_up(bank)
    for account in ("silent", "loud", "silent"):
        payment = await pay_one(bank, account)
        await chain.run(bank.flow)
        await chain.run(chain.below)
        assert await chain.below.wait_for(bank.sessions, payment, timeout=0) >= 0
    assert await chain.sums() == {"loud": 1}


async def test_what_comes_later_is_not_waited_for(database: TemporaryDatabase) -> None:
    """Under steady load a wait would never end, since there are always newer results."""
    bank = await open_bank(database)
    add_up(bank)
    chain = sum_up(bank)
    payment = await pay_one(bank)
    await chain.run(bank.flow)
    await chain.run(chain.below)
    # A shard has done another step, and the flow has not.
    own = bank.streams.tables.outputs
    frontier = (await bank.flow_row()).next_step
    async with bank.sessions.begin() as session:
        later = select(own).where(own.c.step == 0).limit(1)
        values = dict((await session.execute(later)).mappings().one())
        await session.execute(insert(own).values({**values, "step": frontier}))
    assert await chain.below.wait_for(bank.sessions, payment, timeout=0) > 0
