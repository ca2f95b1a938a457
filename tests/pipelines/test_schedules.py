"""Tests of schedules of rows: of the pipeline, or of each row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import make_transient_to_detached

from rowlock import Apply, Cron, ModelError, Retry, Schedule, SettingsError, events
from rowlock.pipelines.schedules import row_schedules
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, VolumePipeline, heard_events
from .scenes import add, counted, read, ticket

pytestmark = pytest.mark.either_database(but=["test_a_row_is_due_at_the_next_occurrence"])

NIGHTLY = Cron("0 3 * * *", "Europe/Berlin")
RUNS = LeasedTable.of(Run)


class Nightly(RunPipeline):
    schedule = NIGHTLY


class OfEachRow(RunPipeline):
    """Takes the schedule of a row from its column `result`."""

    def schedule_of(self, row: Any) -> Schedule | None:
        return None if row.result is None else Cron(row.result, "America/New_York")


async def _worked(database: TemporaryDatabase, pipeline: Any, row: Run) -> tuple[Run, Any]:
    await add(database, row)
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
        return await read(database, row), counted(steps)


async def test_a_row_is_due_at_the_next_occurrence(database: TemporaryDatabase) -> None:
    """It would run every `min_processing_interval`, or the host would work out the time by its own
    clock.
    """
    row, _ = await _worked(database, Nightly(answer=Apply()), Run(id=1))
    assert row.last_processed_at is not None
    assert row.due_at == NIGHTLY.next_after(row.last_processed_at)


async def test_a_row_may_have_a_schedule_of_its_own(database: TemporaryDatabase) -> None:
    """All rows of a table would have one schedule."""
    row, _ = await _worked(database, OfEachRow(answer=Apply()), Run(id=1, result="0 4 * * *"))
    assert row.last_processed_at is not None
    own = Cron("0 4 * * *", "America/New_York")
    assert row.due_at == own.next_after(row.last_processed_at)


async def test_a_row_without_a_schedule_rests_as_usual(database: TemporaryDatabase) -> None:
    """It would never run again, or be refused."""
    row, _ = await _worked(database, OfEachRow(answer=Apply()), Run(id=1))
    assert row.last_processed_at is not None
    assert row.due_at - row.last_processed_at == timedelta(seconds=15)


@pytest.mark.parametrize("schedule", ["every day", 5, [1]])
async def test_a_row_whose_schedule_cannot_be_read_is_parked(
    database: TemporaryDatabase, schedule: Any
) -> None:
    """What was achieved would be lost and be done again and again; or no outcome of the pipeline
    could be written.
    """
    answer = Apply({"status": "done"})
    with heard_events() as heard:
        row, counters = await _worked(
            database, OfEachRow(answer=answer), Run(id=1, result=schedule)
        )
    assert [event.reason for event in heard.of(events.ItemParked)] == [
        "its schedule gives no next time"
    ]
    assert (row.status, counters["parked"], row.lock_token) == ("done", 1, None)
    assert row.parked_at is not None
    assert "its schedule gives no next time" in (row.last_error or "")


class Bad:
    """A schedule of a host's own that gives no aware time."""

    def next_after(self, now: datetime) -> datetime:
        return now.replace(tzinfo=None)


async def test_a_schedule_of_the_host_s_own_is_looked_at(database: TemporaryDatabase) -> None:
    """A naive time would be refused by the database, with all outcomes of its transaction."""
    kind = type("OwnSchedule", (RunPipeline,), {"schedule": Bad()})
    row, _ = await _worked(database, kind(answer=Apply()), Run(id=1))
    assert "must give an aware datetime" in (row.last_error or "")


class Standing:
    """A schedule of a host's own that does not look forward."""

    def next_after(self, now: datetime) -> datetime:
        return now


async def test_a_schedule_that_stands_still_is_looked_at(database: TemporaryDatabase) -> None:
    """Its row would be worked on again and again, without a rest."""
    kind = type("OwnSchedule", (RunPipeline,), {"schedule": Standing()})
    row, _ = await _worked(database, kind(answer=Apply()), Run(id=1))
    assert "must look forward" in (row.last_error or "")


