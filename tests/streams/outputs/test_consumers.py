"""Consumers of results: whole steps, in order, each once for each name."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count, pairwise, product
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock import PipelineManager
from rowlock.errors import ConfigurationError
from rowlock.stream_errors import CursorMoved, StepExpired, StillNeeded
from rowlock.streams import consumers
from rowlock.streams import cursors as discarding
from rowlock.streams.consumers import Consumer, StepOutput
from rowlock.streams.cursors import begin_cursor
from rowlock.streams.outputs import Output
from rowlock.testing import Failpoints, TemporaryDatabase, run_until_settled

from ...cancellation.cancelling import Canceller, cancelled_at
from ...leases.transactions import checked_out
from ...lengths import at_length
from ..snapshots.reading import LONG_S
from ..walk.flows import FAST, Bank, add_up, open_bank
from ..walk.test_steps import held, write_of

pytestmark = pytest.mark.either_database(
    but=[
        "test_results_come_step_by_step",
        "test_two_consumers_of_one_name_count_each_step_once",
        "test_what_is_needed_is_not_discarded",
        "test_a_cancelled_reader_has_no_session",
    ]
)


async def done_bank(database: TemporaryDatabase, payments: int = 20) -> Bank:
    bank = await open_bank(database, step_rows_max=5)
    add_up(bank)
    await bank.pay(payments)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    return bank


def output_of(bank: Bank) -> Output[int]:
    output: Output[int] = bank.flow.outputs["seen"]
    return output


async def read(bank: Bank, **options: Any) -> list[StepOutput[int]]:
    return [one async for one in output_of(bank).consume(bank.sessions, follow=False, **options)]


async def test_no_connection_is_left_behind(database: TemporaryDatabase) -> None:
    """Each connection that a consumer loses would be missing from the pool of its host."""
    bank = await done_bank(database, payments=10)
    engine = database.create_engine()
    sessions = async_sessionmaker(engine)
    reached = []
    for at in count():
        with Failpoints(engine, at=at) as points, suppress(ConnectionResetError):
            assert [_ async for _ in output_of(bank).consume(sessions, follow=False)]
        assert checked_out(engine) == 0, points.reached
        if points.reached is None:
            break
        reached.append(points.reached.statement)
    assert {"BEGIN", "COMMIT"} < set(reached)


@pytest.mark.parametrize("rows_max", at_length([7], [1, 7, consumers.ROWS_READ_MAX]))
async def test_results_come_step_by_step(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    """Results would be lost, or a step come in two parts, where many are read."""
    monkeypatch.setattr(consumers, "ROWS_READ_MAX", rows_max)
    bank = await done_bank(database)
    steps = await read(bank)
    numbers = [step.step for step in steps]
    assert numbers == sorted(set(numbers))
    assert len(numbers) >= 4
    found = [(one.step, row.key, row.value) for one in steps for row in one.rows]
    assert sorted(found) == sorted(await bank.results())
    assert [step.values for step in steps] == [[row.value for row in one.rows] for one in steps]
    assert all(one.rows == sorted(one.rows, key=lambda row: (row.lo, row.seq)) for one in steps)
    assert [step.now for step in steps] == sorted(step.now for step in steps)


async def test_so_much_is_read_at_once(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of a day, or a few that are large, would all be in memory at once."""
    bank = await done_bank(database)
    consumer: Consumer[int] = Consumer(output_of(bank), bank.sessions, name=None, after=None)
    numbers = [one.step for one in await consumer._read(-1)]
    assert len(numbers) >= 4
    for bound in ("ROWS_READ_MAX", "READ_BYTES_MAX"):
        with monkeypatch.context() as patch:
            patch.setattr(consumers, bound, 1)
            for after, number in pairwise([-1, *numbers]):
                (step,) = await consumer._read(after)
                assert step.step == number, bound
            assert await consumer._read(numbers[-1]) == []


async def test_a_step_is_shown_when_all_shards_have_done_it(database: TemporaryDatabase) -> None:
    """A sum over a step would lack the keys of a slow shard."""
    bank = await open_bank(database, shards=2)
    add_up(bank)
    await bank.pay(10)
    async with held(bank) as ((one, other), committer):
        await cut_one(bank)
        await committer.commit([await write_of(bank, one)])
        assert await read(bank) == []
        write = await write_of(bank, other)
        write.states = []
        await committer.commit([write])
        (step,) = await read(bank)
        assert len(step.rows) == 2


async def cut_one(bank: Bank) -> None:
    steps = bank.streams.tables.steps
    async with bank.sessions.begin() as session:
        (before,) = (await session.execute(steps.select())).mappings().all()
        await session.execute(steps.insert().values({**before, "step": 0}))


