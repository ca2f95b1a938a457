"""Timers: a key is called again without events, also by another holder."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import select, update

from rowlock import PipelineManager
from rowlock.streams.computing.handlers import FORGET, Forget, StepContext
from rowlock.streams.cut_plan import Checkpoint
from rowlock.testing import TemporaryDatabase

from ...lengths import at_length
from .flows import FAST, Bank, Paid, is_at_end, open_bank, until

pytestmark = pytest.mark.either_database(but=["test_a_key_is_called_when_its_timer_is_due"])


def close_after(bank: Bank, wait: timedelta) -> None:
    """Register a handler that emits the sum of a key when its timer is due, and forgets it."""
    closed = bank.flow.output("closed", int)

    @bank.flow.by_key(state=int)
    def collect(step: StepContext, key: str, sum_: int | None, events: list[Paid]) -> int | Forget:
        if not events:
            step.emit(closed, sum_ or 0)
            return FORGET
        step.set_timer(step.now + wait)
        return (sum_ or 0) + sum(event.cents for event in events)


@pytest.mark.parametrize("steps", at_length([1], [1, 1000]))
async def test_a_key_is_called_when_its_timer_is_due(
    database: TemporaryDatabase, steps: int
) -> None:
    """A window would stay open until the next event comes, which may be never."""
    bank = await open_bank(database, checkpoint=Checkpoint(steps=steps), **FAST)
    close_after(bank, timedelta(0))
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await bank.pay(100)

        async def are_all_closed() -> bool:
            return sum(value for _, _, value in await bank.results()) == sum(bank.paid.values())

        await until(are_all_closed)
    assert {key for _, key, _ in await bank.results()} == set(bank.paid)
    assert await bank.balances() == {}


@pytest.mark.parametrize("steps", at_length([1000], [1, 1000]))
async def test_timers_outlive_their_holder(database: TemporaryDatabase, steps: int) -> None:
    """A window would never close once its holder has died."""
    bank = await open_bank(database, checkpoint=Checkpoint(steps=steps), **FAST)
    close_after(bank, timedelta(hours=1))
    state = bank.streams.tables.state
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await bank.pay(100)
        await until(partial(is_at_end, bank))
    # All that was kept is in the database now, and time goes on.
    async with bank.sessions.begin() as session:
        times = await session.scalars(select(state.c.timer_at))
        assert None not in set(times)
        earlier = {"timer_at": select(bank.streams.tables.flows.c.now).scalar_subquery()}
        await session.execute(update(state).values(earlier))
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):

        async def are_all_closed() -> bool:
            return sum(value for _, _, value in await bank.results()) == sum(bank.paid.values())

        await until(are_all_closed)
    assert len(await bank.results()) == len(bank.paid)
