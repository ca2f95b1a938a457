"""Checkpoints: with which steps states are written, and what asks for them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from rowlock import PipelineManager
from rowlock.streams import Checkpoint
from rowlock.streams.shards.runner import FlowRounds
from rowlock.testing import TemporaryDatabase

from .flows import Bank, add_up, is_at_end, open_bank, until

pytestmark = pytest.mark.either_database

RARELY = Checkpoint(steps=100_000)


async def checkpoints(bank: Bank) -> list[Any]:
    steps = bank.streams.tables.steps
    async with bank.sessions() as session:
        found = select(steps).where(steps.c.checkpoint, steps.c.step >= 0).order_by(steps.c.step)
        return list((await session.execute(found)).all())


async def has_checkpoint(bank: Bank) -> bool:
    made = await checkpoints(bank)
    return bool(made) and all(row.version > made[-1].step for row in await bank.shards())


async def test_by_time(database: TemporaryDatabase) -> None:
    """States of a flow to which nothing comes would stay in memory for ever."""
    checkpoint = Checkpoint(steps=100_000, seconds=0.2)
    bank = await open_bank(database, checkpoint=checkpoint, step_rows_max=20)
    add_up(bank)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await bank.pay(60)
        await until(partial(has_checkpoint, bank))
        await until(partial(is_at_end, bank))
        await until(partial(is_written, bank))


async def is_written(bank: Bank) -> bool:
    return await bank.balances() == bank.paid


async def test_by_command(database: TemporaryDatabase) -> None:
    """Whoever is about to replace a replica would have the next one replay all its steps."""
    bank = await open_bank(database, checkpoint=RARELY, step_rows_max=20)
    add_up(bank)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await bank.pay(60)
        await until(partial(is_at_end, bank))
        assert await checkpoints(bank) == []
        async with bank.sessions.begin() as session:
            step = await bank.flow.checkpoint(session)
        await until(partial(has_checkpoint, bank))
        assert [row.step for row in await checkpoints(bank)] == [step]
        assert await bank.balances() == bank.paid
    assert not (await bank.flow_row()).checkpoint_requested


async def test_by_memory(database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica would keep the state of each key that it has ever seen, until it dies of that."""
    bank = await open_bank(
        database, checkpoint=RARELY, step_rows_max=20, dirty_keys_max=50, cached_keys_max=60
    )
    add_up(bank)
    seen: list[int] = []
    end_steps = FlowRounds._end_steps

    async def measured(rounds: FlowRounds, done: Any) -> None:
        await end_steps(rounds, done)
        seen.append(sum(shard.cache.dirty for shard in rounds.shards.values()))

    monkeypatch.setattr(FlowRounds, "_end_steps", measured)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await bank.pay(300, accounts=400)
        await until(partial(is_at_end, bank))
        made = await checkpoints(bank)
        end = (await bank.flow_row()).next_step
    # With each of them all is written, so there are few beside the number of steps.
    assert 3 <= len(made) <= end // 2
    # The step that passes the limit is the last one before that which writes.
    assert max(seen) < 50 + 20
    assert await bank.balances() == bank.paid
