"""Folds: payments into the host's own balances, on both databases."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, update

from rowlock import ConfigurationError, PipelineManager, pipeline_hinter
from rowlock.streams import Checkpoint, StepContext
from rowlock.streams.computing.hashing import BUCKETS, bucket_of
from rowlock.streams.shards.writing import REDONE_MAX
from rowlock.testing import TemporaryDatabase

from ...host import HANG_S_MAX
from ...lengths import at_length
from ..walk.flows import FAST, MEANT, lose_leases, parked, until
from .books import (
    CENTS_MAX,
    Balance,
    Books,
    Labelled,
    Monthly,
    Pause,
    Payment,
    add,
    open_books,
    payments,
    statements_about,
)

pytestmark = pytest.mark.either_database(
    but=[
        "test_each_payment_is_in_a_balance_once",
        "test_a_write_of_the_host_is_not_overwritten",
        "test_a_row_that_the_host_adds_meanwhile",
        "test_a_row_that_the_database_refuses",
        "test_what_the_database_gives_to_a_cached_row",
        "test_rows_are_read_and_written_in_one_statement_each",
    ]
)

RETRIES = {"retry_delay": 0.01, "retry_delay_max": 0.02}


@pytest.mark.parametrize(
    ("shards", "cache"), at_length([(2, False), (4, True)], [(1, True), (2, False), (16, True)])
)
async def test_each_payment_is_in_a_balance_once(
    database: TemporaryDatabase, shards: int, cache: bool
) -> None:
    """A balance would lack a payment, or have one twice, in a layout or after a restart."""
    books = await open_books(database, shards=shards, cache=cache)
    for seed in range(2):
        await books.pay(payments(90, seed=seed))
        await books.settle()
        assert await books.balances() == books.paid
    async with books.sessions() as session:
        rows = await session.execute(select(Balance.account, Balance.payments))
        assert {row.account: row.payments for row in rows} == books.counts


async def test_a_part_of_a_key_that_hangs_holds_up_no_other_shard(
    database: TemporaryDatabase,
) -> None:
    """One shard's handler does not hold up the others; nor does what names the rows of its keys."""
    books = await open_books(database, by_default=False, shards=4, **FAST)
    hangs, go_on = threading.Event(), threading.Event()

    def part(payment: Payment) -> tuple[str, int]:
        if payment.account == "hangs":
            hangs.set()
            go_on.wait(HANG_S_MAX)
        return payment.account, payment.month

    @books.flow.fold(Monthly, by=part)
    def add_month(step: StepContext, month: Monthly, events: Sequence[Payment]) -> None:
        month.cents += sum(event.cents for event in events)

    width = BUCKETS // 4
    accounts = [f"a{n}" for n in range(20)]
    others = {one for one in accounts if bucket_of(one) // width != bucket_of("hangs") // width}

    async def done() -> set[str]:
        async with books.sessions() as session:
            return set(await session.scalars(select(Monthly.account)))

    async def does_it_hang() -> bool:
        return hangs.is_set()

    async def do_the_others_go_on() -> bool:
        return others <= await done()

    async with PipelineManager(books.sessions, books.streams.pipelines()):
        await books.pay([("hangs", 1, 5)])
        await until(does_it_hang)
        await books.pay([(one, 1, 5) for one in accounts])
        await until(do_the_others_go_on)
        assert "hangs" not in await done()
        go_on.set()
        await until(books.has_done_all)
    assert await done() == {"hangs", *accounts}


@pytest.mark.parametrize("cache", [False, True])
async def test_rows_are_read_and_written_in_one_statement_each(
    database: TemporaryDatabase, cache: bool
) -> None:
    """A step of 1,000 accounts would take 2,000 round trips."""
    books = await open_books(database, cache=cache, shards=4, step_rows_max=1000, **FAST)
    accounts = [f"a{n}" for n in range(50)]
    async with PipelineManager(books.sessions, books.streams.pipelines()):
        await until(lambda: is_created(books))
        with statements_about(database, "balances") as new:
            await books.pay([(account, 1, 5) for account in accounts])
            await until(books.has_done_all)
        with statements_about(database, "balances") as again:
            await books.pay([(account, 1, 6) for account in accounts])
            await until(books.has_done_all)
    assert new == ["SELECT", "INSERT"]
    assert again == (["UPDATE"] if cache else ["SELECT", "UPDATE"])
    assert await books.balances() == books.paid


async def is_created(books: Books) -> bool:
    """Whether the flow is there, and all its shards are held."""
    shards = books.streams.tables.shards
    async with books.sessions() as session:
        held = (await session.scalars(select(shards.c.lock_token))).all()
    return bool(held) and None not in held


async def test_only_what_has_changed_is_written(database: TemporaryDatabase) -> None:
    """What the host keeps beside would be overwritten; or a row be there twice."""
    books = await open_books(database)
    async with books.sessions.begin() as session:
        session.add(Balance(account="a1", note="of the host"))
        session.add(Balance(account="other", cents=3))
    await books.pay(payments(100))
    await books.settle()
    async with books.sessions.begin() as session:
        assert (await session.get_one(Balance, "a1")).note == "of the host"
        await session.execute(update(Balance).values(note="later").where(Balance.account == "a2"))
        await session.execute(delete(Balance).where(Balance.account == "a3"))
        # What a host does to a row between two steps counts.
        await session.execute(update(Balance).values(cents=0).where(Balance.account == "a4"))
        del books.paid["a3"], books.paid["a4"]
    await books.pay(payments(100, seed=2))
    await books.settle()
    assert await books.balances() == {**books.paid, "other": 3}
    async with books.sessions() as session:
        assert (await session.get_one(Balance, "a2")).note == "later"


def _pausing(books: Books, pause: Pause, **options: Any) -> None:
    @books.flow.fold(Balance, **options)
    def add_late(step: StepContext, balance: Balance, events: Sequence[Payment]) -> None:
        pause()
        add(step, balance, events)


HOST_WRITES = {
    "changed": (update(Balance).values(cents=Balance.cents + 1000), 1010),
    "deleted": (delete(Balance), 10),
    "reset": (update(Balance).values(cents=0), 10),
    "noted": (update(Balance).values(note="noted"), 20),
}


@pytest.mark.parametrize("write", at_length(["changed", "deleted"], [*HOST_WRITES]))
async def test_a_write_of_the_host_is_not_overwritten(
    database: TemporaryDatabase, write: str
) -> None:
    """What the host does to a row while a step is computed from it would be lost."""
    books = await open_books(database, by_default=False, **FAST)
    pause = Pause()
    _pausing(books, pause)
    async with books.sessions.begin() as session:
        session.add_all([Balance(account="a", cents=10), Balance(account="b", cents=10)])
    statement, expected = HOST_WRITES[write]
    async with PipelineManager(books.sessions, books.streams.pipelines()):
        await books.pay([("a", 1, 10), ("b", 1, 10)])
        await asyncio.to_thread(pause.begun.wait)
        async with books.sessions.begin() as session:
            await session.execute(statement.where(Balance.account == "a"))
        pause.over.set()
        await until(books.has_done_all)
    expected += 10 if write == "changed" else 0
    assert await books.balances() == {"a": expected, "b": 20}


async def test_a_row_that_the_host_adds_meanwhile(database: TemporaryDatabase) -> None:
    """The step would overwrite it, or its shard be parked."""
    books = await open_books(database, by_default=False, failures_max=1, **FAST)
    pause = Pause()
    _pausing(books, pause)
    async with PipelineManager(books.sessions, books.streams.pipelines()):
        await books.pay([("a", 1, 10), ("b", 1, 10)])
        await asyncio.to_thread(pause.begun.wait)
        async with books.sessions.begin() as session:
            await session.execute(insert(Balance).values(account="a", cents=500, payments=0))
        pause.over.set()
        await until(books.has_done_all)
    assert await books.balances() == {"a": 510, "b": 10}


async def test_a_cached_row_that_was_deleted(database: TemporaryDatabase) -> None:
    """A host that breaks its promise would lose payments without a word."""
    books = await open_books(database, cache=True, **FAST)
    async with PipelineManager(books.sessions, books.streams.pipelines()):
        await books.pay([("a", 1, 10), ("b", 1, 10)])
        await until(books.has_done_all)
        async with books.sessions.begin() as session:
            await session.execute(delete(Balance).where(Balance.account == "a"))
        await books.pay([("a", 1, 5), ("b", 1, 5)])
        await until(books.has_done_all)
    assert await books.balances() == {"a": 5, "b": 15}


async def test_what_the_database_gives_to_a_cached_row(database: TemporaryDatabase) -> None:
    """A handler would see nothing where the table has a value."""
    books = await open_books(database, by_default=False, **FAST)
    seen: dict[str, list[str | None]] = {}

    @books.flow.fold(Labelled, cache=True)
    def look(step: StepContext, row: Labelled, events: Sequence[Payment]) -> None:
        row.cents += sum(event.cents for event in events)
        seen.setdefault(row.account, []).append(row.label)

    async with PipelineManager(books.sessions, books.streams.pipelines()):
        for _ in range(3):
            await books.pay([("a", 1, 10), ("b", 1, 10)])
            await until(books.has_done_all)
    assert seen == {key: [None, "of the table", "of the table"] for key in ("a", "b")}


async def test_a_host_that_never_stops_writing(database: TemporaryDatabase) -> None:
    """A shard would do one step for ever, at full speed, and nobody would know."""
    books = await open_books(database, by_default=False, failures_max=1, **FAST, **RETRIES)
    loop, attempts = asyncio.get_running_loop(), list[int]()

    async def write() -> None:
        async with books.sessions.begin() as session:
            await session.execute(update(Balance).values(note=f"n{len(attempts)}"))

    @books.flow.fold(Balance)
    def add_raced(step: StepContext, balance: Balance, events: Sequence[Payment]) -> None:
        attempts.append(step.number)
        asyncio.run_coroutine_threadsafe(write(), loop).result()
        add(step, balance, events)

    async with books.sessions.begin() as session:
        session.add(Balance(account="a"))
    async with PipelineManager(books.sessions, books.streams.pipelines()):
        await books.pay([("a", 1, 10)])

        async def is_over() -> bool:
            return bool(await parked(books)) or len(attempts) > REDONE_MAX

        await until(is_over)
        (text,) = await parked(books)
        assert "balances: 1 rows of a step were changed" in text
    assert await books.balances() == {"a": 0}
    assert attempts == [0] * REDONE_MAX


async def test_a_row_that_the_database_refuses(database: TemporaryDatabase) -> None:
    """One account would stop all others; or its payments be passed over."""
    books = await open_books(database, failures_max=2, **FAST, **RETRIES)
    async with PipelineManager(books.sessions, books.streams.pipelines()):
        await books.pay([("rich", 1, CENTS_MAX), *payments(100)])
        rich = books.paid.pop("rich")
        shards = books.streams.tables.shards

        async def are_the_others_done() -> bool:
            async with books.sessions() as session:
                moving = select(shards.c.step).where(shards.c.parked_at.is_(None))
                steps = set((await session.scalars(moving)).all())
                flow = (await session.execute(select(books.streams.tables.flows))).first()
            if flow is None or not await parked(books):
                return False
            return steps == {flow.next_step} and flow.upto["payments"] > 99

        await until(are_the_others_done)
        (text,) = await parked(books)
        assert "few" in text
        balances = await books.balances()
        assert "rich" not in balances
        # All but those that share its shard.
        assert balances.items() <= books.paid.items()
        assert len(balances) > len(books.paid) / 2
        async with books.sessions.begin() as session:
            await session.execute(
                update(Payment)
                .execution_options(**MEANT)
                .values(cents=1)
                .where(Payment.cents == rich)
            )
            await books.flow.unpark(session)
        await until(books.has_done_all)
    assert await books.balances() == {**books.paid, "rich": 1}


async def test_a_lost_lease_changes_nothing(database: TemporaryDatabase) -> None:
    """Whoever has lost its lease would write rows beside the next holder."""
    for cache in (False, True):
        books = await open_books(database, by_default=False, **FAST)
        pause = Pause()
        _pausing(books, pause, cache=cache)
        async with PipelineManager(books.sessions, books.streams.pipelines()):
            before = await books.balances()
            await books.pay(payments(100))
            await asyncio.to_thread(pause.begun.wait)
            await lose_leases(books)
            pause.over.set()
            await until(books.has_done_all)
        assert await books.balances() == {
            account: before.get(account, 0) + cents for account, cents in books.paid.items()
        }


async def test_the_pipeline_of_the_rows_is_hinted(database: TemporaryDatabase) -> None:
    """It would find rows that have changed when it looks by itself, and no sooner."""
    books = await open_books(database, **FAST)
    woken = asyncio.Event()
    manager = PipelineManager(books.sessions, books.streams.pipelines())
    loop = asyncio.get_running_loop()

    def wake() -> None:
        loop.call_soon_threadsafe(woken.set)

    pipeline_hinter.attach("Balance", wake)
    async with manager:
        await books.pay(payments(5))
        await until(books.has_done_all)
    pipeline_hinter.detach("Balance", wake)
    assert woken.is_set()


async def test_a_fold_has_no_timers(database: TemporaryDatabase) -> None:
    """A timer would be set, and never be due."""
    books = await open_books(database, by_default=False, failures_max=1, **FAST)
    errors = []

    @books.flow.fold(Balance)
    def wait(step: StepContext, balance: Balance, events: Sequence[Payment]) -> None:
        try:
            step.set_timer(step.now)
        except TypeError as error:
            errors.append(str(error))

    await books.pay(payments(1))
    await books.settle()
    assert errors == ["a fold has no timers: keep a state with by_key, and emit into a table"]


async def test_a_fold_behind_an_exchange(database: TemporaryDatabase) -> None:
    """Rows would lack what other shards have sent, or what the host has done meanwhile."""
    books = await open_books(database, by_default=False, failures_max=1, **FAST)
    pause = Pause()
    halves = books.flow.exchange("halves", int)

    @books.flow.by_key()
    def halve(step: StepContext, account: str, _: None, events: Sequence[Payment]) -> None:
        for event in events:
            step.send(halves, f"half of {account}", event.cents)

    @halves.fold(Balance)
    def add_halves(step: StepContext, balance: Balance, cents: Sequence[int]) -> None:
        pause()
        balance.cents += sum(cents)

    async with PipelineManager(books.sessions, books.streams.pipelines()):
        await books.pay(payments(40))
        await asyncio.to_thread(pause.begun.wait)
        async with books.sessions.begin() as session:
            session.add(Balance(account="half of a1", cents=1000))
        pause.over.set()
        await until(books.has_done_all)
        await books.pay(payments(40, seed=2))
        await until(books.has_done_all)
    expected = {f"half of {account}": cents for account, cents in books.paid.items()}
    expected["half of a1"] += 1000
    assert await books.balances() == expected


async def test_a_fold_that_may_send(database: TemporaryDatabase) -> None:
    """What it had sent would not follow from a row that the host has changed since; and the shard
    be parked for it.
    """
    books = await open_books(database)
    totals = books.flow.exchange("totals", int)

    @totals.by_key()
    def see(step: StepContext, account: str, _: None, cents: Sequence[int]) -> None:
        return None

    with pytest.raises(ConfigurationError, match=r"stages behind it.*pass cache=True"):
        books.streams.pipelines()
    cached = books.streams.flow("cached", Payment)
    cached.fold(Balance, cache=True)(add)
    cached.exchange("totals", int).by_key()(see)
    assert books.streams.pipelines(cached)


async def test_what_cannot_be_a_fold(database: TemporaryDatabase) -> None:
    """Rows would lag behind the steps that they are of, or a handler never be called."""
    books = await open_books(database)
    with pytest.raises(ConfigurationError, match="has a handler already: add"):
        books.flow.fold(Balance)(add)
    lazy = books.streams.flow("lazy", Payment, checkpoint=Checkpoint(steps=5))
    with pytest.raises(ConfigurationError, match=r"every 5 steps.*leave out checkpoint"):
        lazy.fold(Balance)
    other = books.streams.flow("other", Payment)
    with pytest.raises(ConfigurationError, match=r"must take \(step, row, events\)"):
        other.fold(Balance)(lambda step, row: None)  # type: ignore[arg-type, misc]
    assert "stage add fold rows of balances by account" in books.flow.program.description
