"""The coordinator: how far a flow is, and why it goes no further, written into its row; one at a
time, and none on the path of a step.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import PipelineManager, events
from rowlock.rows.database_time import database_time_after
from rowlock.streams.events import FlowStalled
from rowlock.streams.stalls import FlowLook
from rowlock.streams.status import FlowLooker
from rowlock.testing import TemporaryDatabase, run_until_settled, stepping

from ..walk.flows import FAST, Bank, add_up, is_at_end, open_bank, until
from .rounds import HOUR, coordinating, coordinator_of, created, hold_all, write

pytestmark = pytest.mark.either_database(
    but=["test_the_frontier_is_written", "test_of_two_coordinators_one_works"]
)


async def test_the_frontier_is_written(database: TemporaryDatabase) -> None:
    """Nobody could see how far all shards are, or it would be told to be further."""
    bank = await open_bank(database)
    add_up(bank)
    await bank.pay(200)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    async with coordinating(bank) as rounds:
        row = await rounds.one()
        assert row.frontier == row.next_step > 0
        assert row.stalled is None
        await write(bank, "shards", bank.streams.tables.shards.c.lo > 0, step=row.next_step + 2)
        assert (await rounds.one()).frontier == row.frontier
        await write(bank, "shards", step=1, version=1)
        assert (await rounds.one()).frontier == row.frontier


async def stalled_with(bank: Bank, **values: Any) -> str:
    await write(bank, "flows", next_step=3)
    await hold_all(bank)
    await write(bank, "shards", bank.streams.tables.shards.c.lo == 0, **values)
    async with coordinating(bank) as rounds:
        assert (await rounds.one()).stalled is None
        return str((await rounds.one()).stalled)


FREE = {"lock_token": None, "lock_owner": None, "lock_expires_at": None}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lock_expires_at": database_time_after(-timedelta(hours=1))}, "no replica holds"),
        (
            {**FREE, "failures": 2, "failed_step": 0, "last_error": "again"},
            "failed 2 times at step 0",
        ),
        ({"failures": 0}, "is busy with step 0 at a replica that is gone"),
    ],
)
async def test_the_cause_of_a_stall_is_written(
    database: TemporaryDatabase, values: dict[str, Any], words: str
) -> None:
    """Whoever looks why nothing moves would have to find it out from the rows."""
    assert words in await stalled_with(await created(database), **values)


async def test_a_stall_is_told_once_and_ends(database: TemporaryDatabase) -> None:
    """A log would fill with one and the same stall, or an alarm never end."""
    bank = await created(database)
    await write(bank, "flows", next_step=1)
    told: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, FlowStalled):
            told.append(f"{event.flow}: {event.reason}")

    stop = events.subscribe(listen)
    async with coordinating(bank) as rounds:
        for _ in range(3):
            row = await rounds.one()
        assert "no replica" in row.stalled
        await hold_all(bank)
        assert "is busy" in (await rounds.one()).stalled
        await write(bank, "shards", step=1, version=1)
        row = await rounds.one()
        assert (row.frontier, row.stalled) == (1, None)
    stop()
    assert [one.split(" the shard")[0].split(" 4 ")[0] for one in told] == [
        "balances: no replica holds",
        "balances:",
    ]


async def test_another_coordinator_keeps_what_is_known(database: TemporaryDatabase) -> None:
    """With each change of the coordinator a stall would seem to be over."""
    bank = await created(database)
    await write(bank, "flows", next_step=1)
    async with coordinating(bank) as rounds:
        await rounds.one()
        before = (await rounds.one()).stalled
    async with coordinating(bank) as rounds:
        assert (await rounds.one()).stalled == before is not None


async def test_what_services_have_asked_for_stays(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that comes while the coordinator is at work would be written over."""
    bank = await created(database)
    look = FlowLooker.look

    async def look_and_be_late(looker: FlowLooker, connection: AsyncConnection) -> FlowLook | None:
        seen = await look(looker, connection)
        async with bank.sessions.begin() as session:
            await bank.flow.reshard(session, 8)
            await bank.flow.pause(session)
            await bank.flow.checkpoint(session)
        return seen

    monkeypatch.setattr(FlowLooker, "look", look_and_be_late)
    async with coordinating(bank) as rounds:
        row = await rounds.one()
    assert row.lock_token is None
    assert (row.shards_wanted, row.state) == (8, "paused")
    assert row.checkpoint_requested


async def test_positions_that_went_back_are_told(database: TemporaryDatabase) -> None:
    """A flow whose next rows would never be seen would look idle."""
    bank = await created(database)
    await write(bank, "flows", upto={"payments": 1000})
    async with coordinating(bank) as rounds:
        await rounds.one()
        assert "was known up to position 1000" in (await rounds.one()).stalled


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
