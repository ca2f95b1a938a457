"""Expiry: what nobody needs is deleted, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase

from rowlock.rows.database_time import database_time_after
from rowlock.streams import EventLog, StepContext, Streams
from rowlock.streams import coordinator as expiry
from rowlock.streams.cursors import first_needed_step
from rowlock.streams.key_states import drop_empty
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..walk.flows import Bank, add_up, open_bank
from .rounds import coordinating, write

LONG_AGO = database_time_after(-timedelta(days=30))


async def old_bank(database: TemporaryDatabase, **settings: Any) -> Bank:
    """Return a bank that has done its steps long ago, and whose results were discarded."""
    bank = await open_bank(database, **settings)
    add_up(bank)
    await bank.pay(200)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    async with bank.sessions.begin() as session:
        await session.execute(bank.streams.tables.outputs.delete())
    await write(bank, "steps", now=LONG_AGO)
    return bank


async def expire(bank: Bank) -> None:
    async with coordinating(bank) as rounds:
        await rounds.one()


async def kept(bank: Bank, table: str = "steps") -> list[int]:
    rows = getattr(bank.streams.tables, table)
    async with bank.sessions() as session:
        return sorted(set(await session.scalars(select(rows.c.step))))


async def test_what_is_old_and_not_needed_goes(database: TemporaryDatabase) -> None:
    """The tables of a flow would grow for as long as it runs."""
    bank = await old_bank(database)
    end = (await bank.flow_row()).next_step
    assert end > 3
    await expire(bank)
    # The next step begins where the last one ends.
    assert await kept(bank) == [end - 1]
    assert await kept(bank, "parts") in ([], [end - 1])
    await bank.pay(100)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    assert await bank.balances() == bank.paid


async def test_what_is_young_stays(database: TemporaryDatabase) -> None:
    """Nobody could verify what was computed yesterday."""
    bank = await old_bank(database, keep=timedelta(days=40))
    before = await kept(bank), await kept(bank, "parts")
    await expire(bank)
    assert (await kept(bank), await kept(bank, "parts")) == before


@pytest.mark.either_database
async def test_slowest_shard_counts(database: TemporaryDatabase) -> None:
    """A shard that is opened anew could not repeat the steps behind its version."""
    bank = await old_bank(database)
    end = (await bank.flow_row()).next_step
    # It has done all steps, and written its states long before.
    await write(bank, "shards", bank.streams.tables.shards.c.lo > 1 << 15, version=2)
    await expire(bank)
    assert await kept(bank) == list(range(1, end))
    assert min(await kept(bank, "parts")) >= 1


async def test_a_consumer_that_is_behind_counts(database: TemporaryDatabase) -> None:
    """A consumer could not ask for the inputs of a step that it has not acknowledged."""
    bank = await old_bank(database)
    end = (await bank.flow_row()).next_step
    of = {"flow_id": bank.flow.program.id, "output": "seen"}
    tables = bank.streams.tables
    result = {**of, "step": 2, "lo": 0, "seq": 0, "bucket": 0, "payload": "1"}
    async with bank.sessions.begin() as session:
        for consumer, step in (("slow", 1), ("done", end), ("", 0)):
            values = {**of, "at": LONG_AGO, "consumer": consumer, "step": step}
            await session.execute(insert(tables.cursors).values(values))
        await session.execute(insert(tables.outputs).values(result))
    async with bank.sessions() as session:
        connection = await session.connection()
        assert await first_needed_step(connection, tables, bank.flow.program.id) == 2
        await session.execute(tables.cursors.delete().where(tables.cursors.c.consumer == "slow"))
        # Whoever has read all results needs no step, nor the rows of one.
        assert await first_needed_step(connection, tables, bank.flow.program.id) == end
    await expire(bank)
    assert await kept(bank) == list(range(1, end))


@pytest.mark.either_database
async def test_steps_of_results_that_are_kept_stay(database: TemporaryDatabase) -> None:
    """Results would be passed over in silence, since nothing says when they were computed."""
    bank = await open_bank(database)
    add_up(bank)
    await bank.pay(200)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    await write(bank, "steps", now=LONG_AGO)
    await expire(bank)
    read = [step async for step in bank.flow.outputs["seen"].consume(bank.sessions, follow=False)]
    assert sum(len(step.rows) for step in read) == len(await bank.results())


async def test_so_much_is_deleted_at_once(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A year of steps would be deleted in one transaction, or the rest be left."""
    bank = await old_bank(database)
    end = (await bank.flow_row()).next_step
    monkeypatch.setattr(expiry, "EXPIRY_ROWS_MAX", 2)
    monkeypatch.setattr(expiry, "TRANSACTIONS_MAX", 2)
    before = await bank.count("parts") + await bank.count("steps")
    counts = [before]
    async with coordinating(bank) as rounds:
        while len(counts) < 2 or counts[-1] < counts[-2]:
            await rounds.one()
            counts.append(await bank.count("parts") + await bank.count("steps"))
    assert all(one - other <= 4 for one, other in pairwise(counts))
    assert await kept(bank) == [end - 1]


