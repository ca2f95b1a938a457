"""`also`: what it does to the transaction that it is part of."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import delete, text
from sqlalchemy.exc import DBAPIError

from rowlock import Apply, events
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline, heard_events
from .scenes import add, counted, is_free, read_all

Also = Callable[[Any, Any], Awaitable[None]]
NOT_A_TABLE = "SELECT 1 FROM no_such_table"


async def outcome_of(
    database: TemporaryDatabase, also: Also
) -> tuple[RunPipeline, dict[str, int], list[str]]:
    """Have one row processed with `also`; return its pipeline, the counters and what was told to
    be applied.
    """
    await add(database, Run(id=1))
    pipeline = RunPipeline(answer=Apply({"status": "done"}, also=also, hint="Nobody"))
    with heard_events() as heard:
        async with stepping(database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            await steps.work_once()
            counters = counted(steps)
    return pipeline, counters, [told.outcome for told in heard.of(events.ItemApplied)]


async def swallow(session: Any, _now: Any) -> None:
    with suppress(DBAPIError):
        await session.execute(text(NOT_A_TABLE))


async def swallow_and_go_on(session: Any, now: Any) -> None:
    await swallow(session, now)
    await session.execute(text("SELECT 1"))


async def swallow_and_add(session: Any, now: Any) -> None:
    await swallow(session, now)
    session.add(Run(id=2))


@pytest.mark.parametrize("also", [swallow, swallow_and_go_on, swallow_and_add])
async def test_an_error_that_also_swallows_is_a_failure(
    postgresql_database: TemporaryDatabase, also: Also
) -> None:
    """PostgreSQL rolls back and answers the COMMIT as if all were well: it would be told as
    applied, and is not.
    """
    pipeline, counters, told = await outcome_of(postgresql_database, also)
    [row] = await read_all(postgresql_database, Run)
    assert (row.status, row.attempts, is_free(row)) == ("queued", 1, True)
    assert "also swallowed a database error" in row.last_error
    assert (counters["applied"], counters["retried"], told) == (0, 1, ["Retry"])
    assert [outcome.values for _, outcome in pipeline.stale] == [{"status": "done"}]


async def test_an_error_that_sqlite_makes_good_is_none(sqlite_database: TemporaryDatabase) -> None:
    """SQLite takes back the one statement that failed: an outcome that can be committed would be
    refused.
    """
    _, counters, told = await outcome_of(sqlite_database, swallow_and_add)
    assert (counters["applied"], told) == (1, ["Apply"])
    assert {row.id: row.status for row in await read_all(sqlite_database, Run)} == {
        1: "done",
        2: "queued",
    }


async def test_an_error_within_a_savepoint_may_be_swallowed(database: TemporaryDatabase) -> None:
    """A host could try nothing in `also` that may fail."""

    async def also(session: Any, _now: Any) -> None:
        try:
            async with session.begin_nested():
                await session.execute(text(NOT_A_TABLE))
        except DBAPIError:
            session.add(Run(id=2))

    _, counters, told = await outcome_of(database, also)
    assert (counters["applied"], told) == (1, ["Apply"])
    assert {row.id: row.status for row in await read_all(database, Run)} == {1: "done", 2: "queued"}


async def commit(session: Any, _now: Any) -> None:
    await session.commit()


async def commit_and_begin(session: Any, _now: Any) -> None:
    await session.commit()
    await session.begin()


async def commit_and_fail(session: Any, _now: Any) -> None:
    await session.commit()
    raise RuntimeError("after the commit")


async def commit_by_the_connection(session: Any, _now: Any) -> None:
    await (await session.connection()).commit()


@pytest.mark.filterwarnings("ignore:transaction already deassociated")
async def test_what_also_commits_by_the_connection_is_applied(database: TemporaryDatabase) -> None:
    """Its end would be told as unknown, and nobody be hinted, though the database knows."""
    pipeline, counters, told = await outcome_of(database, commit_by_the_connection)
    [row] = await read_all(database, Run)
    assert (row.status, row.attempts, is_free(row)) == ("done", 0, True)
    assert (counters["applied"], counters["stale"], told, pipeline.stale) == (1, 0, ["Apply"], [])


@pytest.mark.parametrize("also", [commit, commit_and_begin, commit_and_fail])
async def test_what_also_commits_is_applied(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, also: Also
) -> None:
    """It would be told as stale while it is in the row, and `on_stale` would take away what the
    row points to.
    """
    pipeline, counters, told = await outcome_of(database, also)
    [row] = await read_all(database, Run)
    assert (row.status, row.attempts, is_free(row)) == ("done", 0, True)
    assert (counters["applied"], counters["stale"], told, pipeline.stale) == (1, 0, ["Apply"], [])
    [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "also committed by itself" in line.getMessage()


async def roll_back(session: Any, _now: Any) -> None:
    await session.rollback()


async def roll_back_by_hand(session: Any, _now: Any) -> None:
    await session.execute(text("ROLLBACK"))


async def roll_back_and_fail(session: Any, _now: Any) -> None:
    await session.rollback()
    raise RuntimeError("no such disk")


@pytest.mark.parametrize(
    ("also", "error"),
    [
        (roll_back, "must neither commit nor roll back"),
        (roll_back_by_hand, "must neither commit nor roll back"),
        (roll_back_and_fail, "no such disk"),
    ],
)
async def test_what_also_rolls_back_is_a_failure(
    database: TemporaryDatabase, also: Also, error: str
) -> None:
    """It would be told as applied, and is not."""
    pipeline, counters, told = await outcome_of(database, also)
    [row] = await read_all(database, Run)
    assert (row.status, row.attempts, is_free(row)) == ("queued", 1, True)
    assert error in row.last_error
    assert (counters["applied"], counters["retried"], told) == (0, 1, ["Retry"])
    assert len(pipeline.stale) == 1


async def test_also_may_delete_its_own_row(database: TemporaryDatabase) -> None:
    """A job that removes itself when it is done would fail for ever, since its outcome is not to
    be found.
    """

    async def also(session: Any, _now: Any) -> None:
        await session.execute(delete(Run).where(Run.id == 1))

    _, counters, told = await outcome_of(database, also)
    assert (counters["applied"], told, await read_all(database, Run)) == (1, ["Apply"], [])
