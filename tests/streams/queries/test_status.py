"""The status of a flow: how far it is, and what it waits for, as its rows say."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from sqlalchemy import delete, event, select, text, update

from rowlock import PipelineManager
from rowlock.errors import PipelineError
from rowlock.stream_errors import NotProcessedYet
from rowlock.streams import StepContext, StreamStatus
from rowlock.streams import status as status_reader
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.flow_row import LOST, NEVER_STARTED, ensure_flow
from rowlock.streams.shards import slow_calls
from rowlock.streams.status import NOTHING
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..walk.flows import FAST, MEANT, Bank, Paid, add_up, is_at_end, open_bank, pay, until
from ..walk.test_creation import transact_of
from .test_step_inputs import done_bank

pytestmark = pytest.mark.either_database(
    but=[
        "test_a_flow_under_way",
        "test_a_column_that_was_dropped",
        "test_a_look_takes_few_statements",
        "test_a_long_lag_is_counted_in_part",
        "test_the_lag_of_shards",
    ]
)


async def status(bank: Bank) -> StreamStatus:
    async with bank.sessions() as session:
        return await bank.flow.status(session)


async def test_a_flow_that_was_never_started(database: TemporaryDatabase) -> None:
    """A page that shows all flows would fail because of a new one."""
    bank = await open_bank(database)
    found = await status(bank)
    assert (found.flow, found.state, found.text) == (
        "balances",
        NEVER_STARTED,
        "it was never started",
    )


async def test_a_flow_whose_row_was_deleted(database: TemporaryDatabase) -> None:
    """An operator would be told that a flow is new, which has stood still since a slip in SQL; and
    a replica that starts would count everything once more.
    """
    bank = await done_bank(database)
    async with bank.sessions.begin() as session:
        await session.execute(delete(bank.streams.tables.flows))
    found = await status(bank)
    assert found.state == LOST
    for words in ("rowlock_stream_flows was deleted", "4 shards of it are there"):
        assert words in found.text
    async with bank.sessions() as session:
        with pytest.raises(PipelineError, match="was deleted"):
            await bank.flow.pause(session)
    payment = bank.payment(account="a", cents=1)
    async with bank.sessions.begin() as session:
        session.add(payment)
    with pytest.raises(NotProcessedYet, match="was deleted"):
        await bank.flow.wait_for(bank.sessions, payment, timeout=0)
    with pytest.raises(PipelineError, match="was deleted"):
        await ensure_flow(bank.flow.program, transact_of(bank))


async def test_a_column_that_was_dropped(database: TemporaryDatabase) -> None:
    """A flow would stand still, with the error of one shard, and nobody know which column."""
    bank = await done_bank(database)
    async with bank.sessions.begin() as session:
        await session.execute(text("ALTER TABLE payments DROP COLUMN cents"))
        await session.execute(text("INSERT INTO payments (account) VALUES ('x')"))
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):

        async def are_failing() -> bool:
            return "3 more have failed" in (await status(bank)).text

        await until(are_failing)
        found = await status(bank)
        assert "cents" in found.text
        assert not any(shard.is_parked for shard in found.shards)


async def test_the_lag_of_shards(database_with_clock: TemporaryDatabase) -> None:
    """A flow would seem to lag although there is nothing to do; the lag of one shard be hidden
    behind the others; or a replica whose clock is wrong show a lag that is none.
    """
    bank = await done_bank(database_with_clock)
    found, row = await status(bank), await bank.flow_row()
    assert (found.state, found.next_step, found.frontier) == (
        "running",
        row.next_step,
        row.next_step,
    )
    assert (found.lag_rows, found.lag_s, found.text) == (0, 0.0, NOTHING)
    assert [(shard.lo, shard.hi) for shard in found.shards] == [
        (one.lo, one.hi) for one in await bank.shards()
    ]
    assert {(one.replica, one.lag, one.text) for one in found.shards} == {(None, 0, None)}
    (source,) = found.sources
    assert (source.name, source.done, source.cut, source.newest) == ("payments", 120, 120, 120)
    assert (source.mark, source.lag_rows, source.text) == (120, 0, None)
    shards = bank.streams.tables.shards
    async with bank.sessions.begin() as session:
        await session.execute(update(shards).where(shards.c.lo == 0).values(step=1))
    found, next_step = await status(bank), row.next_step
    assert (found.frontier, found.next_step) == (1, next_step)
    assert found.text == "no replica holds the shard of buckets 0..16384, at step 1"
    assert [one.lag for one in found.shards] == [next_step - 1, 0, 0, 0]
    assert found.shards[0].text == found.text
    async with bank.sessions() as session:
        first = len((await bank.flow.inputs_of(session, 0)).rows)
    assert (found.sources[0].done, found.lag_rows) == (first, 120 - first)
    bank.database.clock.advance(7200)
    assert 7200 <= (await status(bank)).lag_s < 2 * 7200


async def test_a_flow_under_way(database: TemporaryDatabase) -> None:
    """Nobody could see which replica works on what."""
    bank = await open_bank(database, version="v7", **FAST)
    add_up(bank)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await bank.pay(100)
        await until(partial(is_at_end, bank))

        async def is_told() -> bool:
            found = await status(bank)
            return [one.shards for one in found.replicas] == [4]

        await until(is_told)
        found = await status(bank)
        (replica,) = found.replicas
        assert replica.code_version == "v7"
        assert replica.seen < 60
        assert {shard.replica for shard in found.shards} == {replica.name}


async def test_a_handler_that_takes_long_is_named(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator would know that a shard is busy, and not which key keeps it so."""
    monkeypatch.setattr(slow_calls, "SLOW_S", 0.05)
    bank = await open_bank(database, **FAST)
    may_go_on = threading.Event()

    @bank.flow.by_key(state=int)
    def add(step: StepContext, key: str, balance: int | None, events: list[Paid]) -> int:
        if key == "slow":
            may_go_on.wait(60)
        return 1

    await pay(bank.sessions, bank.payment, [("quick", 1), ("slow", 2)])
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):

        async def is_named() -> bool:
            return "'add' is at the key 'slow' for" in (await status(bank)).text

        await until(is_named)
        found = await status(bank)
        (busy,) = [one for one in found.shards if "'slow'" in (one.text or "")]
        assert busy.lo <= bucket_of("slow") < busy.hi
        may_go_on.set()
        await until(partial(is_at_end, bank))

        async def is_over() -> bool:
            table = bank.streams.tables.replicas
            async with bank.sessions() as session:
                return await session.scalar(select(table.c.busy_since)) is None

        await until(is_over)


