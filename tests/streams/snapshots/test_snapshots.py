"""Snapshots: states of all shards at the start of one step, read while they do the next ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import func, insert, select, update

from rowlock import (
    ConfigurationError,
    NotProcessedYet,
    PipelineError,
    PipelineManager,
    StoreClosedError,
    VersionNotFoundError,
)
from rowlock.rows.database_time import database_time_after
from rowlock.streams import FORGET, Checkpoint, Forget, StateSnapshot, StepContext, Streams
from rowlock.streams import snapshots as snapshot
from rowlock.streams.coordinator import Expiry
from rowlock.streams.cutter import Cutter, KnownFlow
from rowlock.streams.snapshots import SnapshotKeeping
from rowlock.testing import TemporaryDatabase

from ...lengths import at_length
from ..exchange.ledger import FAST, Ledger, open_ledger
from ..folds.books import Payment, open_books
from ..walk.flows import Paid, is_at_end, lose_leases, open_bank, pay, until
from .reading import LONG_AGO, LONG_S, change_flow, do_more, is_requested, read, started_bank

pytestmark = pytest.mark.either_database(but=["test_each_snapshot_is_of_one_step"])

EACH = pytest.mark.parametrize("steps", at_length([7], [1, 7]))


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
            for _ in range(2):
                async with ledger.flow.snapshot(ledger.sessions, timeout=LONG_S) as frozen:
                    await check(ledger, frozen)
                seen.append(frozen.step)
        finally:
            is_over.set()
            await transfers
    assert seen == sorted(set(seen))


@pytest.mark.at_length
@EACH
async def test_shards_move_and_are_divided_meanwhile(
    database: TemporaryDatabase, steps: int
) -> None:
    """A shard that was divided, or came from a replica that died, would have lost what it had kept
    for a snapshot.
    """
    ledger = await open_ledger(database, checkpoint=Checkpoint(steps=steps), shards=2)
    async with ledger.replicas(2):
        await ledger.transfer_some(100)
        await ledger.wait_for_end()
        async with ledger.flow.snapshot(ledger.sessions, timeout=LONG_S) as frozen:
            await ledger.transfer_some(100)
            async with ledger.sessions.begin() as session:
                await ledger.flow.reshard(session, 4)
            await lose_leases(ledger)
            await until(lambda: has_shards(ledger, 4))
            await ledger.transfer_some(100)
            await lose_leases(ledger)
            await ledger.wait_for_end()
            await check(ledger, frozen)
        async with ledger.flow.snapshot(ledger.sessions, timeout=LONG_S) as later:
            await check(ledger, later)
    assert later.step > frozen.step


async def is_above(number: Callable[[], int], least: int) -> bool:
    return number() >= least


async def has_shards(ledger: Ledger, count: int) -> bool:
    return len(await ledger.shards()) == count


async def test_what_is_dropped_is_in_the_snapshot(database: TemporaryDatabase) -> None:
    """An account that was closed during an audit would be missing, and a new one be there."""
    bank = await open_bank(database, **FAST)

    @bank.flow.by_key(state=int)
    def add(step: StepContext, key: str, state: int | None, events: list[Paid]) -> int | Forget:
        after = (state or 0) + sum(event.cents for event in events)
        return after if after > 0 else FORGET

    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await pay(bank.sessions, bank.payment, [("", 4), ("closed", 5), ("kept", 7)])
        await until(partial(is_at_end, bank))
        async with bank.flow.snapshot(bank.sessions, timeout=LONG_S) as frozen:
            await pay(bank.sessions, bank.payment, [("closed", -5), ("kept", 1), ("new", 2)])
            await until(partial(is_at_end, bank))
            transact: Any = bank.streams.tables.opened_by(bank.sessions).transact
            expiry = Expiry(bank.flow.program, transact, present_for=timedelta(days=1))
            await expiry.run(goes_on=lambda: True)
            assert {key: cents async for key, cents in frozen.items(add)} == {
                "": 4,
                "closed": 5,
                "kept": 7,
            }
        async with bank.flow.snapshot(bank.sessions, timeout=LONG_S) as later:
            assert await read(later) == {"": 4, "kept": 8, "new": 2}


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_reader_that_is_too_slow_gets_an_error(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """A reader would be given the first pages of one step, and the last ones of another."""
    monkeypatch.setattr(snapshot, "PAGE_KEYS", 5)
    bank = await started_bank(database)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        async with bank.flow.snapshot(bank.sessions, timeout=LONG_S) as frozen:
            items = frozen.items("add", int)
            first = [await anext(items) for _ in range(5)]
            assert len(first) < len(bank.paid)
            await change_flow(bank, kept_until=LONG_AGO)
            if is_replaced:
                async with bank.flow.snapshot(bank.sessions, timeout=LONG_S) as other:
                    with pytest.raises(VersionNotFoundError) as caught:
                        await anext(items)
                    assert await read(other) == bank.paid
            else:
                with pytest.raises(VersionNotFoundError) as caught:
                    await anext(items)
            assert caught.value.version == frozen.step
        # The end of the first reader was no end of another snapshot's.
        assert (await bank.flow_row()).kept_by == 0


async def test_a_snapshot_is_not_replaced_while_it_is_read(database: TemporaryDatabase) -> None:
    """Every audit would fail as soon as there are two."""
    bank = await started_bank(database)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        async with bank.flow.snapshot(bank.sessions, timeout=LONG_S) as frozen:
            before = Counter(bank.paid)
            row = await bank.flow_row()
            assert row.kept_until - row.now >= timedelta(seconds=60)

            async def audit() -> dict[str, int]:
                async with bank.flow.snapshot(bank.sessions, timeout=LONG_S) as other:
                    assert other.step > frozen.step
                    return await read(other)

            second = asyncio.create_task(audit())
            await until(is_requested(bank, 1))
            await do_more(bank)
            assert (await bank.flow_row()).kept_snapshot == frozen.step
            assert await read(frozen) == before != bank.paid
        assert await second == bank.paid
        row = await bank.flow_row()
        assert (row.kept_by, row.kept_until, row.snapshots_requested) == (0, None, 0)


async def test_readers_that_ask_together_share_one(database: TemporaryDatabase) -> None:
    """The end of the first reader would take the snapshot from the others."""
    bank = await started_bank(database)
    async with bank.sessions.begin() as session:
        await bank.flow.pause(session)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        blocks = [bank.flow.snapshot(bank.sessions, timeout=LONG_S) for _ in range(3)]
        entering = [asyncio.create_task(block.__aenter__()) for block in blocks]
        await until(is_requested(bank, 3))
        async with bank.sessions.begin() as session:
            await bank.flow.resume(session)
        frozen = [await one for one in entering]
        assert len({one.step for one in frozen}) == 1
        before = Counter(bank.paid)
        for left in (3, 2, 1):
            assert (await bank.flow_row()).kept_by == left
            await do_more(bank)
            assert await read(frozen[-1]) == before
            await blocks[3 - left].__aexit__(None, None, None)
        row = await bank.flow_row()
        assert (row.kept_by, row.kept_until) == (0, None)


async def test_a_dead_reader_holds_up_no_others_for_long(database: TemporaryDatabase) -> None:
    """An audit that was killed would have been the last one."""
    bank = await started_bank(database)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        async with AsyncExitStack() as reader:
            await reader.enter_async_context(bank.flow.snapshot(bank.sessions, timeout=LONG_S))
            killed = reader.pop_all()
        assert (await bank.flow_row()).kept_by == 1
        await change_flow(bank, kept_until=LONG_AGO)
        async with bank.flow.snapshot(bank.sessions, timeout=LONG_S) as frozen:
            assert await read(frozen) == bank.paid
        await killed.aclose()  # collected instead, it would end in a task behind the test


async def test_who_waits_no_longer_is_not_counted(database: TemporaryDatabase) -> None:
    """A snapshot would be cut, and kept for a minute, for each request that was given up; or an
    operator look for a reader that keeps the last one, where no replica runs.
    """
    bank = await started_bank(database)
    with pytest.raises(NotProcessedYet, match="no replica holds a shard"):
        await bank.flow.snapshot(bank.sessions, timeout=0).__aenter__()
    async with bank.sessions.begin() as session:
        await bank.flow.pause(session)
    with pytest.raises(NotProcessedYet, match="paused"):
        await bank.flow.snapshot(bank.sessions, timeout=0).__aenter__()
    assert (await bank.flow_row()).snapshots_requested == 0
    waiting = asyncio.create_task(bank.flow.snapshot(bank.sessions, timeout=LONG_S).__aenter__())
    await until(is_requested(bank, 1))
    waiting.cancel()
    await asyncio.wait({waiting})
    assert (await bank.flow_row()).snapshots_requested == 0


@pytest.mark.parametrize("is_over", [False, True])
async def test_who_gives_up_behind_the_cut_reads_no_more(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """A snapshot that not all shards have written would be read, or be kept for nobody."""
    bank = await started_bank(database)
    looks, look = 0, SnapshotKeeping._look

    async def counted(keeping: SnapshotKeeping, asked_at: int) -> Any:
        nonlocal looks
        looks += 1
        return await look(keeping, asked_at)

    monkeypatch.setattr(SnapshotKeeping, "_look", counted)
    waiting = asyncio.create_task(bank.flow.snapshot(bank.sessions, timeout=LONG_S).__aenter__())
    await until(is_requested(bank, 1))
    row = await bank.flow_row()
    until_then = LONG_AGO if is_over else database_time_after(timedelta(hours=1))
    cut = {"flow_id": row.id, "step": row.next_step, "upto": row.upto, "now": row.now}
    async with bank.sessions.begin() as session:
        steps = bank.streams.tables.steps
        await session.execute(insert(steps).values(**cut, checkpoint=True, snapshot=True))
        kept = {"kept_by": 1, "kept_until": until_then, "kept_snapshot": row.next_step + 1}
        flows = bank.streams.tables.flows
        changed = {**kept, "next_step": row.next_step + 1, "snapshots_requested": 0}
        await session.execute(update(flows).values(changed))
    if is_over:
        with pytest.raises(VersionNotFoundError):
            await waiting
    else:
        before = looks
        await until(partial(is_above, lambda: looks, before + 2))
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait({waiting})
    assert (await bank.flow_row()).kept_by == 0


@EACH
async def test_a_lagging_shard_stops_at_the_snapshot(
    database: TemporaryDatabase, steps: int
) -> None:
    """A shard that does many steps together would have written none as of the snapshot."""
    bank = await started_bank(database, checkpoint=Checkpoint(steps=steps), step_rows_max=20)
    program, tables = bank.flow.program, bank.streams.tables
    transact: Any = tables.opened_by(bank.sessions).transact
    cutter, known = Cutter(program, transact), KnownFlow(program)
    block = bank.flow.snapshot(bank.sessions, timeout=LONG_S)
    entering = asyncio.create_task(block.__aenter__())
    await until(is_requested(bank, 1))
    await bank.pay(200)
    for _ in range(6):
        async with bank.sessions() as session:
            await known.look(await session.connection(), first=0)
        await cutter.cut(known, [])
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        frozen = await entering
        await until(partial(is_at_end, bank))
        async with bank.sessions() as session:
            cut = select(tables.steps.c.upto).where(tables.steps.c.step == frozen.step - 1)
            upto = (await session.execute(cut)).scalar_one()["payments"]
            paid = select(bank.payment.account, func.sum(bank.payment.cents))
            paid = paid.where(bank.payment.position <= upto).group_by(bank.payment.account)
            expected = dict(iter(await session.execute(paid)))
        assert sum(expected.values()) < sum(bank.paid.values())
        assert await read(frozen) == expected
        await block.__aexit__(None, None, None)


async def test_what_has_no_states_is_refused(database: TemporaryDatabase) -> None:
    """An audit would find nothing, and report that all is well; or read what nobody keeps."""
    bank = await started_bank(database)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        async with bank.flow.snapshot(bank.sessions, timeout=LONG_S) as frozen:
            with pytest.raises(ConfigurationError, match="none named 'ad'"):
                frozen.items("ad", int)
            with pytest.raises(ConfigurationError, match="are int"):
                frozen.items("add", str)
            with pytest.raises(ConfigurationError, match="another function"):
                frozen.items(lookalike())
        with pytest.raises(StoreClosedError) as caught:
            await read(frozen)
        assert caught.value.version == frozen.step
        service = Streams(bank.streams.tables.flow_model)
        service.tables = bank.streams.tables
        foreign = service.flow("balances", bank.payment)
        async with foreign.snapshot(bank.sessions, timeout=LONG_S) as seen:
            assert await read(seen) == bank.paid
            with pytest.raises(ConfigurationError, match="pass the type"):
                seen.items("add")
    with pytest.raises(PipelineError, match="no row yet"):
        await service.flow("unknown", bank.payment).snapshot(bank.sessions).__aenter__()


def lookalike() -> Any:
    """Return a function that is named as a handler is."""

    def add(step: StepContext, key: str, state: int | None, events: list[Paid]) -> int:
        return 1

    return add


async def test_folds_are_refused(database: TemporaryDatabase) -> None:
    """Rows of the host would be missing, since there is no second version of them."""
    books = await open_books(database)
    bare = books.streams.flow("bare", Payment)

    @bare.by_key()
    def look(step: StepContext, key: str, state: None, events: list[Any]) -> None:
        return None

    async with PipelineManager(database.session_factory, books.streams.pipelines()):
        for flow, name, match in ((books.flow, "add", "is a fold"), (bare, "look", "keeps no")):
            await until(partial(has_row, database, flow, books.streams))
            async with flow.snapshot(database.session_factory, timeout=LONG_S) as frozen:
                with pytest.raises(ConfigurationError, match=match):
                    frozen.items(name)


async def has_row(database: TemporaryDatabase, flow: Any, streams: Streams) -> bool:
    table = streams.tables.flows
    async with database.session_factory() as session:
        return await session.scalar(select(table.c.id).where(table.c.name == flow.name)) is not None
