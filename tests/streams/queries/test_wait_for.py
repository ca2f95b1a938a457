"""Services that read their own write: they wait until a flow has done what they added."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from sqlalchemy import BigInteger, Identity, String, event, select
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Mapped, mapped_column

from rowlock import PipelineManager, database_now, pipeline_hinter
from rowlock.errors import ConfigurationError
from rowlock.stream_errors import NotProcessedYet
from rowlock.streams import Streams, TableSource
from rowlock.streams import waits as frontier_watch
from rowlock.streams.computing.handlers import StepContext
from rowlock.streams.cut_plan import Checkpoint
from rowlock.streams.waits import FrontierWatch
from rowlock.testing import TemporaryDatabase, run_until_settled, virtual_time

from ...lengths import at_length
from ...pipelines.lines import Ear, replica
from ..walk.flows import FAST, Bank, add_up, is_at_end, new_base, open_bank, until

pytestmark = pytest.mark.either_database(
    but=["test_a_service_reads_its_own_write", "test_a_wait_survives_an_outage"]
)

LONG_S = 3600.0
"""Longer than any test: what waits for it is woken."""


async def pay_one(bank: Bank, account: str = "a1", cents: int = 1, sessions: Any = None) -> Any:
    """Add a payment as a service does, and return the row, which is detached and expired."""
    async with (sessions or bank.sessions).begin() as session:
        payment = bank.payment(account=account, cents=cents)
        session.add(payment)
        bank.flow.hint_after_commit(session)
    bank.paid[account] += cents
    return payment


async def newest_result(bank: Bank, account: str) -> int:
    table = bank.streams.tables.outputs
    async with bank.sessions() as session:
        found = select(table.c.payload).where(table.c.key == account)
        last = await session.scalar(found.order_by(table.c.step.desc()).limit(1))
        return int(last or 0)


@pytest.mark.parametrize("steps", at_length([1000], [1, 1000]))
async def test_a_service_reads_its_own_write(database: TemporaryDatabase, steps: int) -> None:
    """A customer would pay and be shown the balance from before; or a service without the handlers
    of the flow could not wait.
    """
    bank = await open_bank(database, checkpoint=Checkpoint(steps=steps), **FAST)
    add_up(bank)
    service = Streams(bank.streams.tables.flow_model)
    service.tables = bank.streams.tables
    flow = service.flow("balances", bank.payment)
    # As SQLAlchemy has it by default: the row is expired by its commit.
    sessions = async_sessionmaker(bank.database.engine)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):

        async def customer(account: str) -> None:
            for cents in range(1, 4):
                payment = await pay_one(bank, account, cents, sessions)
                frontier = await flow.wait_for(sessions, payment, timeout=LONG_S)
                assert await newest_result(bank, account) == sum(range(1, cents + 1))
                row = await bank.flow_row()
                assert 1 <= frontier <= row.next_step

        await asyncio.gather(*(customer(f"a{n}") for n in range(4)))


async def test_an_append_is_waited_for(database: TemporaryDatabase) -> None:
    """A log has no rows that a service could name."""
    base, _ = new_base()
    streams = Streams(base)
    words = streams.log("words", str, key=str)
    other = streams.log("other", str, key=str)
    flow = streams.flow("lengths", words, shards=2)

    @flow.by_key(state=int)
    def length(step: StepContext, key: str, state: int | None, events: list[str]) -> int:
        return len(key) * len(events)

    await database.create_tables(base.metadata)
    async with database.session_factory.begin() as session:
        added = await words.append(session, ["one", "three"])
        empty = await words.append(session, [])
        foreign = await other.append(session, ["four"])
    await run_until_settled(database.session_factory, streams.pipelines())
    assert await flow.wait_for(database.session_factory, added, timeout=0) >= 1
    assert await flow.wait_for(database.session_factory, empty, timeout=0) >= 1
    with pytest.raises(ConfigurationError, match="nothing of these"):
        await flow.wait_for(database.session_factory, foreign, timeout=0)


@virtual_time
async def test_a_wait_ends_with_its_step(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request would wait for the next poll."""
    monkeypatch.setattr(frontier_watch, "POLL_S", LONG_S)
    bank = await open_bank(virtual_database, **FAST)
    add_up(bank)
    loop = asyncio.get_running_loop()
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await pay_one(bank)
        await until(partial(is_at_end, bank))
        began = loop.time()
        for _ in range(5):
            await bank.flow.wait_for(bank.sessions, await pay_one(bank), timeout=2 * LONG_S)
        assert loop.time() - began < 60


