"""What each outcome leaves behind in the row, on both databases."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from rowlock import NOW_PLACEHOLDER, Apply, OutcomeError, Retry, make_due
from rowlock.pipelines.outcomes import check_outcome
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline
from .scenes import add, change, is_free, read

NO_JITTER = {"retry_delay": 10, "retry_delay_max": 10}


async def _worked(database: TemporaryDatabase, pipeline: Any, row: Any) -> Any:
    """Put `row` in, have it worked on once, and return it as it is then, with the steps'
    counters.
    """
    await add(database, row)
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
        counters = steps.run.context.counters
    return await read(database, row), counters


@pytest.mark.parametrize("answer", [Apply(), None])
async def test_apply_unlocks_and_stamps(
    database_with_clock: TemporaryDatabase, answer: Apply | None
) -> None:
    """A row whose work is done would stay locked, or be taken again at once."""
    database = database_with_clock
    row, _ = await _worked(database, VolumePipeline(answer=lambda item: answer), Volume())
    assert is_free(row)
    assert row.last_processed_at == database.clock.now
    assert row.status == "submitted"


async def test_apply_writes_its_values_at_one_time(database_with_clock: TemporaryDatabase) -> None:
    """Two columns written by one transaction would say that they were written at two times."""
    database = database_with_clock
    values = {Volume.status: "active", "active_at": NOW_PLACEHOLDER}
    row, counters = await _worked(database, VolumePipeline(answer=Apply(values)), Volume())
    assert (row.status, row.active_at) == ("active", row.last_processed_at)
    assert counters.applied == 1


async def test_apply_with_a_schedule_rests_and_forgets_failures(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A row that succeeded would be due at once, or carry its old failures towards the limit."""
    database = database_with_clock
    now = database.clock.now
    row, _ = await _worked(database, RunPipeline(answer=Apply()), Run(id=1, due_at=now, attempts=3))
    assert (row.due_at, row.attempts) == (now + timedelta(seconds=15), 0)


@pytest.mark.parametrize("after", [timedelta(minutes=2), 120])
async def test_apply_after_says_when(
    database_with_clock: TemporaryDatabase, after: timedelta | float
) -> None:
    """A host that knows when to look again would be overruled."""
    database = database_with_clock
    now = database.clock.now
    row, _ = await _worked(database, RunPipeline(answer=Apply(after=after)), Run(id=1, due_at=now))
    assert row.due_at == now + timedelta(minutes=2)


async def test_a_request_made_meanwhile_is_heard(database_with_clock: TemporaryDatabase) -> None:
    """A service that makes a row due while it is worked on would wait for the minimum interval."""
    now = database_with_clock.clock.now

    async def answer(item: Any) -> Apply:
        database_with_clock.clock.advance(1)
        async with database_with_clock.session_factory.begin() as session:
            await make_due(session, await session.get_one(Run, item.id))
        database_with_clock.clock.advance(1)
        return Apply()

    row, _ = await _worked(database_with_clock, RunPipeline(answer=answer), Run(id=1, due_at=now))
    assert row.due_at == now + timedelta(seconds=1)
    assert is_free(row)


async def test_retry_goes_to_the_back_of_the_order(database_with_clock: TemporaryDatabase) -> None:
    """A poison row would head the queue for ever."""
    database = database_with_clock
    row, counters = await _worked(database, VolumePipeline(answer=Retry(error="no disk")), Volume())
    assert is_free(row)
    assert row.last_processed_at == database.clock.now
    assert (row.status, counters.retried) == ("submitted", 1)


