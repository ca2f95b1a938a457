"""A shard that is slow, and one that is parked, beside one that is neither."""

from __future__ import annotations

import threading
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import select, update

from rowlock import PipelineManager, database_now
from rowlock.streams.computing.handlers import StepContext
from rowlock.streams.computing.hashing import BUCKETS
from rowlock.testing import TemporaryDatabase

from ...host import HANG_S_MAX
from ..exchange.by_hand import by_hand
from .flows import FAST, Bank, Paid, add_up, is_at_end, open_bank, pay, until

pytestmark = pytest.mark.either_database

LOWER, UPPER = 0, BUCKETS // 2
"""Where two shards begin."""
AHEAD_MAX = 3
FREE = {"lock_token": None, "lock_owner": None, "lock_expires_at": None}


async def rows_of_steps(bank: Bank) -> list[int]:
    steps = bank.streams.tables.steps
    async with bank.sessions() as session:
        uptos = list(await session.scalars(select(steps.c.upto).order_by(steps.c.step)))
    return [after["payments"] - before["payments"] for before, after in pairwise(uptos)]


async def test_a_slow_shard_makes_steps_longer(database: TemporaryDatabase) -> None:
    """Steps would be cut a payment at a time while one shard is slow, which then does each of them
    in a transaction of its own.
    """
    bank: Any = await open_bank(database, shards=2, steps_ahead_max=AHEAD_MAX)
    add_up(bank)
    async with by_hand(bank, 2) as (one, slow):
        await one.claim(LOWER)
        await slow.claim(UPPER)
        for _ in range(AHEAD_MAX + 4):
            await bank.pay(5)
            await one.until_stuck()
        assert await rows_of_steps(bank) == [5] * AHEAD_MAX
        assert [row.step for row in await bank.shards()] == [AHEAD_MAX, 0]
        await slow.until_stuck()
        await one.until_stuck()
        assert await rows_of_steps(bank) == [5] * AHEAD_MAX + [20]


@pytest.mark.parametrize("lease", [{}, FREE], ids=["held", "free"])
async def test_a_parked_shard_does_not_hold_back_the_cut(
    database: TemporaryDatabase, lease: dict[str, None]
) -> None:
    """One event that cannot be handled would stop the whole flow."""
    bank: Any = await open_bank(database, shards=2, steps_ahead_max=AHEAD_MAX)
    add_up(bank)
    async with by_hand(bank, 2) as (one, other):
        await one.claim(LOWER)
        await other.claim(UPPER)
        shards = bank.streams.tables.shards
        parked = update(shards).where(shards.c.lo == UPPER).values(parked_at=database_now())
        async with bank.sessions.begin() as session:
            await session.execute(parked.values(lease))
        for _ in range(AHEAD_MAX + 4):
            await bank.pay(5)
            await one.until_stuck()
        assert await rows_of_steps(bank) == [5] * (AHEAD_MAX + 4)
        assert [row.step for row in await bank.shards()] == [AHEAD_MAX + 4, 0]


async def test_a_handler_that_hangs_holds_up_neither_other_shards_nor_the_end(
    database: TemporaryDatabase,
) -> None:
    """Handlers run on daemon threads; one shard's handler does not hold up the others, its replica
    ends while it hangs, and its shard goes on elsewhere.
    """
    bank: Any = await open_bank(database, **FAST)
    hangs, go_on = threading.Event(), threading.Event()
    hung: list[threading.Thread] = []

    @bank.flow.by_key(state=int)
    def add(step: StepContext, key: str, balance: int | None, events: list[Paid]) -> int:
        if key == "hangs" and not hangs.is_set():
            hangs.set()
            hung.append(threading.current_thread())
            go_on.wait(HANG_S_MAX)
        return (balance or 0) + sum(event.cents for event in events)

    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await pay(bank.sessions, bank.payment, [("hangs", 1)])
        bank.paid["hangs"] += 1

        async def does_it_hang() -> bool:
            return hangs.is_set()

        await until(does_it_hang)
        for _ in range(3):
            await bank.pay(60)

        async def do_the_others_go_on() -> bool:
            row = await bank.flow_row()
            steps = [one.step for one in await bank.shards()]
            return row.upto["payments"] >= 181 and sorted(steps)[1:] == [row.next_step] * 3

        await until(do_the_others_go_on)
    assert [(one.is_alive(), one.daemon) for one in hung] == [(True, True)]
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await until(partial(is_at_end, bank))
        go_on.set()
    assert await bank.balances() == bank.paid
