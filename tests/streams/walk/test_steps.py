"""Steps from payments to balances, on both databases."""

from __future__ import annotations

import pytest

from rowlock.streams.cutting.plan import Checkpoint
from rowlock.testing import TemporaryDatabase, run_until_settled

from .flows import add_up, open_bank


@pytest.mark.parametrize("shards", [1, 16])
@pytest.mark.parametrize("steps", [1, 5, 1000])
async def test_each_payment_is_counted_once(
    database: TemporaryDatabase, steps: int, shards: int
) -> None:
    """Payments would be lost, or counted twice, in one of the modes."""
    bank = await open_bank(database, shards=shards, checkpoint=Checkpoint(steps=steps))
    add_up(bank)
    for _ in range(3):
        await bank.pay(150)
        await run_until_settled(bank.sessions, bank.streams.pipelines())
        # What stops writes its states, in every mode.
        assert await bank.balances() == bank.paid
    rows = await bank.shards()
    next_step = (await bank.flow_row()).next_step
    assert [(row.step, row.version) for row in rows] == [(next_step, next_step)] * shards
    assert next_step >= 9
