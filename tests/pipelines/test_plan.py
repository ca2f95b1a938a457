"""What each outcome leaves behind in the row, on both databases."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from rowlock import (
    NOW_PLACEHOLDER,
    Apply,
    LockColumns,
    Park,
    Reset,
    Retry,
    ScheduleColumns,
    make_due,
)
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Base, RecordingPipeline, Run, RunPipeline, Volume, VolumePipeline
from .scenes import add, change, is_free, read, read_all


class Narrow(LockColumns, ScheduleColumns, Base):
    """A host's table whose column for errors is short."""

    __tablename__ = "narrow"
    id: Mapped[int] = mapped_column(primary_key=True)
    last_error: Mapped[str | None] = mapped_column(String(50), default=None)


class NarrowPipeline(RecordingPipeline):
    """Works on all of them."""

    model = Narrow

    def ready(self) -> Any:
        """Want all."""
        return Narrow.id.is_not(None)


class UnreadablePipeline(RunPipeline):
    """Cannot say how its rows are read."""

    def options(self) -> Any:
        """Raise."""
        raise LookupError("no such option")


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
    assert database.clock is not None
    row, _ = await _worked(database, VolumePipeline(answer=lambda item: answer), Volume())
    assert is_free(row)
    assert row.last_processed_at == database.clock.now
    assert row.status == "submitted"


async def test_apply_writes_its_values_at_one_time(database_with_clock: TemporaryDatabase) -> None:
    """Two columns written by one transaction would say that they were written at two times."""
    database = database_with_clock
    assert database.clock is not None
    values = {Volume.status: "active", "active_at": NOW_PLACEHOLDER}
    row, counters = await _worked(database, VolumePipeline(answer=Apply(values)), Volume())
    assert (row.status, row.active_at) == ("active", row.last_processed_at)
    assert counters.applied == 1


