"""Flows and logs that are deleted for good: refused while somebody needs them, and then wholly."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import PipelineManager, database_now
from rowlock.errors import ConfigurationError, PipelineError
from rowlock.rows.database_time import database_time_after
from rowlock.stream_errors import StillInUse
from rowlock.streams import StepContext, Streams
from rowlock.streams import flow_row as deleting
from rowlock.streams.consumers import StepOutput
from rowlock.streams.flow_row import ensure_flow
from rowlock.streams.inputs import event_log
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..walk.flows import Bank, add_up, open_bank
from ..walk.payments import new_base
from ..walk.test_creation import transact_of
from ..walk.waiting import FAST, is_at_end, until

TABLES = ("flows", "shards", "steps", "parts", "state", "outputs", "cursors", "replicas")


async def stopped_bank(database: TemporaryDatabase) -> Bank:
    """Return a bank that has done all, and was stopped."""
    bank = await open_bank(database)
    add_up(bank)
    await bank.pay(200)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    await stop(bank)
    return bank


async def stop(bank: Bank) -> None:
    async with bank.sessions.begin() as session:
        await bank.flow.stop(session)


async def last_result(bank: Bank) -> StepOutput[Any]:
    seen = bank.flow.outputs["seen"]
    steps = [step async for step in seen.consume(bank.sessions, consumer="mailer", follow=False)]
    return steps[-1]


async def acknowledge(bank: Bank, step: StepOutput[Any]) -> None:
    async with bank.sessions.begin() as session:
        await step.ack(session)


async def counts(bank: Bank) -> dict[str, int]:
    return {table: await bank.count(table) for table in TABLES}


async def test_nothing_of_a_flow_is_left(database: TemporaryDatabase) -> None:
    """Rows of flows that nobody has any more would stay for ever, or be taken for a new flow's."""
    bank = await stopped_bank(database)
    await acknowledge(bank, await last_result(bank))
    rows = await counts(bank)
    assert all(rows[table] for table in TABLES if table != "replicas")
    delete = partial(bank.streams.delete_flow, bank.sessions, "balances", discard_results=True)
    assert await delete() == sum(rows.values())
    assert set((await counts(bank)).values()) == {0}
    assert await delete() == 0
    # Of the same name, over the same rows.
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    assert await bank.balances() == bank.paid
    assert (await last_result(bank)).step == (await bank.flow_row()).next_step - 1


async def test_another_flow_keeps_its_rows(database: TemporaryDatabase) -> None:
    """To retire one flow would begin all others anew."""
    bank = await stopped_bank(database)
    other = bank.streams.flow("others", bank.payment, shards=1)

    @other.by_key(state=int)
    def count(step: StepContext, key: str, before: int | None, events: list[Any]) -> int:
        return (before or 0) + len(events)

    await bank.streams.delete_flow(bank.sessions, "balances", discard_results=True)
    await run_until_settled(bank.sessions, bank.streams.pipelines(other))
    before = await counts(bank)
    assert before["flows"] == before["shards"] == 1
    assert await bank.streams.delete_flow(bank.sessions, "balances") == 0
    assert await counts(bank) == before


async def test_a_flow_that_is_worked_on_is_refused(database: TemporaryDatabase) -> None:
    """States would be deleted under the replica that works on them."""
    bank = await open_bank(database, **FAST)
    add_up(bank)
    delete = partial(bank.streams.delete_flow, bank.sessions, "balances", discard_results=True)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await bank.pay(50)
        await until(partial(is_at_end, bank))
        with pytest.raises(StillInUse, match=r"it is running: call stop\(\)"):
            await delete()
        await stop(bank)

        async def are_free() -> bool:
            return all(row.lock_token is None for row in await bank.shards())

        await until(are_free)
        with pytest.raises(StillInUse, match="end the processes that have it"):
            await delete()
    assert await bank.balances() == bank.paid
    assert await delete() > 0


async def test_a_shard_that_is_leased_is_refused(database: TemporaryDatabase) -> None:
    """A replica that only stalled would be without the shard that it holds."""
    bank = await stopped_bank(database)
    shards = bank.streams.tables.shards
    expires = database_time_after(timedelta(hours=1))
    lease = {"lock_token": UUID(int=1), "lock_expires_at": expires}
    async with bank.sessions.begin() as session:
        await session.execute(update(shards).where(shards.c.lo == 0).values(lease))
    with pytest.raises(StillInUse, match="1 of its shards are leased"):
        await bank.streams.delete_flow(bank.sessions, "balances", discard_results=True)
    assert await bank.count("shards") == 4


async def test_results_that_are_kept_are_asked_for(database: TemporaryDatabase) -> None:
    """Results that nobody has read would be lost without a word."""
    bank = await stopped_bank(database)
    delete = partial(bank.streams.delete_flow, bank.sessions, "balances")
    before = await counts(bank)
    with pytest.raises(StillInUse, match="'seen' keeps results: discard"):
        await delete()
    seen = bank.flow.outputs["seen"]
    first = await anext(seen.consume(bank.sessions, consumer="mailer"))
    await acknowledge(bank, first)
    with pytest.raises(StillInUse, match="'mailer' has not read all of its output 'seen'"):
        await delete()
    assert await counts(bank) == {**before, "cursors": 2}
    await acknowledge(bank, last := await last_result(bank))
    async with bank.sessions.begin() as session:
        await seen.discard(session, last.step + 1)
    assert await delete() > 0