async def test_retry_is_counted_backed_off_and_explained(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Nobody would know that a row fails, or it would fail without a rest."""
    now = database_with_clock.clock.now
    pipeline = RunPipeline(answer=ValueError("no disk"), retry_delay=10, retry_delay_max=600)
    row, _ = await _worked(database_with_clock, pipeline, Run(id=1, due_at=now, attempts=2))
    assert (row.attempts, row.last_error, row.parked_at) == (3, "ValueError: no disk", None)
    # Doubled twice, give or take a fifth.
    assert timedelta(seconds=32) <= row.due_at - now <= timedelta(seconds=48)


async def test_retry_writes_its_values_too(database: TemporaryDatabase) -> None:
    """Progress made before a failure would be lost."""
    row, _ = await _worked(
        database, VolumePipeline(answer=Retry(values={"disk_id": "d1"})), Volume()
    )
    assert row.disk_id == "d1"


async def test_retry_after_says_when(database_with_clock: TemporaryDatabase) -> None:
    """A host that was told when to come back would come at another time."""
    database = database_with_clock
    now = database.clock.now
    row, _ = await _worked(database, RunPipeline(answer=Retry(after=77)), Run(id=1, due_at=now))
    assert row.due_at == now + timedelta(seconds=77)


@pytest.mark.parametrize(
    ("error", "attempts", "deadline_s", "reason"),
    [
        ("boom", 2, None, "gave up after 3 attempts: boom"),
        (None, 2, None, "gave up after 3 attempts"),
        ("boom", 0, -1, "deadline passed: boom"),
        ("boom", 0, 0, "deadline passed: boom"),
    ],
)
async def test_a_row_that_keeps_failing_is_parked(
    database_with_clock: TemporaryDatabase,
    error: str | None,
    attempts: int,
    deadline_s: int | None,
    reason: str,
) -> None:
    """A row that can never succeed would be tried for ever."""
    now = database_with_clock.clock.now
    deadline = None if deadline_s is None else now + timedelta(seconds=deadline_s)
    run = Run(id=1, due_at=now, attempts=attempts, deadline_at=deadline)
    row, counters = await _worked(
        database_with_clock, RunPipeline(answer=Retry(error=error), max_attempts=3), run
    )
    assert (counters.parked, counters.retried) == (1, 0)
    assert (row.parked_at, row.last_error) == (now, reason)
    assert is_free(row)


async def test_a_deadline_that_was_extended_meanwhile_is_heard(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A row would be set aside with "deadline passed" while the deadline that it has is
    tomorrow.
    """
    now = database_with_clock.clock.now
    tomorrow = now + timedelta(days=1)

    async def answer(item: Any) -> Retry:
        if item.id:
            await change(database_with_clock, item.row, deadline_at=tomorrow)
        return Retry(error="boom")

    rows = [Run(id=number, due_at=now, deadline_at=now) for number in range(4)]
    await add(database_with_clock, *rows)
    async with stepping(database_with_clock.session_factory, RunPipeline(answer=answer)) as steps:
        await steps.fetch_once()
        # The first of these outcomes is written alone, the others together.
        works = [
            worker.work(item)
            for worker in steps.run.workers
            if (item := steps.run.context.queue.get())
        ]
        await asyncio.gather(*works)
        await steps.run.settler.wait_until_idle()
        counters = steps.run.context.counters
        assert (len(works), counters.parked, counters.changed) == (4, 1, 3)
    passed, *extended = [await read(database_with_clock, row) for row in rows]
    assert (passed.parked_at, passed.last_error) == (now, "deadline passed: boom")
    given_back = (None, tomorrow, now, True)
    assert [(row.parked_at, row.deadline_at, row.due_at, is_free(row)) for row in extended] == [
        given_back
    ] * 3


async def test_a_limit_of_attempts_is_final_whatever_the_deadline(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A service that extends the deadline at each attempt would have a row tried without end."""
    now = database_with_clock.clock.now

    async def answer(item: Any) -> Retry:
        await change(database_with_clock, item.row, deadline_at=now + timedelta(days=1))
        return Retry(error="boom")

    run = Run(id=1, due_at=now, attempts=2, deadline_at=now)
    row, _ = await _worked(database_with_clock, RunPipeline(answer=answer, max_attempts=3), run)
    assert (row.parked_at, row.last_error) == (now, "gave up after 3 attempts: boom")


async def test_a_row_within_its_limits_is_not_parked(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A row would be given up one attempt too early, or before its deadline."""
    database = database_with_clock
    now = database.clock.now
    run = Run(id=1, due_at=now, attempts=1, deadline_at=now + timedelta(seconds=1))
    row, _ = await _worked(database, RunPipeline(answer=Retry(), max_attempts=3, **NO_JITTER), run)
    assert row.parked_at is None


LATER = datetime(2199, 5, 17, 3, 0, tzinfo=UTC)
RUNS, VOLUMES = LeasedTable.of(Run), LeasedTable.of(Volume)


async def test_the_row_is_due_at_that_time(database: TemporaryDatabase) -> None:
    """A host that works out the next time by itself would have to turn it into a delay, of a clock
    that is not the database's.
    """
    [row] = await add(database, Run(id=1))
    answer = Apply(due_at=LATER.astimezone(timezone(timedelta(hours=5))))
    async with stepping(database.session_factory, RunPipeline(answer=answer)) as steps:
        await steps.fetch_once()
        await steps.work_once()
        assert await steps.fetch_once() == []
    after = await read(database, row)
    assert (after.due_at, after.attempts) == (LATER, 0)


@virtual_time
async def test_a_time_that_is_over_is_at_once(virtual_database: TemporaryDatabase) -> None:
    """A row that is late would be refused, or wait."""
    await add(virtual_database, Run(id=1))
    answer = Apply(due_at=datetime(1999, 1, 1, tzinfo=UTC))
    async with stepping(virtual_database.session_factory, RunPipeline(answer=answer)) as steps:
        for _ in range(2):
            [_item] = await steps.fetch_once()
            await steps.work_once()


@pytest.mark.parametrize(
    ("leased", "outcome", "says"),
    [
        (VOLUMES, Apply(due_at=LATER), "needs ScheduleColumns"),
        (RUNS, Apply(due_at=LATER, after=5), "not both"),
        (RUNS, Apply(due_at=LATER.replace(tzinfo=None)), "aware datetime"),
        (RUNS, Apply(due_at=LATER.date()), "aware datetime"),  # type: ignore[arg-type]
        (RUNS, Apply(due_at=60), "aware datetime"),  # type: ignore[arg-type]
        (
            RUNS,
            Apply(due_at=datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))),
            "years 1 and 9999",
        ),
    ],
    ids=["no schedule", "with after", "naive", "a date", "a number", "no such year"],
)
def test_what_is_no_time_is_refused(leased: LeasedTable, outcome: Apply, says: str) -> None:
    """It would only be found by the database, when the outcome is written."""
    with pytest.raises(OutcomeError, match=says):
        check_outcome(leased, outcome)
