"""A service parks a row, also one that is at work."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import (
    Apply,
    ModelError,
    Outcome,
    Park,
    PipelineError,
    PipelineHinter,
    PipelineItem,
    Reset,
    Retry,
    park,
    unpark,
)
from rowlock.leases.apply import Written, apply_locked, lock_for_apply
from rowlock.pipelines.planner import Planner
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline, Volume
from ..pipelines.scenes import add, change, read
from .ground import RUNS, claimed, transact


async def parked(database: TemporaryDatabase, run: Run, reason: str = "provider down") -> None:
    async with database.session_factory.begin() as session:
        await park(session, await session.get_one(Run, run.id), reason)


async def test_a_parked_row_is_not_claimed(database_with_clock: TemporaryDatabase) -> None:
    """The row would be worked on although a person has set it aside, or nobody could say why."""
    [run] = await add(database_with_clock, Run(id=1))
    await parked(database_with_clock, run)
    assert await claimed(database_with_clock, RUNS) == []
    there = await read(database_with_clock, run)
    assert (there.parked_at, there.last_error) == (database_with_clock.clock.now, "provider down")
    async with database_with_clock.session_factory.begin() as session:
        await unpark(session, await session.get_one(Run, 1))
    assert len(await claimed(database_with_clock, RUNS)) == 1


@pytest.mark.parametrize(
    "outcome",
    [
        Apply({"status": "queued"}),
        Retry(error="no disk"),
        Retry(error="no disk", values={"status": "queued"}),
        Reset(),
        Park("no such disk"),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
@pytest.mark.parametrize("max_attempts", [1, 9])
async def test_an_outcome_under_way_leaves_it_parked(
    database_with_clock: TemporaryDatabase, outcome: Outcome, max_attempts: int
) -> None:
    """A row at work could not be set aside, or a failure would take the place of the reason."""
    clock = database_with_clock.clock
    [run] = await add(database_with_clock, Run(id=1))
    since = database_with_clock.clock.now

    async def park_at_work(item: PipelineItem[Any]) -> Outcome:
        await parked(database_with_clock, run)
        clock.advance(1)
        return outcome

    pipeline = RunPipeline(answer=park_at_work, max_attempts=max_attempts)
    async with stepping(database_with_clock.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
        there = await read(database_with_clock, run)
        assert there.lock_token is None
        assert (there.parked_at, there.last_error) == (since, "provider down")
        database_with_clock.clock.advance(3600)
        assert await steps.fetch_once() == []


async def test_outcomes_that_are_written_together_leave_it_parked(
    database: TemporaryDatabase,
) -> None:
    """Failures of one round share a statement, and each keeps its own row's reason."""
    await add(database, *(Run(id=number) for number in range(1, 5)))
    held = await claimed(database, RUNS)
    context = RunPipeline().build_run(database.session_factory, PipelineHinter()).context
    await parked(database, Run(id=2), "two")

    async def write(connection: AsyncConnection) -> list[Written]:
        now, _ = await lock_for_apply(connection, RUNS, held)
        assert now is not None
        planner = Planner(context, now)
        writes = [(item, planner.plan(item, Retry(error=f"error {item.id}"))) for item in held]
        return await apply_locked(connection, RUNS, writes)

    assert await transact(database, write, RUNS) == [Written.APPLIED] * 4
    errors = [(await read(database, Run(id=number))).last_error for number in range(1, 5)]
    assert errors == ["error 1", "two", "error 3", "error 4"]


async def test_a_request_that_changes_a_guarded_column_leaves_it_parked(
    database: TemporaryDatabase,
) -> None:
    """An outcome that is not written, and computed anew, would put the row back."""
    [run] = await add(database, Run(id=1))

    async def park_at_work(item: PipelineItem[Any]) -> Outcome:
        await parked(database, run)
        await change(database, run, result={"wanted": True})
        return Apply({"status": "done"}, unless_changed=["result"])

    async with stepping(database.session_factory, RunPipeline(answer=park_at_work)) as steps:
        await steps.fetch_once()
        await steps.work_once()
        assert await steps.fetch_once() == []
    assert (await read(database, run)).last_error == "provider down"


async def test_a_second_reason_takes_the_place_of_the_first(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Whoever knows more could not say so; or the row would seem to be parked since then only."""
    [run] = await add(database_with_clock, Run(id=1))
    await parked(database_with_clock, run)
    since = database_with_clock.clock.now
    database_with_clock.clock.advance(5)
    await parked(database_with_clock, run, "provider gone")
    there = await read(database_with_clock, run)
    assert (there.parked_at, there.last_error) == (since, "provider gone")


@pytest.mark.parametrize("reason", ["", "  ", None, 7])
async def test_a_reason_is_needed(database: TemporaryDatabase, reason: Any) -> None:
    """A row would be parked and nobody could say why."""
    [run] = await add(database, Run(id=1))
    async with database.session_factory() as session:
        with pytest.raises(PipelineError, match="say in `reason` why"):
            await park(session, run, reason)


async def test_a_model_without_a_schedule_is_refused(sqlite_database: TemporaryDatabase) -> None:
    """A service would believe that the row is set aside."""
    [volume] = await add(sqlite_database, Volume())
    async with sqlite_database.session_factory() as session:
        with pytest.raises(ModelError, match="ScheduleColumns"):
            await park(session, volume, "provider down")
