"""Replicas come and go while payments are made, and a flow is changed while it is stopped."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import PipelineManager
from rowlock.streams.cut_plan import Checkpoint
from rowlock.testing import TemporaryDatabase, stepping

from .flows import Bank, add_up, open_bank
from .replicas import is_shared, shared, started
from .test_steps import known_to
from .waiting import FAST, is_at_end, is_cut, until

pytestmark = pytest.mark.either_database(but=["test_one_to_four_to_two"])


async def paid_until(bank: Bank, ended: asyncio.Event) -> None:
    """Make payments until that is given, the next ones when the flow has cut the last."""
    while not ended.is_set():
        await bank.pay(20)
        await until(lambda: is_cut(bank))


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
    """Whether balances and last results are those of the payments."""
    last = {key: value for _, key, value in await bank.results()}
    return await bank.balances() == last == bank.paid


async def test_one_to_four_to_two(database: TemporaryDatabase) -> None:
    """A payment would be lost or counted twice while replicas come and go; or shards would move
    between those that stay.
    """
    # Longer than a starved machine stands still: a lease that ends moves its shard, too.
    settings = {**FAST, "lock_timeout": 20.0}
    bank = await open_bank(database, shards=8, checkpoint=Checkpoint(steps=3), **settings)
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
