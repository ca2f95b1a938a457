"""Tests of `Apply(due_at=...)`: a row is due again at a time that the host says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from rowlock import Apply, OutcomeError
from rowlock.pipelines.outcomes import check_outcome
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume
from .scenes import add, read

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


def test_a_time_that_is_over_is_at_once(virtual_database: TemporaryDatabase) -> None:
    """A row that is late would be refused, or wait."""

    @virtual_time
    async def play() -> None:
        await add(virtual_database, Run(id=1))
        answer = Apply(due_at=datetime(1999, 1, 1, tzinfo=UTC))
        async with stepping(virtual_database.session_factory, RunPipeline(answer=answer)) as steps:
            for _ in range(2):
                [_item] = await steps.fetch_once()
                await steps.work_once()

    play()


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