async def test_a_consumer_goes_on_behind_what_it_has_acknowledged(
    database: TemporaryDatabase,
) -> None:
    """A bill would be written twice after a restart, or never; or a step count as worked on whose
    rows were rolled back.
    """
    bank = await done_bank(database)
    all_steps = [step.step for step in await read(bank)]
    async with bank.sessions() as session:
        await (await read(bank, consumer="billing"))[0].ack(session)
        await session.rollback()
    for step in await read(bank, consumer="billing"):
        if step.step > all_steps[1]:
            break
        async with bank.sessions.begin() as session:
            await step.ack(session)
    assert [step.step for step in await read(bank, consumer="billing")] == all_steps[2:]
    assert [step.step for step in await read(bank, consumer="other")] == all_steps
    assert [step.step for step in await read(bank, after=all_steps[0])] == all_steps[1:]


async def test_two_consumers_of_one_name_count_each_step_once(database: TemporaryDatabase) -> None:
    """Two processes that run the same consumer would write everything twice."""
    bank = await done_bank(database)
    one, other = [await read(bank, consumer="billing") for _ in range(2)]
    for step in one[:2]:
        async with bank.sessions.begin() as session:
            await step.ack(session)
    for step in other[:2]:
        with pytest.raises(CursorMoved) as caught:
            async with bank.sessions.begin() as session:
                await step.ack(session)
        assert (caught.value.consumer, caught.value.step) == ("billing", step.step)
    async with bank.sessions.begin() as session:
        await other[2].ack(session)


async def test_a_consumer_without_a_name_acknowledges_nothing(database: TemporaryDatabase) -> None:
    """It would be forgotten how far it is, without a word."""
    bank = await done_bank(database, payments=5)
    (step,) = await read(bank)
    async with bank.sessions.begin() as session:
        with pytest.raises(ConfigurationError, match="without a name"):
            await step.ack(session)
    for name in ("", "x" * 256):
        with pytest.raises(ConfigurationError, match="characters"):
            await read(bank, consumer=name)


