"""The row of a shard that was joined to its sibling is gone before its lease is given back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rowlock import PipelineManager
from rowlock.streams.shards.dividing import Resharding
from rowlock.streams.shards.replicas import OwnShard
from rowlock.testing import TemporaryDatabase

from .flows import add_up, open_bank
from .waiting import FAST, until

pytestmark = pytest.mark.either_database


async def test_a_heartbeat_behind_a_join(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat that finds the row deleted would take its lease for lost, and warn of it."""
    bank = await open_bank(database, shards=2, **FAST)
    add_up(bank)
    seen: list[bool] = []
    join = Resharding.join

    async def watched(self: Resharding, lower: OwnShard, upper: OwnShard) -> bool:
        transact: Callable[..., Awaitable[Any]] = self._transact

        async def and_look(*arguments: Any, **options: Any) -> None:
            await transact(*arguments, **options)
            seen.append(upper.item.is_settling)

        self._transact = and_look
        return await join(self, lower, upper)

    monkeypatch.setattr(Resharding, "join", watched)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):

        async def are_so_many(number: int) -> bool:
            return len(await bank.shards()) == number

        await until(lambda: are_so_many(2))
        async with bank.sessions.begin() as session:
            await bank.flow.reshard(session, 1)
        await until(lambda: are_so_many(1))
    assert seen == [True]