async def test_a_transaction_that_holds_back(postgresql_database: TemporaryDatabase) -> None:
    """A flow would stand still because of a session that nobody can name."""
    bank = await open_bank(postgresql_database)
    add_up(bank)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    async with bank.sessions() as session:
        session.add(bank.payment(account="a", cents=1))
        await session.flush()
        pid = await session.scalar(text("SELECT pg_backend_pid()"))
        await bank.pay(10)
        found = await status(bank)
        (source,) = found.sources
        assert [one.pid for one in source.held_back_by] == [pid]
        assert f"waits for the transaction of pid {pid}" in found.text
        assert source.text == found.text
        assert (found.lag_rows, source.newest, source.mark) == (10, 11, 0)
        assert found.lag_s == pytest.approx(source.held_back_by[0].age_s)
        await session.rollback()


async def test_the_lag_of_consumers(database: TemporaryDatabase) -> None:
    """A consumer that stands still would not be noticed."""
    bank = await done_bank(database)
    steps = sorted({step for step, _, _ in await bank.results()})
    next_step = (await bank.flow_row()).next_step
    output = bank.flow.outputs["seen"]
    for name, count in (("quick", len(steps)), ("slow", 1)):
        found = [one async for one in output.consume(bank.sessions, consumer=name, follow=False)]
        async with bank.sessions.begin() as session:
            await found[count - 1].ack(session)
    async with bank.sessions.begin() as session:
        await output.discard(session, steps[1])
    consumers = (await status(bank)).consumers
    assert [(one.output, one.consumer, one.step, one.lag) for one in consumers] == [
        ("seen", "quick", steps[-1], 0),
        ("seen", "slow", steps[0], next_step - steps[1]),
    ]
    assert all(0 <= one.at < 3600 for one in consumers)


async def test_a_long_lag_is_counted_in_part(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a flow that is far behind would read the whole table."""
    monkeypatch.setattr(status_reader, "LAG_ROWS_MAX", 7)
    bank = await done_bank(database, 10)
    await bank.pay(50)
    async with bank.sessions.begin() as session:
        position = bank.payment.position
        await session.execute(
            delete(bank.payment).execution_options(**MEANT).where(position.between(31, 59))
        )
    # 7 rows, and 43 positions behind them, of which few have a row.
    assert (await status(bank)).lag_rows == 50


async def test_a_look_takes_few_statements(database: TemporaryDatabase) -> None:
    """A page that shows a flow would be a load of its own."""
    bank = await open_bank(database, shards=32)
    add_up(bank)
    await bank.pay(50)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        statements.append(statement)

    async with bank.sessions() as session:
        await session.execute(text("SELECT 1"))
        engine = bank.database.engine.sync_engine
        event.listen(engine, "before_cursor_execute", note)
        try:
            found = await bank.flow.status(session)
        finally:
            event.remove(engine, "before_cursor_execute", note)
    assert len(found.shards) == 32
    assert 5 <= len(statements) <= 16, statements
