"""Writing outcomes while trust ends, and after answers that were lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError, ProgrammingError

from rowlock import Apply, PipelineManager, events
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import add, counted, faults_of, is_outcome, read_all
from .test_writer import GONE


@virtual_time
async def test_an_item_without_trust_is_not_written(virtual_database: TemporaryDatabase) -> None:
    """A holder that slept past its lease would write all the same, if nobody has taken the row
    yet.
    """
    await add(virtual_database, Volume())

    async def answer(item: Any) -> Apply:
        item.trusted_until = asyncio.get_running_loop().time()
        return Apply({"status": "active"})

    async with stepping(virtual_database.session_factory, VolumePipeline(answer=answer)) as steps:
        await steps.fetch_once()
        await steps.work_once()
    assert [row.status for row in await read_all(virtual_database, Volume)] == ["submitted"]


@pytest.mark.parametrize("alone", [False, True])
@virtual_time
async def test_trust_that_ends_while_the_outcome_waits_is_noticed(
    virtual_database: TemporaryDatabase, alone: bool
) -> None:
    """An outcome that waited for the database past its lease would be written all the same."""
    await add(virtual_database, Volume())
    also_ran = []

    async def also(session: Any, now: Any) -> None:
        also_ran.append(now)

    with faults_of(virtual_database.engine) as faults:

        def answer(item: Any) -> Apply:
            faults.hang(when=lambda statement: statement.startswith("BEGIN"))
            asyncio.get_running_loop().call_later(7, faults.heal)
            return Apply({"status": "active"}, also=also if alone else None)

        pipeline = VolumePipeline(answer=answer, lock_timeout=6, heartbeat_trigger=3)
        async with stepping(virtual_database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            await steps.work_once()
    assert [row.status for row in await read_all(virtual_database, Volume)] == ["submitted"]
    assert also_ran == []


@virtual_time
async def test_a_first_try_that_took_long_is_not_the_last(
    virtual_database: TemporaryDatabase,
) -> None:
    """An outcome would be given up, and its work done again, for a transaction that a blocked
    loop had kept standing.
    """
    await add(virtual_database, Volume())
    pipeline = VolumePipeline(lock_timeout=6, heartbeat_trigger=3, database_timeout=20)
    with faults_of(virtual_database.engine) as faults:
        faults.hang(when=is_outcome)
        loop = asyncio.get_running_loop()
        loop.call_later(45, faults.heal)
        async with stepping(virtual_database.session_factory, pipeline) as steps:
            [item] = await steps.fetch_once()
            item.trusted_until += 100  # as if it had been renewed
            await steps.work_once()
            assert counted(steps)["retried"] == 0
    assert [row.status for row in await read_all(virtual_database, Volume)] == ["active"]


async def test_an_error_of_also_is_not_taken_for_an_outage(database: TemporaryDatabase) -> None:
    """A host's own timeout would be tried again and again, and its effects with it, before it
    counts as a failure.
    """
    ran = []

    async def also(session: Any, now: Any) -> None:
        ran.append(now)
        raise TimeoutError("the mail server does not answer")

    await add(database, Run(id=1))
    async with stepping(database.session_factory, RunPipeline(answer=Apply(also=also))) as steps:
        await steps.fetch_once()
        await steps.work_once()
    (row,) = await read_all(database, Run)
    assert (len(ran), row.attempts) == (1, 1)
    assert "the mail server does not answer" in row.last_error


@virtual_time
async def test_what_cannot_be_known_is_not_cleaned_up(virtual_database: TemporaryDatabase) -> None:
    """After a lost answer and a lasting error, the effects of an outcome that was applied would
    be taken away.
    """
    await add(virtual_database, Volume())
    with faults_of(virtual_database.engine) as faults, heard_events() as heard:

        def answer(item: Any) -> Apply:
            so_far = len(faults.committed)
            faults.lose_answers_of_commits()
            refused = ProgrammingError("", {}, Exception("the password was changed"))
            faults.fail(refused, when=lambda statement: len(faults.committed) > so_far)
            return Apply({"status": "active"})

        pipeline = VolumePipeline(answer=answer)
        async with stepping(virtual_database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            await steps.work_once()
    assert [event.reason for event in heard.of(events.ItemStale)] == ["unknown"]
    assert pipeline.stale == []
    assert [row.status for row in await read_all(virtual_database, Volume)] == ["active"]


@virtual_time
async def test_a_lost_answer_is_settled_even_after_the_lease(
    virtual_database: TemporaryDatabase,
) -> None:
    """An outcome that was applied would be reported lost, because the database came back only
    after trust had ended.
    """
    await add(virtual_database, Volume())
    with faults_of(virtual_database.engine) as faults, heard_events() as heard:

        def answer(item: Any) -> Apply:
            so_far = len(faults.committed)
            faults.lose_answers_of_commits()
            faults.fail(GONE, when=lambda statement: len(faults.committed) > so_far)
            asyncio.get_running_loop().call_later(28, faults.heal)
            return Apply({"status": "active"})

        pipeline = VolumePipeline(answer=answer)
        async with stepping(virtual_database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            await steps.work_once()
    assert [event.outcome for event in heard.of(events.ItemApplied)] == ["Apply"]
    assert (heard.of(events.ItemStale), pipeline.stale) == ([], [])


class Conflict(Exception):
    """What the driver says of a transaction that lost to another one."""

    sqlstate = "40001"


@virtual_time
async def test_a_commit_that_lost_to_another_is_known_to_have_failed(
    virtual_database: TemporaryDatabase,
) -> None:
    """Nothing of it was committed, for certain; as one of unknown end it would be cleaned up
    after by nobody.
    """
    await add(virtual_database, Volume())
    wrote: set[Any] = set()

    def note(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if is_outcome(statement) and "status" in statement:
            wrote.add(connection)

    def refuse(connection: Any) -> None:
        if connection in wrote:
            wrote.discard(connection)
            raise OperationalError("COMMIT", {}, Conflict("could not serialize access"))

    event.listen(virtual_database.engine.sync_engine, "before_cursor_execute", note)
    event.listen(virtual_database.engine.sync_engine, "commit", refuse)
    pipeline = VolumePipeline()
    # With renewals, so that trust does not end before the patience with the database.
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await asyncio.sleep(40)
    assert [stale.reason for stale in heard.of(events.ItemStale)] == []
    assert len(pipeline.stale) == 1