async def test_a_flow_that_is_read_is_refused(database: TemporaryDatabase) -> None:
    """A flow over its results would wait for ever for steps that nobody does."""
    bank = await stopped_bank(database)
    below = bank.streams.flow("sums", bank.flow.outputs["seen"], shards=1)

    @below.by_key(state=int)
    def add(step: StepContext, key: str, before: int | None, seen: list[int]) -> int:
        return (before or 0) + sum(seen)

    delete = partial(bank.streams.delete_flow, bank.sessions, discard_results=True)
    await ensure_flow(below.program, transact_of(bank))
    with pytest.raises(StillInUse, match="the flow 'sums' reads its results"):
        await delete("balances")
    async with bank.sessions.begin() as session:
        await below.stop(session)
    assert await delete("sums") > 0
    assert await delete("balances") > 0


async def test_what_is_cut_short_is_ended_later(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a flow would be taken for a whole one, or stay for ever."""
    bank = await stopped_bank(database)
    delete = partial(bank.streams.delete_flow, bank.sessions, "balances", discard_results=True)
    delete_some, calls = deleting._delete_some, 0

    async def dies(connection: AsyncConnection, *args: Any) -> int:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise RuntimeError("dies here")
        return await delete_some(connection, *args)

    monkeypatch.setattr(deleting, "_delete_some", dies)
    with pytest.raises(RuntimeError):
        await delete()
    monkeypatch.undo()
    below = bank.streams.flow("sums", bank.flow.outputs["seen"], shards=1)
    below.by_key()(lambda step, key, state, events: None)
    for flow in (bank.flow, below):
        with pytest.raises(PipelineError, match="'balances' is being deleted"):
            await ensure_flow(flow.program, transact_of(bank))
    async with bank.sessions.begin() as session:
        with pytest.raises(PipelineError, match="'balances' is being deleted"):
            await bank.flow.start(session)
    await asyncio.gather(delete(), delete())
    assert set((await counts(bank)).values()) == {0}


async def test_so_much_of_a_flow_is_deleted_at_once(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A year of states would be deleted in one transaction; or a consumer get half a step."""
    bank = await stopped_bank(database)
    monkeypatch.setattr(deleting, "DELETED_ROWS_MAX", 10)
    deletion = deleting.Deletion(bank.sessions, bank.streams.tables)
    seen: list[tuple[int, set[int]]] = []
    transact = deletion._transact

    async def watched(work: Any) -> int:
        count = await transact(work)
        seen.append((count, {step for step, _, _ in await bank.results()}))
        return count

    deletion._transact = watched  # type: ignore[method-assign]
    per_step = [step for step, _, _ in await bank.results()]
    longest = max(map(per_step.count, per_step))
    await deletion.delete_flow("balances", discard_results=True)
    assert longest > 10
    assert max(count for count, _ in seen) <= longest
    # Whole steps, the first ones first.
    left = [steps for _, steps in seen]
    assert all(steps == set(range(min(steps), max(per_step) + 1)) for steps in left if steps)
    assert set((await counts(bank)).values()) == {0}


async def test_a_flow_that_is_there_anew_is_not_deleted(database: TemporaryDatabase) -> None:
    """Two who delete a flow would delete the one that is made between them."""
    bank = await stopped_bank(database)
    deletion = deleting.Deletion(bank.sessions, bank.streams.tables)
    transact, calls = deletion._transact, 0

    async def late(work: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            await bank.streams.delete_flow(bank.sessions, "balances", discard_results=True)
            await run_until_settled(bank.sessions, bank.streams.pipelines())
        return await transact(work)

    deletion._transact = late  # type: ignore[method-assign]
    await deletion.delete_flow("balances", discard_results=True)
    assert await bank.balances() == bank.paid


async def test_a_late_acknowledgement_is_not_taken_for_a_new_flows(
    database: TemporaryDatabase,
) -> None:
    """A consumer would never get the first steps of the flow that comes after."""
    bank = await stopped_bank(database)
    last = await last_result(bank)
    await bank.streams.delete_flow(bank.sessions, "balances", discard_results=True)
    await acknowledge(bank, last)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    mailer = bank.flow.outputs["seen"].consume(bank.sessions, consumer="mailer")
    assert (await anext(mailer)).step == 0


async def test_nothing_of_a_log_is_left(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that no flow reads would stay for ever: only flows expire them."""
    monkeypatch.setattr(event_log, "EXPIRY_ROWS_MAX", 10)
    base, _ = new_base()
    streams = Streams(base)
    await database.create_tables(base.metadata)
    sessions = database.session_factory
    for name in ("old", "other"):
        log = streams.log(name, str, key=str)
        for seq in range(15):
            async with sessions.begin() as session:
                await log.append(session, ["a", "b"], producer="p", seq=seq)
    tables = streams.tables
    flow = {"id": 1, "name": "reader", "fingerprint": "", "upto": {"old": 0}}
    flow["due_at"] = database_now()
    async with sessions.begin() as session:
        await session.execute(insert(tables.flows).values(flow))
    with pytest.raises(StillInUse, match=r"the log 'old' .* the flow 'reader' reads it"):
        await streams.delete_log(sessions, "old")
    async with sessions.begin() as session:
        await session.execute(tables.flows.delete())
    assert await Streams(base).delete_log(sessions, "old") == 45
    assert await Streams(base).delete_log(sessions, "old") == 0
    async with sessions() as session:
        names = list(await session.scalars(select(tables.log.c.stream)))
        numbers = await session.execute(tables.appends.select())
    assert names == ["other"] * 30
    assert {row.stream for row in numbers} == {"other"}


async def test_names_that_are_none(database: TemporaryDatabase) -> None:
    """A slip would be taken for a flow that was deleted before."""
    streams = Streams(new_base()[0])
    for delete in (streams.delete_flow, streams.delete_log):
        with pytest.raises(ConfigurationError, match="without '/'"):
            await delete(database.session_factory, "a/b")