@virtual_time
async def test_a_wait_whose_hint_is_lost(virtual_database: TemporaryDatabase) -> None:
    """A hint that does not reach this process would cost the whole timeout."""
    bank = await open_bank(virtual_database)
    add_up(bank)
    payment = await pay_one(bank)
    loop = asyncio.get_running_loop()
    waiting = asyncio.create_task(bank.flow.wait_for(bank.sessions, payment, timeout=LONG_S))
    await asyncio.sleep(10)
    began = loop.time()
    shards, steps, flows = (
        getattr(bank.streams.tables, name) for name in ("shards", "steps", "flows")
    )
    program = bank.flow.program
    async with bank.sessions.begin() as session:
        flow = {"id": program.id, "name": "balances", "fingerprint": "", "upto": {"payments": 1}}
        await session.execute(flows.insert().values(**flow, next_step=1))
        shard = {"id": 1, "flow_id": program.id, "lo": 0, "hi": 1 << 16, "step": 1}
        await session.execute(shards.insert().values(shard))
        cut = {"flow_id": program.id, "step": 0, "upto": {"payments": 1}, "checkpoint": True}
        await session.execute(steps.insert().values(**cut, snapshot=False, now=database_now()))
    assert await waiting == 1
    assert loop.time() - began < 2 * frontier_watch.POLL_S + 1


