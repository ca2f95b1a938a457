"""Replicas of two versions of the host's code on one flow, and of two declarations of it."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest

from rowlock import PipelineManager
from rowlock.streams import StepContext, Streams
from rowlock.testing import TemporaryDatabase

from .flows import Bank, add_up, open_bank
from .payments import Paid
from .replicas import holders, is_shared, started
from .waiting import FAST, is_at_end, until

pytestmark = pytest.mark.either_database

OLD, NEW = "1", "2"
REPLICAS = 2


async def bank_of(database: TemporaryDatabase, version: str) -> Bank:
    bank = await open_bank(database, shards=8, version=version, **FAST)
    add_up(bank)
    return bank


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
    assert len(moves) == 8
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
