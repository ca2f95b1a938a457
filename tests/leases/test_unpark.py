"""Many parked rows are put back by one statement."""

from __future__ import annotations

import pytest

from rowlock import ModelError, PipelineError, pipeline_hinter, unpark
from rowlock.testing import TemporaryDatabase

from ..host import Run, Volume
from .ground import RUNS, add, claimed, row_of


async def parked(database: TemporaryDatabase, *errors: str) -> None:
    now = database.clock.now
    rows = [
        Run(id=number, parked_at=now, attempts=9, last_error=error)
        for number, error in enumerate(errors, start=1)
    ]
    await add(database, *rows, Run(id=100, attempts=3, last_error="outage"))


async def test_rows_that_meet_the_condition_are_put_back(
    database_with_clock: TemporaryDatabase,
) -> None:
    """After an outage each row would have to be released by hand, or those would be that a person
    has to look at.
    """
    await parked(database_with_clock, "outage", "quota", "outage")
    async with database_with_clock.session_factory.begin() as session:
        assert await unpark(session, Run, where=Run.last_error == "outage") == 2
    assert {item.id for item in await claimed(database_with_clock, RUNS)} == {1, 3, 100}
    for number, attempts in ((1, 0), (2, 9), (100, 3)):
        assert (await row_of(database_with_clock, RUNS, number)).attempts == attempts


async def test_without_a_condition_all_are(database_with_clock: TemporaryDatabase) -> None:
    """A person would have to think of a condition that is true."""
    await parked(database_with_clock, "outage", "quota")
    async with database_with_clock.session_factory.begin() as session:
        run = await session.get_one(Run, 1)
        assert await unpark(session, Run) == 2
        assert (run.parked_at, run.attempts) == (None, 0)
        assert await unpark(session, Run) == 0


async def test_pipelines_are_hinted_after_the_commit(
    database_with_clock: TemporaryDatabase,
) -> None:
    """The rows would wait for a poll."""
    await parked(database_with_clock, "outage")
    hints: list[str] = []

    def wake() -> None:
        hints.append("Run")

    pipeline_hinter.attach("Run", wake)
    try:
        async with database_with_clock.session_factory.begin() as session:
            await unpark(session, Run)
            assert hints == []
    finally:
        pipeline_hinter.detach("Run", wake)
    assert hints == ["Run"]


async def test_what_cannot_be_meant_is_refused(database_with_clock: TemporaryDatabase) -> None:
    """A condition that Python has made a boolean would put back every row."""
    await parked(database_with_clock, "outage")
    async with database_with_clock.session_factory() as session:
        run = await session.get_one(Run, 1)
        with pytest.raises(PipelineError, match="one SQL expression"):
            await unpark(session, Run, where=run.last_error == "outage")  # type: ignore[arg-type]
        with pytest.raises(PipelineError, match="beside a model"):
            await unpark(session, run, where=Run.id == 1)
        with pytest.raises(ModelError, match="ScheduleColumns"):
            await unpark(session, Volume)
