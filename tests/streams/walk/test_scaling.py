"""Replicas come and go while payments are made, also with other code; and a flow is changed while
it is stopped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import PipelineManager
from rowlock.streams import StepContext, Streams
from rowlock.streams.cut_plan import Checkpoint
from rowlock.testing import TemporaryDatabase, stepping

from .flows import FAST, Bank, Paid, add_up, is_at_end, open_bank, until
from .test_steps import known_to

pytestmark = pytest.mark.either_database(but=["test_one_to_four_to_two"])


async def paid_until(bank: Bank, ended: asyncio.Event) -> None:
    """Make payments until that is given, the next ones when the flow has done the last."""
    while not ended.is_set():
        await bank.pay(20)
        await until(lambda: is_at_end(bank))


def shards_of(held: dict[int, Any], replicas: set[Any]) -> dict[Any, set[int]]:
    return {one: {lo for lo, holder in held.items() if holder == one} for one in replicas}


async def stop(bank: Bank) -> None:
    """Stop a flow, and wait until its states are written and its shards are free."""
    async with bank.sessions.begin() as session:
        answer = await bank.flow.stop(session)

    async def are_free() -> bool:
        rows = await bank.shards()
        return all(row.lock_token is None and row.version == answer for row in rows)

    await until(are_free)


async def are_right(bank: Bank) -> bool:
    last = {key: value for _, key, value in await bank.results()}
    return await bank.balances() == last == bank.paid


async def test_one_to_four_to_two(database: TemporaryDatabase) -> None:
    """A payment would be lost or counted twice while replicas come and go; or shards would move
    between those that stay.
    """
    # Longer than a starved machine stands still: a lease that ends moves its shard, too.
    settings = {**FAST, "lock_timeout": 20.0}
    bank = await open_bank(database, shards=4, checkpoint=Checkpoint(steps=3), **settings)
    add_up(bank)
    ended = asyncio.Event()
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        paying = group.create_task(paid_until(bank, ended))
        ending = [await started(stack, bank)]
        one = await shared(bank, 1)
        ending += [await started(stack, bank) for _ in range(3)]
        four = await shared(bank, 4)
        for each in ending[2:]:
            await each.aclose()
        two = await shared(bank, 2)
        ended.set()
        await paying
        await until(lambda: is_at_end(bank))
        await stop(bank)
    assert await are_right(bank)
    (first,) = set(one.values())
    assert first in four.values(), "who was there stays"
    stayed = set(two.values())
    before, after = shards_of(four, stayed), shards_of(two, stayed)
    assert all(before[each] < after[each] for each in stayed), "shards move to those who stay"


async def test_a_cold_change(database: TemporaryDatabase) -> None:
    """A flow that is stopped, and started by other code with other settings, would begin anew, or
    forget what was in memory.
    """
    old = await open_bank(database, shards=4, checkpoint=Checkpoint(steps=1000), **FAST)
    add_up(old)
    async with PipelineManager(old.sessions, old.streams.pipelines()):
        await old.pay(200)
        await until(lambda: is_at_end(old))
        await old.pay(100)
        await stop(old)
    options: dict[str, Any] = {"version": "2", "step_rows_max": 20}
    new = await open_bank(database, shards=4, checkpoint=Checkpoint(steps=3), **FAST, **options)
    add_up(new)
    new.paid.update(old.paid)
    await new.pay(100)
    async with PipelineManager(new.sessions, new.streams.pipelines()):
        async with new.sessions.begin() as session:
            await new.flow.reshard(session, 8)
            await new.flow.start(session)
        await new.pay(100)
        await until(lambda: is_shared(new, 1))
        await until(lambda: is_at_end(new))
        await stop(new)
    assert await are_right(new)


async def test_a_half_is_noticed_without_a_hint(database: TemporaryDatabase) -> None:
    """Its rows would wait until a replica looks around, which it does every two `lock_timeout` once
    each shard is held.
    """
    bank = await open_bank(database, shards=1)
    add_up(bank)
    pipeline = bank.pipeline()
    async with stepping(bank.sessions, pipeline) as steps:
        await steps.fetch_once()
        context, replicas, changes = steps.run.context, pipeline.replicas, []
        replicas.on_change = lambda: changes.append("look")

        async def look(session: AsyncSession, connection: AsyncConnection) -> None:
            await replicas.look(connection)

        async def see() -> list[str]:
            known = await known_to(bank, context)
            assert known.moment is not None
            replicas.saw(known.moment.crowd)
            return changes

        await context.transact(look, purpose="look", writes=False)
        assert await see() == []
        shards, (row,) = bank.streams.tables.shards, await bank.shards()
        upper = {"id": row.id + 1, "flow_id": row.flow_id, "lo": row.hi // 2, "hi": row.hi}
        async with bank.sessions.begin() as session:
            await session.execute(update(shards).values(hi=row.hi // 2))
            await session.execute(insert(shards).values(upper))
        assert await see() == ["look"]


async def holders(bank: Bank) -> dict[int, Any]:
    return {row.lo: row.replica for row in await bank.shards() if row.lock_token is not None}


async def started(stack: AsyncExitStack, bank: Bank) -> AsyncExitStack:
    """Start a replica, which ends with what is returned, or with `stack`."""
    own = await stack.enter_async_context(AsyncExitStack())
    await own.enter_async_context(PipelineManager(bank.sessions, bank.streams.pipelines()))
    return own


async def is_shared(bank: Bank, replicas: int) -> bool:
    """Whether so many replicas hold as many shards each; one that is claimed and not open yet still
    has the name of the replica before.
    """
    found = await holders(bank)
    table = bank.streams.tables.replicas
    async with bank.sessions() as session:
        there = set(await session.scalars(select(table.c.id)))
    held = Counter(found.values())
    return (
        list(held.values()) == [len(await bank.shards()) // replicas] * replicas
        and held.keys() <= there
    )


async def shared(bank: Bank, replicas: int) -> dict[int, Any]:
    """Return the holders once so many replicas hold as many shards each; a shard that has done a
    step since has the name of its holder.
    """
    await until(lambda: is_shared(bank, replicas))
    at = max(row.step for row in await bank.shards())

    async def are_past() -> bool:
        return all(row.step > at for row in await bank.shards()) and await is_shared(bank, replicas)

    await until(are_past)
    return await holders(bank)


OLD, NEW = "1", "2"
REPLICAS = 2


async def bank_of(database: TemporaryDatabase, version: str) -> Bank:
    bank = await open_bank(database, shards=4, version=version, **FAST)
    add_up(bank)
    return bank


@pytest.mark.at_length
async def test_replica_by_replica(database: TemporaryDatabase) -> None:
    """Shards would move again and again while new code is rolled out, or be with old code still;
    or a payment be counted twice on the way.
    """
    old, new = await bank_of(database, OLD), await bank_of(database, NEW)
    async with AsyncExitStack() as stack:
        ending = [await started(stack, old) for _ in range(REPLICAS)]
        await old.pay(200)
        await until(lambda: is_shared(old, REPLICAS))
        seen = [await holders(old)]
        for number, each in enumerate(ending, 1):
            await started(stack, new)

            async def are_there(number: int = number) -> bool:
                return await old.count("replicas") == REPLICAS + 1

            await until(are_there)
            await old.pay(100)
            await until(lambda: is_at_end(old))
            assert await holders(old) == seen[-1], "what is held stays where it is"
            await each.aclose()
            await until(lambda: is_shared(old, REPLICAS))
            seen.append(await holders(old))
        await old.pay(100)
        await until(lambda: is_at_end(old))
    moves = Counter(lo for one, other in pairwise(seen) for lo in one if one[lo] != other[lo])
    assert set(moves.values()) == {1}
    assert len(moves) == 4
    assert await old.balances() == old.paid


async def test_another_declaration_is_refused(database: TemporaryDatabase) -> None:
    """States would be read as what they are not; or the replicas that are right would stop."""
    bank = await bank_of(database, OLD)
    changed = Streams(bank.streams.tables.flow_model)
    changed.tables = bank.streams.tables
    flow = changed.flow("balances", bank.payment, **FAST)

    @flow.by_key(state=str)
    def other(step: StepContext, key: str, state: str | None, events: list[Paid]) -> str:
        raise AssertionError("it has claimed a shard")

    refused = PipelineManager(bank.sessions, changed.pipelines())
    async with PipelineManager(bank.sessions, bank.streams.pipelines()), AsyncExitStack() as stack:
        await bank.pay(100)
        await until(lambda: is_at_end(bank))
        await stack.enter_async_context(refused)

        async def is_reported() -> bool:
            return "FlowChangedError" in str(refused.health())

        await until(is_reported)
        assert not refused.health().healthy
        await bank.pay(100)
        await until(lambda: is_at_end(bank))
        assert len(set((await holders(bank)).values())) == 1
        assert await bank.count("replicas") == 1
    assert await bank.balances() == bank.paid