@pytest.mark.either_database
async def test_replicas_that_are_gone_are_forgotten(database: TemporaryDatabase) -> None:
    """The table would have a row for each process that there ever was."""
    bank = await old_bank(database)
    row = {"flow_id": bank.flow.program.id, "name": "x", "code_version": "", "shards": 0}
    row["started_at"] = database_time_after(timedelta(0))
    ages = {"gone": LONG_AGO, "there": database_time_after(timedelta(0))}
    async with bank.sessions.begin() as session:
        for number, age in enumerate(ages.values()):
            values = {**row, "id": replica_id(number), "seen_at": age}
            await session.execute(insert(bank.streams.tables.replicas).values(values))
    await expire(bank)
    async with bank.sessions() as session:
        left = await session.scalars(select(bank.streams.tables.replicas.c.id))
        assert list(left) == [replica_id(1)]


def replica_id(number: int) -> Any:
    return UUID(int=number + 1)


@dataclass
class Click:
    page: str


class Base(DeclarativeBase):
    pass


async def clicked(database: TemporaryDatabase) -> tuple[Bank, EventLog[Click]]:
    """Return a flow over a log whose events are all done, and old."""
    streams = Streams(Base)
    log = streams.log("clicks", Click, key=lambda click: click.page)
    flow: Any = streams.flow("counts", log, shards=2, step_rows_max=5)

    @flow.by_key(state=int)
    def count(step: StepContext, page: str, before: int | None, clicks: list[Click]) -> int:
        return (before or 0) + len(clicks)

    await database.create_tables(Base.metadata)
    bank = Bank(database, None, streams, flow, None)  # type: ignore[arg-type]
    async with bank.sessions.begin() as session:
        await log.append(session, [Click(f"p{n}") for n in range(20)], producer="p", seq=1)
    await run_until_settled(bank.sessions, streams.pipelines())
    await write(bank, "log", at=LONG_AGO)
    await write(bank, "appends", at=LONG_AGO)
    return bank, log


async def test_events_that_were_read_go(database: TemporaryDatabase) -> None:
    """A log would grow for ever, or lose what is younger than it keeps."""
    bank, log = await clicked(database)
    async with bank.sessions.begin() as session:
        await log.append(session, [Click("new")])
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    await expire(bank)
    assert await bank.count("log") == 1


@pytest.mark.either_database
async def test_a_flow_that_is_not_declared_here_counts(database: TemporaryDatabase) -> None:
    """A flow of another service over the same log would find its next rows deleted."""
    bank, _ = await clicked(database)
    tables, now = bank.streams.tables, LONG_AGO
    other = {"id": 7, "name": "other", "fingerprint": "x", "upto": {"clicks": 4}, "next_step": 1}
    before = {"flow_id": 7, "step": -1, "now": now, "checkpoint": True, "snapshot": False}
    async with bank.sessions.begin() as session:
        await session.execute(insert(tables.flows).values(other))
        shard = {"id": 9, "flow_id": 7, "lo": 0, "hi": 1 << 16, "step": 1, "version": 0}
        await session.execute(insert(tables.shards).values(shard))
        await session.execute(insert(tables.steps).values({**before, "upto": {"clicks": 2}}))
        await session.execute(
            insert(tables.steps).values({**before, "step": 0, "upto": {"clicks": 4}})
        )
    await expire(bank)
    async with bank.sessions() as session:
        # It has done step 0, and not written its state.
        assert min(await session.scalars(select(tables.log.c.position))) == 3
    await write(bank, "shards", tables.shards.c.flow_id == 7, version=1)
    await expire(bank)
    async with bank.sessions() as session:
        assert min(await session.scalars(select(tables.log.c.position))) == 5


async def test_a_flow_is_not_created_while_a_log_expires(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A new flow would begin with events that are deleted at this moment."""
    bank, log = await clicked(postgresql_database)
    async with bank.sessions.begin() as one, bank.sessions() as other:
        await log.lock_expiry(await one.connection())
        await other.execute(text("SET lock_timeout = '50ms'"))
        with pytest.raises(DBAPIError, match="lock timeout"):
            await log.lock_begin(await other.connection())


async def test_a_state_that_is_written_meanwhile_is_not_dropped(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A key that comes back while empty states are deleted would lose its state."""
    bank = await old_bank(postgresql_database)
    state, flow_id = bank.streams.tables.state, bank.flow.program.id
    await write(bank, "state", value=None, version=1)
    keys = await bank.count("state")
    async with bank.sessions() as step, bank.sessions() as coordinator:
        written = update(state).where(state.c.key == "a1").values(value="7", version=9)
        await step.execute(written)
        pid = await coordinator.scalar(text("SELECT pg_backend_pid()"))
        connection = await coordinator.connection()
        dropping = asyncio.ensure_future(
            drop_empty(connection, state, flow_id, before=1, limit=1000)
        )
        waits = text("SELECT cardinality(pg_blocking_pids(:pid)) > 0")
        async with bank.sessions() as looker:
            while not await looker.scalar(waits, {"pid": pid}):
                pass
        await step.commit()
        assert await dropping == keys - 1
        await coordinator.commit()
    assert await bank.balances() == {"a1": 7}