async def test_apply_with_a_schedule_rests_and_forgets_failures(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A row that succeeded would be due at once, or carry its old failures towards the limit."""
    database = database_with_clock
    assert database.clock is not None
    now = database.clock.now
    row, _ = await _worked(database, RunPipeline(answer=Apply()), Run(id=1, due_at=now, attempts=3))
    assert (row.due_at, row.attempts) == (now + timedelta(seconds=15), 0)


@pytest.mark.parametrize("after", [timedelta(minutes=2), 120])
async def test_apply_after_says_when(
    database_with_clock: TemporaryDatabase, after: timedelta | float
) -> None:
    """A host that knows when to look again would be overruled."""
    database = database_with_clock
    assert database.clock is not None
    now = database.clock.now
    row, _ = await _worked(database, RunPipeline(answer=Apply(after=after)), Run(id=1, due_at=now))
    assert row.due_at == now + timedelta(minutes=2)


async def test_a_request_made_meanwhile_is_heard(database_with_clock: TemporaryDatabase) -> None:
    """A service that makes a row due while it is worked on would wait for the minimum interval."""
    database = database_with_clock
    assert database.clock is not None
    now = database.clock.now

    async def answer(item: Any) -> Apply:
        assert database.clock is not None
        database.clock.advance(1)
        async with database.session_factory.begin() as session:
            await make_due(session, await session.get_one(Run, item.id))
        database.clock.advance(1)
        return Apply()

    row, _ = await _worked(database, RunPipeline(answer=answer), Run(id=1, due_at=now))
    assert row.due_at == now + timedelta(seconds=1)
    assert is_free(row)


async def test_retry_goes_to_the_back_of_the_order(database_with_clock: TemporaryDatabase) -> None:
    """A poison row would head the queue for ever."""
    database = database_with_clock
    assert database.clock is not None
    row, counters = await _worked(database, VolumePipeline(answer=Retry(error="no disk")), Volume())
    assert is_free(row)
    assert row.last_processed_at == database.clock.now
    assert (row.status, counters.retried) == ("submitted", 1)


async def test_retry_is_counted_backed_off_and_explained(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Nobody would know that a row fails, or it would fail without a rest."""
    database = database_with_clock
    assert database.clock is not None
    now = database.clock.now
    pipeline = RunPipeline(answer=ValueError("no disk"), retry_delay=10, retry_delay_max=600)
    row, _ = await _worked(database, pipeline, Run(id=1, due_at=now, attempts=2))
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
    assert database.clock is not None
    now = database.clock.now
    row, _ = await _worked(database, RunPipeline(answer=Retry(after=77)), Run(id=1, due_at=now))
    assert row.due_at == now + timedelta(seconds=77)


@pytest.mark.parametrize(
    ("attempts", "deadline_s", "reason"),
    [
        (2, None, "gave up after 3 attempts: boom"),
        (0, -1, "deadline passed: boom"),
        (0, 0, "deadline passed: boom"),
    ],
)
async def test_a_row_that_keeps_failing_is_parked(
    database_with_clock: TemporaryDatabase, attempts: int, deadline_s: int | None, reason: str
) -> None:
    """A row that can never succeed would be tried for ever."""
    database = database_with_clock
    assert database.clock is not None
    now = database.clock.now
    deadline = None if deadline_s is None else now + timedelta(seconds=deadline_s)
    run = Run(id=1, due_at=now, attempts=attempts, deadline_at=deadline)
    row, counters = await _worked(
        database, RunPipeline(answer=Retry(error="boom"), max_attempts=3), run
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
    database = database_with_clock
    assert database.clock is not None
    now = database.clock.now
    tomorrow = now + timedelta(days=1)

    async def answer(item: Any) -> Retry:
        if item.id:
            await change(database, item.row, deadline_at=tomorrow)
        return Retry(error="boom")

    rows = [Run(id=number, due_at=now, deadline_at=now) for number in range(4)]
    await add(database, *rows)
    async with stepping(database.session_factory, RunPipeline(answer=answer)) as steps:
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
    passed, *extended = [await read(database, row) for row in rows]
    assert (passed.parked_at, passed.last_error) == (now, "deadline passed: boom")
    given_back = (None, tomorrow, now, True)
    assert [(row.parked_at, row.deadline_at, row.due_at, is_free(row)) for row in extended] == [
        given_back
    ] * 3


async def test_a_limit_of_attempts_is_final_whatever_the_deadline(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A service that extends the deadline at each attempt would have a row tried without end."""
    database = database_with_clock
    assert database.clock is not None
    now = database.clock.now

    async def answer(item: Any) -> Retry:
        await change(database, item.row, deadline_at=now + timedelta(days=1))
        return Retry(error="boom")

    run = Run(id=1, due_at=now, attempts=2, deadline_at=now)
    row, _ = await _worked(database, RunPipeline(answer=answer, max_attempts=3), run)
    assert (row.parked_at, row.last_error) == (now, "gave up after 3 attempts: boom")


async def test_a_row_within_its_limits_is_not_parked(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A row would be given up one attempt too early, or before its deadline."""
    database = database_with_clock
    assert database.clock is not None
    now = database.clock.now
    run = Run(id=1, due_at=now, attempts=1, deadline_at=now + timedelta(seconds=1))
    row, _ = await _worked(database, RunPipeline(answer=Retry(), max_attempts=3, **NO_JITTER), run)
    assert row.parked_at is None


async def test_reset_keeps_the_owner_and_counts_nothing(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Another pipeline would snatch the row from the one that waits for a related lock."""
    database = database_with_clock
    assert database.clock is not None
    now = database.clock.now
    row, counters = await _worked(
        database, RunPipeline(answer=Reset()), Run(id=1, due_at=now, attempts=1)
    )
    assert (row.lock_token, row.lock_owner, row.lock_expires_at) == (None, "RunPipeline", None)
    assert (row.last_processed_at, row.attempts, row.last_error) == (now, 1, None)
    assert timedelta(seconds=0.8) <= row.due_at - now <= timedelta(seconds=1.2)
    assert counters.reset == 1


async def test_rows_that_are_reset_let_others_go_first(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Rows that wait for related locks would fill the queue again and again, and starve all
    others.
    """
    database = database_with_clock
    assert database.clock is not None
    now = database.clock.now
    await add(
        database,
        *(Run(id=number, due_at=now - timedelta(hours=1)) for number in range(4)),
        Run(id=9, due_at=now),
    )
    pipeline = RunPipeline(answer=lambda item: Apply() if item.id == 9 else Reset(), workers_num=2)
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_all()
        assert [item.id for item in await steps.fetch_once()] == [9]


async def test_park_sets_the_row_aside(database_with_clock: TemporaryDatabase) -> None:
    """A row that needs a person would be worked on again and again."""
    database = database_with_clock
    assert database.clock is not None
    now = database.clock.now
    row, counters = await _worked(
        database, RunPipeline(answer=Park("needs a licence")), Run(id=1, due_at=now)
    )
    assert (row.parked_at, row.last_error) == (now, "needs a licence")
    assert is_free(row)
    assert counters.parked == 1


async def test_a_changed_value_stops_the_apply_and_the_row_is_due_at_once(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A stop that came while the row was worked on would be overwritten, or wait for the next
    interval.
    """
    database = database_with_clock
    assert database.clock is not None
    run = Run(id=1, due_at=database.clock.now)

    async def answer(item: Any) -> Apply:
        await change(database, run, status="stopping")
        return Apply({"status": "done"}, unless_changed=[Run.status], hint=[Run])

    pipeline = RunPipeline(answer=answer)
    row, counters = await _worked(database, pipeline, run)
    assert (row.status, row.due_at, row.attempts) == ("stopping", database.clock.now, 0)
    assert (row.last_processed_at, is_free(row)) == (None, True)
    assert (counters.changed, counters.applied) == (1, 0)
    assert len(pipeline.stale) == 1


async def test_a_changed_value_without_a_schedule_leaves_the_row_eligible(
    database_with_clock: TemporaryDatabase,
) -> None:
    """The row would wait for the minimum interval before somebody looks at what the service
    wanted.
    """
    database = database_with_clock
    volume = Volume()

    async def answer(item: Any) -> Apply:
        await change(database, volume, size_gb=2)
        return Apply({"status": "active"}, unless_changed=["size_gb"])

    await _worked(database, VolumePipeline(answer=answer), volume)
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        assert len(await steps.fetch_once()) == 1


async def test_what_was_read_counts_not_what_the_host_did_to_the_instance(
    database: TemporaryDatabase,
) -> None:
    """A process that changes its own row object would stop its own apply, or hide a service's
    change.
    """

    async def answer(item: Any) -> Apply:
        item.row.size_gb = 99
        return Apply({"status": "active"}, unless_changed=[Volume.size_gb])

    row, _ = await _worked(database, VolumePipeline(answer=answer), Volume(size_gb=1))
    assert (row.status, row.size_gb) == ("active", 1)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Apply({"colour": "red"}), "has no column 'colour'"),
        (Apply({"lock_token": None}), "is written by rowlock"),
        (Apply({Run.last_processed_at: None}), "is written by rowlock"),
        (Apply({"id": 7}), "is the primary key"),
        (Apply({"status": "a", Run.status: "b"}), "in the values twice"),
        (Apply({Volume.status: "a"}), "has no column"),
        (Apply(unless_changed=["colour"]), "has no column 'colour'"),
        (Apply(after=-1), "from zero to 366 days"),
        (Retry(values={"lock_owner": None}), "is written by rowlock"),
        (Retry(after=-1), "from zero to 366 days"),
        (lambda item: "done", "must return Apply, Retry, Reset, Park or None"),
    ],
)
async def test_an_outcome_that_cannot_be_written_is_a_failed_attempt(
    database: TemporaryDatabase, answer: Any, complaint: str
) -> None:
    """A slip in `process` would lose the row, write half of it, or lock it until its lease ends."""
    await add(database, Run(id=1))
    async with stepping(database.session_factory, RunPipeline(answer=answer)) as steps:
        await steps.fetch_once()
        await steps.work_once()
    (row,) = await read_all(database, Run)
    assert is_free(row)
    assert (row.attempts, row.status) == (1, "queued")
    assert complaint in row.last_error


@pytest.mark.parametrize("answer", [Apply(after=5), Retry(after=5), Park("why")])
async def test_a_schedule_is_needed_for_what_speaks_of_time(
    database: TemporaryDatabase, answer: Any
) -> None:
    """A host would believe that its row rests or is parked, though its table cannot say so."""
    row, counters = await _worked(database, VolumePipeline(answer=answer), Volume())
    assert is_free(row)
    assert (counters.retried, counters.applied, counters.parked) == (1, 0, 0)


@pytest.mark.parametrize("read", [None, {"a": 1}])
async def test_unless_changed_compares_documents(database: TemporaryDatabase, read: Any) -> None:
    """A JSON column could not be guarded, or its null would look changed for ever and the row be
    worked on without a rest.
    """
    answer = Apply({"status": "done"}, unless_changed=[Run.result])
    run = Run(id=1, result=read)
    row, counters = await _worked(database, RunPipeline(answer=answer), run)
    assert (row.status, counters.changed) == ("done", 0)


async def test_a_due_time_in_another_shape_is_not_taken_for_a_request(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A host that wrote due_at by SQL of its own would have its row worked on without a rest."""
    database = sqlite_database
    await add(database, Run(id=1))
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE runs SET due_at = datetime('now', '-1 hour')")
    async with stepping(database.session_factory, RunPipeline(answer=Apply())) as steps:
        await steps.fetch_once()
        await steps.work_once()
        assert await steps.fetch_once() == []


@pytest.mark.parametrize("attempts", [0, 2])
async def test_a_row_that_cannot_be_read_is_counted_and_parked_at_the_limit(
    database: TemporaryDatabase, attempts: int
) -> None:
    """Its failure could not be written for want of the row itself, and it would be tried again
    after every lease for ever.
    """
    run = Run(id=1, attempts=attempts, deadline_at=datetime(2020, 1, 1, tzinfo=UTC))
    pipeline = UnreadablePipeline(max_attempts=3)
    row, counters = await _worked(database, pipeline, run)
    assert (row.attempts, is_free(row), pipeline.items) == (attempts + 1, True, [])
    assert "no such option" in row.last_error
    assert (counters.retried, counters.parked) == ((1, 0) if attempts == 0 else (0, 1))
    assert (row.parked_at is None) == (attempts == 0)


async def test_an_error_is_cut_to_the_hosts_column(database: TemporaryDatabase) -> None:
    """A failure whose text is too long could not be written, and the row would stay locked and
    uncounted.
    """
    await add(database, Narrow(id=1))
    async with stepping(
        database.session_factory, NarrowPipeline(answer=ValueError("x" * 500))
    ) as steps:
        await steps.fetch_once()
        await steps.work_once()
    row = (await read_all(database, Narrow))[0]
    assert (row.attempts, len(row.last_error), is_free(row)) == (1, 50, True)