async def test_a_consumer_follows_the_flow(database: TemporaryDatabase) -> None:
    """A consumer would end with the last step, or never hear of the next one."""
    bank = await open_bank(database, **FAST)
    add_up(bank)
    seen: dict[str, int] = {}
    is_whole = asyncio.Event()

    async def consume() -> None:
        async for step in output_of(bank).consume(bank.sessions, consumer="sums"):
            seen.update({row.key or "": row.value for row in step.rows})
            if seen == bank.paid:
                is_whole.set()

    # It may be there before the flow is.
    task = asyncio.create_task(consume())
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        for _ in range(3):
            is_whole.clear()
            await bank.pay(50)
            await is_whole.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_hint_within_a_read_is_not_forgotten(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results that come while a consumer reads would wait for its next poll."""
    monkeypatch.setattr(consumers, "POLL_S", 3600.0)
    bank = await open_bank(database)
    add_up(bank)
    await bank.pay(10)
    reader = Consumer[int](output_of(bank), bank.sessions, name=None, after=None)
    before, reads = reader._read, count()

    async def read_and_be_late(after: int) -> list[StepOutput[int]]:
        found = await before(after)
        if next(reads) == 0:
            assert found == []
            await run_until_settled(bank.sessions, bank.streams.pipelines())
        return found

    monkeypatch.setattr(reader, "_read", read_and_be_late)
    async with asyncio.timeout(30):
        assert (await anext(reader.steps(follow=True))).step == 0


@pytest.mark.parametrize(
    ("name", "times"),
    at_length(
        [("consume", 1), ("wait_for", 1), ("snapshot", 2)],
        [*product(("consume", "wait_for", "snapshot"), (1, 2))],
    ),
)
async def test_a_cancelled_reader_has_no_session(
    database: TemporaryDatabase, name: str, times: int
) -> None:
    """A reader that is cancelled, once or twice, has closed its sessions when its task ends, so
    that its host may dispose of the engine; and no snapshot is kept for it.
    """
    bank = await open_bank(database, **FAST)
    add_up(bank)
    await bank.pay(10)
    engine = database.create_engine()
    sessions = async_sessionmaker(engine)
    async with sessions() as session:
        last = (await session.scalars(select(bank.payment))).all()[-1]

    async def consume() -> None:
        async for _ in output_of(bank).consume(sessions):
            return

    async def wait_for() -> None:
        await bank.flow.wait_for(sessions, last, timeout=LONG_S)

    async def snapshot() -> None:
        async with bank.flow.snapshot(sessions, timeout=LONG_S) as taken:
            assert [_ async for _ in taken.items("add")]

    reader = {"consume": consume, "wait_for": wait_for, "snapshot": snapshot}[name]
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await wait_for()
        for at in count(step=times):
            if not await cancelled_at(reader, Canceller(at, times)):
                break
            assert checked_out(engine) == 0, at
            row = await bank.flow_row()
            assert (row.snapshots_requested, row.kept_until) == (0, None), at
    assert at > 3


async def test_what_is_needed_is_not_discarded(database: TemporaryDatabase) -> None:
    """A consumer that is behind would never see results that were deleted."""
    bank = await done_bank(database)
    steps = await read(bank, consumer="slow")
    async with bank.sessions.begin() as session:
        await steps[0].ack(session)
    output, end = output_of(bank), (await bank.flow_row()).next_step
    async with bank.sessions.begin() as session:
        with pytest.raises(StillNeeded, match="'slow'"):
            await output.discard(session, steps[2].step)
    async with bank.sessions.begin() as session:
        assert await output.discard(session, steps[1].step) == len(steps[0].rows)
    async with bank.sessions.begin() as session:
        for step in steps[1:]:
            await step.ack(session)
    async with bank.sessions.begin() as session:
        with pytest.raises(StillNeeded, match="flow itself"):
            await output.discard(session, end + 1)
    async with bank.sessions.begin() as session:
        assert await output.discard(session, end) == sum(len(one.rows) for one in steps[1:])
    assert await bank.results() == []
    assert await read(bank, consumer="slow") == []


async def test_what_was_discarded_is_not_passed_over_in_silence(
    database: TemporaryDatabase,
) -> None:
    """A new consumer would take a part of the results for all of them."""
    bank = await done_bank(database)
    steps = await read(bank)
    async with bank.sessions.begin() as session:
        await output_of(bank).discard(session, steps[1].step)
    with pytest.raises(StepExpired) as caught:
        await read(bank, consumer="new")
    assert caught.value.first == steps[1].step
    with pytest.raises(StepExpired):
        await read(bank, after=steps[0].step - 1)
    # Without a name it begins with what is kept.
    for options in ({"consumer": "new", "after": caught.value.first - 1}, {}):
        rest = await read(bank, **options)
        assert [one.step for one in rest] == [one.step for one in steps[1:]]


async def test_what_is_not_acknowledged_yet_is_not_discarded(database: TemporaryDatabase) -> None:
    """A consumer that dies before its first acknowledgement would never see its first results."""
    bank = await done_bank(database)
    end = (await bank.flow_row()).next_step
    first = (await read(bank, consumer="billing"))[0]
    async with bank.sessions.begin() as session:
        with pytest.raises(StillNeeded, match="'billing'") as caught:
            await output_of(bank).discard(session, end)
    assert caught.value.step == 0
    assert (await read(bank, consumer="billing"))[0] == first
    # One that begins later needs what is behind that.
    later = await read(bank, consumer="later", after=first.step)
    async with bank.sessions.begin() as session:
        await first.ack(session)
    async with bank.sessions.begin() as session:
        assert await output_of(bank).discard(session, later[0].step) == len(first.rows)
    async with bank.sessions.begin() as session:
        with pytest.raises(StillNeeded):
            await output_of(bank).discard(session, later[1].step)


async def test_of_a_discard_and_a_new_consumer_one_is_first(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A consumer would begin while what it is to read is deleted, and never hear of it."""
    bank = await done_bank(postgresql_database)
    output, end = output_of(bank), (await bank.flow_row()).next_step
    async with bank.sessions.begin() as one, bank.sessions() as other:
        await output.discard(one, end)
        await other.execute(text("SET lock_timeout = '50ms'"))
        with pytest.raises(DBAPIError, match="lock timeout"):
            await begin_cursor(await other.connection(), output, "billing", after=None)
    with pytest.raises(StepExpired):
        await read(bank, consumer="billing")
    assert await bank.count("cursors") == 1


async def test_a_reader_is_told_what_was_discarded_on_its_way(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader without a name would go on behind results that it has never seen."""
    monkeypatch.setattr(consumers, "ROWS_READ_MAX", 1)
    bank = await done_bank(database)
    first, second, third = (await read(bank))[:3]
    reader = output_of(bank).consume(bank.sessions)
    assert (await anext(reader)).step == first.step
    async with bank.sessions.begin() as session:
        await output_of(bank).discard(session, third.step)
    with pytest.raises(StepExpired) as caught:
        await anext(reader)
    assert (caught.value.step, caught.value.first) == (first.step + 1, second.step + 1)


async def test_steps_without_results_are_not_missed(database: TemporaryDatabase) -> None:
    """A consumer that has acknowledged all there was would be refused for good."""
    bank = await done_bank(database)
    steps = await read(bank, consumer="billing")
    async with bank.sessions.begin() as session:
        for step in steps[:-1]:
            await step.ack(session)
        # As if the last steps had none.
        rows = bank.streams.tables.outputs
        await session.execute(rows.delete().where(rows.c.step == steps[-1].step))
    async with bank.sessions.begin() as session:
        assert await output_of(bank).discard(session, (await bank.flow_row()).next_step)
    assert await read(bank, consumer="billing") == []


async def test_so_much_is_discarded_at_once(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction would delete a year of results, and hold up everything else."""
    bank = await done_bank(database)
    steps = await read(bank)
    counts = [len(one.rows) for one in steps]
    monkeypatch.setattr(discarding, "DISCARD_ROWS_MAX", counts[0] + 1)
    deleted = []
    end = (await bank.flow_row()).next_step
    while not deleted or deleted[-1]:
        async with bank.sessions.begin() as session:
            deleted.append(await output_of(bank).discard(session, end))
    assert sum(deleted) == sum(counts)
    assert deleted[0] == counts[0]
    assert len(deleted) > 3
