"""Snapshots: the states of all shards at the start of one step, read while they do the next ones."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from sqlalchemy import select

from rowlock.streams import Checkpoint, StateSnapshot
from rowlock.streams.queries import snapshot
from rowlock.testing import TemporaryDatabase

from ..exchange.ledger import Ledger, open_ledger
from ..walk.waiting import until

LONG_S = 3600.0
"""Longer than any test: a snapshot comes, or the test's own limit ends it."""
EACH = pytest.mark.parametrize("steps", [1, 7])


async def balances_at(ledger: Ledger, step: int) -> Counter[str]:
    """Recount the ledger over all steps before `step`, from the rows that were added."""
    table, model = ledger.streams.tables.steps, ledger.transfer
    async with ledger.sessions() as session:
        upto = await session.scalar(select(table.c.upto).where(table.c.step == step - 1))
        found = select(model.payer, model.payee, model.cents)
        assert upto is not None
        rows = (await session.execute(found.where(model.position <= upto["transfers"]))).all()
    balances: Counter[str] = Counter()
    for payer, payee, cents in rows:
        balances[payer] -= cents
        balances[payee] += cents
    return balances


async def check(ledger: Ledger, frozen: StateSnapshot) -> None:
    """Compare a snapshot with the recount of its step."""
    found = {key: cents async for key, cents in frozen.items("post", int)}
    assert sum(found.values()) == 0
    assert found == dict(await balances_at(ledger, frozen.step)), frozen.step


@EACH
async def test_each_snapshot_is_of_one_step(
    database: TemporaryDatabase, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard would be shown as of another step than the others, or as of none."""
    monkeypatch.setattr(snapshot, "PAGE_KEYS", 7)
    ledger = await open_ledger(database, checkpoint=Checkpoint(steps=steps), step_rows_max=20)
    is_over = asyncio.Event()

    async def transfer() -> None:
        while not is_over.is_set():
            await ledger.transfer_some(60, per_commit=15)
            await ledger.wait_for_end()

    async with ledger.replicas(2):
        await ledger.transfer_some(60)
        await ledger.wait_for_end()
        transfers = asyncio.create_task(transfer())
        try:
            seen = []
            for _ in range(25):
                async with ledger.flow.snapshot(ledger.sessions, timeout=LONG_S) as frozen:
                    await check(ledger, frozen)
                seen.append(frozen.step)
        finally:
            is_over.set()
            await transfers
    assert seen == sorted(set(seen))


@EACH
async def test_shards_move_and_are_divided_meanwhile(
    database: TemporaryDatabase, steps: int
) -> None:
    """A shard that was divided, or came from a replica that died, would have lost what it had kept
    for a snapshot.
    """
    ledger = await open_ledger(database, checkpoint=Checkpoint(steps=steps), shards=2)
    async with ledger.replicas(2):
        await ledger.transfer_some(200)
        await ledger.wait_for_end()
        async with ledger.flow.snapshot(ledger.sessions, timeout=LONG_S) as frozen:
            await ledger.transfer_some(200)
            async with ledger.sessions.begin() as session:
                await ledger.flow.reshard(session, 8)
            await ledger.lose()
            await until(lambda: has_shards(ledger, 8))
            await ledger.transfer_some(200)
            await ledger.lose()
            await ledger.wait_for_end()
            await check(ledger, frozen)
        async with ledger.flow.snapshot(ledger.sessions, timeout=LONG_S) as later:
            await check(ledger, later)
    assert later.step > frozen.step


async def has_shards(ledger: Ledger, count: int) -> bool:
    """Whether a flow has so many shards."""
    return len(await ledger.shards()) == count