@pytest.mark.parametrize("how", ["after", "due_at"])
@virtual_time
async def test_what_the_outcome_says_goes_before(
    virtual_database: TemporaryDatabase, how: str
) -> None:
    """A host could make no exception."""
    later = datetime(2199, 1, 1, tzinfo=UTC)
    answer = Apply(after=5) if how == "after" else Apply(due_at=later)
    row, _ = await _worked(virtual_database, Nightly(answer=answer), Run(id=1))
    assert row.last_processed_at is not None
    expected = row.last_processed_at + timedelta(seconds=5) if how == "after" else later
    assert row.due_at == expected


async def test_a_failure_is_tried_again_before_the_next_occurrence(
    database: TemporaryDatabase,
) -> None:
    """A report would be left out since one attempt failed."""
    row, _ = await _worked(database, Nightly(answer=Retry(error="no")), Run(id=1))
    assert row.last_processed_at is not None
    assert row.due_at - row.last_processed_at < timedelta(seconds=2)


async def test_a_clock_that_was_set_back_brings_no_occurrence_again() -> None:
    """After a failover to a server whose clock is behind, the report of the night would be written
    twice.
    """
    schedules = row_schedules("Nightly", RUNS, schedule=NIGHTLY, of_row=None, periodic=())
    assert schedules is not None
    at_three = datetime(2026, 5, 1, 1, tzinfo=UTC)
    item = ticket()
    item.row = Run(id=1, due_at=at_three)
    make_transient_to_detached(item.row)
    assert schedules.next_after(item, at_three - timedelta(seconds=2)) == at_three + timedelta(
        days=1
    )


@pytest.mark.parametrize(
    ("zone", "now"),
    [
        ("America/New_York", datetime(1, 1, 1, tzinfo=UTC)),
        ("UTC", datetime(9999, 12, 31, 23, 58, tzinfo=UTC)),
        ("Pacific/Auckland", datetime(9999, 12, 31, 23, 58, tzinfo=UTC)),
    ],
)
def test_a_cron_at_the_ends_of_time(zone: str, now: datetime) -> None:
    """A wrong clock would have a row parked for an error that names no cause."""
    cron = Cron("*/5 * * * *", zone)
    with pytest.raises(SettingsError, match=f"no occurrence after {now.year:04}"):
        cron.next_after(now)
    assert cron.next_after(datetime(9990, 1, 1, tzinfo=UTC)).year == 9990


async def test_a_clock_that_was_years_ahead_does_not_keep_a_row_there() -> None:
    """A row in hand while the clock is put right would be due again in those years."""
    schedules = row_schedules("Nightly", RUNS, schedule=NIGHTLY, of_row=None, periodic=())
    assert schedules is not None
    item = ticket()
    item.row = Run(id=1, due_at=datetime(2036, 5, 1, 1, tzinfo=UTC))
    make_transient_to_detached(item.row)
    now = datetime(2026, 5, 1, 2, tzinfo=UTC)
    assert schedules.next_after(item, now) == datetime(2026, 5, 2, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("base", "attributes", "kind", "says"),
    [
        (VolumePipeline, {"schedule": NIGHTLY}, ModelError, "needs ScheduleColumns"),
        (RunPipeline, {"schedule": "0 3 * * *"}, SettingsError, r"such as Cron\("),
        (RunPipeline, {"schedule": Cron}, SettingsError, r"such as Cron\("),
        (RunPipeline, {"schedule": timedelta(hours=1)}, SettingsError, r"such as Cron\("),
    ],
)
def test_what_is_no_schedule_is_refused(
    base: type[Any], attributes: dict[str, Any], kind: type[Exception], says: str
) -> None:
    """It would be found when the first outcome is written."""
    with pytest.raises(kind, match=says):
        type("Wrong", (base,), attributes)()
