"""One coordinator at a time, and none on the path of a step."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

import pytest

from rowlock import PipelineManager
from rowlock.rows.database_time import database_time_after
from rowlock.testing import TemporaryDatabase, stepping

from ..walk.waiting import FAST, is_at_end, until
from .rounds import HOUR, coordinating, coordinator_of, created, write

pytestmark = pytest.mark.either_database(but=["test_of_two_coordinators_one_works"])


async def test_steps_go_on_beside_a_dead_coordinator(database: TemporaryDatabase) -> None:
    """A flow would stand still until the lease of its dead coordinator has ended."""
    bank = await created(database, **FAST)
    expires = database_time_after(HOUR)
    dead = {"lock_token": uuid4(), "lock_owner": "dead", "lock_expires_at": expires}
    await write(bank, "flows", **dead)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await bank.pay(150)
        await until(partial(is_at_end, bank))
        async with bank.sessions.begin() as session:
            await bank.flow.pause(session)
            await bank.flow.resume(session)
        await bank.pay(50)
        await until(partial(is_at_end, bank))
    assert await bank.balances() == bank.paid
    assert (await bank.flow_row()).lock_token == dead["lock_token"]


async def test_of_two_coordinators_one_works(database: TemporaryDatabase) -> None:
    """Two would write what each of them has seen, the later what is older."""
    bank = await created(database)
    async with coordinating(bank) as one, coordinating(bank) as other:
        assert await one.claim() == 1
        assert await other.claim() == 0
        await one.steps.work_once()
        assert await other.claim() == 1


async def test_a_coordinator_that_was_replaced_writes_nothing(database: TemporaryDatabase) -> None:
    """A coordinator that was frozen and thaws would write what it saw before."""
    bank = await created(database)
    async with coordinating(bank) as late:
        assert await late.claim() == 1
        await write(bank, "flows", lock_token=uuid4())
        await write(bank, "shards", step=7, version=7)
        await late.steps.work_once()
        assert (await bank.flow_row()).frontier == 0


async def test_a_changed_flow_is_not_coordinated(database: TemporaryDatabase) -> None:
    """A replica with another declaration would write about a flow that it does not know."""
    bank = await created(database)
    await write(bank, "flows", fingerprint="another")
    async with stepping(bank.sessions, coordinator_of(bank)) as steps:
        assert await steps.fetch_once() == []
