"""The coordinator: how far a flow is, and why it goes no further, written into its row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import events
from rowlock.rows.database_time import database_time_after
from rowlock.streams.events import FlowStalled
from rowlock.streams.stalls import FlowLook
from rowlock.streams.status import FlowLooker
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..walk.flows import Bank, add_up, open_bank
from .rounds import coordinating, created, hold_all, write

pytestmark = pytest.mark.either_database(but=["test_the_frontier_is_written"])


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
    """Return why a flow is stalled of which one shard is as `values` say."""
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
        (FREE, "no replica holds the shard of buckets 0..16384, at step 0"),
        ({"lock_expires_at": database_time_after(-timedelta(hours=1))}, "no replica holds"),
        (
            {**FREE, "parked_at": database_time_after(-timedelta(0)), "last_error": "broken"},
            "is parked at step 0: broken",
        ),
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