async def test_many_waits_share_their_looks(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request that waits would ask the database again and again."""
    monkeypatch.setattr(frontier_watch, "POLL_S", LONG_S)
    bank = await open_bank(database, step_rows_max=1000)
    add_up(bank)
    looks: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        looks.extend(statement for word in ("rowlock_stream_steps_2",) if word in statement)

    engine = bank.database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        waits = [
            asyncio.create_task(bank.flow.wait_for(bank.sessions, _at(bank, n), timeout=LONG_S))
            for n in range(1, 301)
        ]
        await bank.pay(300)
        await run_until_settled(bank.sessions, bank.streams.pipelines())
        await asyncio.gather(*waits)
    finally:
        event.remove(engine, "before_cursor_execute", note)
    next_step = (await bank.flow_row()).next_step
    assert 1 <= len(looks) <= 4 + 4 * next_step
    assert len(looks) < 100


def _at(bank: Bank, position: int) -> Any:
    """Return a payment of a position, as one that is detached."""
    payment = bank.payment(account="a", cents=1)
    payment.position = position
    return payment


async def test_each_wait_has_its_own_position(database: TemporaryDatabase) -> None:
    """A service would be told that its row is done since an earlier one is."""
    bank = await open_bank(database)
    add_up(bank)
    await bank.pay(50)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    watch = FrontierWatch(bank.flow.program, bank.sessions)
    late = asyncio.create_task(watch.wait("payments", 51))
    for _ in range(2):
        assert (await watch.wait("payments", 50)).upto["payments"] == 50
    assert not late.done()
    late.cancel()
    await asyncio.wait({late})
    with pytest.raises(NotProcessedYet):
        await bank.flow.wait_for(bank.sessions, _at(bank, 51), timeout=0)


async def _payment(bank: Bank, position: int) -> Any:
    async with bank.sessions() as session:
        return await session.get_one(bank.payment, position)


async def test_a_step_is_done_when_its_slowest_shard_is(database: TemporaryDatabase) -> None:
    """A service would read its write from a shard that has not done it."""
    bank = await open_bank(database, shards=2)
    add_up(bank)
    await bank.pay(50)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    shards = bank.streams.tables.shards
    last = await _payment(bank, 50)
    async with bank.sessions.begin() as session:
        await session.execute(shards.update().where(shards.c.lo == 0).values(step=0))
    with pytest.raises(NotProcessedYet, match=r"0\.\.32768"):
        await bank.flow.wait_for(bank.sessions, last, timeout=0)


async def test_what_is_not_done_is_told_with_its_reason(database: TemporaryDatabase) -> None:
    """A service could tell its user nothing but that it took too long."""
    bank = await open_bank(database)
    add_up(bank)
    payment = await pay_one(bank)
    with pytest.raises(NotProcessedYet, match="never started") as caught:
        await bank.flow.wait_for(bank.sessions, payment, timeout=0)
    assert (caught.value.flow, caught.value.what) == ("balances", "position 1 of payments")
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    payment = await pay_one(bank)
    await _expect(bank, payment, "no replica holds a shard")
    for command, word in ((bank.flow.pause, "paused"), (bank.flow.stop, "stopped")):
        async with bank.sessions.begin() as session:
            await command(session)
        await _expect(bank, payment, f"the flow is {word}")
    async with bank.sessions.begin() as session:
        await bank.flow.start(session)
    async with bank.sessions() as session:
        session.add(gone := bank.payment(account="a1", cents=1))
        await session.flush()
        position = gone.position
        await session.rollback()
    await _expect(bank, _at(bank, position), "rolled back")


async def _expect(bank: Bank, row: Any, reason: str) -> None:
    with pytest.raises(NotProcessedYet, match=reason):
        await bank.flow.wait_for(bank.sessions, row, timeout=0)


async def test_what_cannot_be_waited_for(database: TemporaryDatabase) -> None:
    """A service would wait for what never comes, or be told that it is there."""
    bank = await open_bank(database, start="now")
    add_up(bank)
    before = await pay_one(bank)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    for row, words in (
        (before, "begins behind position 1"),
        (bank.payment(account="a1", cents=1), "not written yet"),
        ("payment 1", "nothing of these"),
        (None, "nothing of these"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            await bank.flow.wait_for(bank.sessions, row, timeout=0)


async def test_a_position_that_is_no_key(database: TemporaryDatabase) -> None:
    """A row whose position is expired would be waited for as another one."""
    base, _ = new_base()

    class Reading(base):  # type: ignore[valid-type, misc]
        __tablename__ = "readings"
        meter: Mapped[str] = mapped_column(String(20), primary_key=True)
        at: Mapped[int] = mapped_column(BigInteger, Identity(always=True), unique=True)

    source: TableSource[Any] = TableSource(Reading, position=Reading.at, key=Reading.meter)
    reading = Reading(meter="m1")
    with pytest.raises(ConfigurationError, match="not written yet"):
        source.position_of(reading)
    reading.at = 7
    assert source.position_of(reading) == 7
    assert source.position_of(base) is None


async def test_waits_that_are_cancelled_leave_nothing(database: TemporaryDatabase) -> None:
    """A client that hangs up would leave a task, or a connection, behind."""
    bank = await open_bank(database)
    add_up(bank)
    watch = FrontierWatch(bank.flow.program, bank.sessions)
    for turns in range(12):
        wait = asyncio.create_task(watch.wait("payments", 1))
        for _ in range(turns):
            await asyncio.sleep(0)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        assert watch.is_idle
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert "rowlock: wait for a flow" not in names
    await bank.pay(10)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    assert (await watch.wait("payments", 1)).frontier >= 1


async def test_a_wait_survives_an_outage(database: TemporaryDatabase) -> None:
    """A database that is away for a moment would fail every request that waits."""
    bank = await open_bank(database)
    add_up(bank)
    await bank.pay(10)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    failures: list[Exception] = [ConnectionRefusedError("away"), TimeoutError("away")]

    def sessions() -> Any:
        if failures:
            raise failures.pop()
        return bank.sessions()

    seen = await FrontierWatch(bank.flow.program, sessions).wait("payments", 10)  # type: ignore[arg-type]
    assert seen.upto["payments"] >= 10
    failures.append(LookupError("a mistake"))
    with pytest.raises(LookupError, match="a mistake"):
        await FrontierWatch(bank.flow.program, sessions).wait("payments", 10)  # type: ignore[arg-type]
    failures += [ConnectionRefusedError("away")] * 100
    with pytest.raises(NotProcessedYet, match="does not answer"):
        await bank.flow.wait_for(sessions, await _payment(bank, 1), timeout=0)  # type: ignore[arg-type]
    failures.clear()


async def test_whoever_waits_for_a_topic_needs_no_manager(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A service that waits for another replica's step would hear of it by polling only."""
    topic, heard = "stream:usage:frontier", asyncio.Event()
    pipeline_hinter.attach(topic, heard.set)
    try:
        async with replica(postgresql_database) as one, replica(postgresql_database, "b") as other:
            ear = Ear(other.manager.hinter, topic)
            one.hint(topic)
            await ear.wait_for(topic)
            assert heard.is_set()
    finally:
        pipeline_hinter.detach(topic, heard.set)
