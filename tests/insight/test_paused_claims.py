"""A claim that is paused reads no row on SQLite, however many are due."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from sqlalchemy import MetaData, true
from sqlalchemy.dialects import sqlite

from rowlock.dialects.sqlite.leases import _due
from rowlock.insight import insight_tables
from rowlock.leases.claim_request import Position, Range
from rowlock.pipelines.attempt import Seams
from rowlock.pipelines.fetcher import ClaimBuilder
from rowlock.rows.expressions import of_no_row
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline
from ..pipelines.scenes import add
from .test_pause_gate import TABLES, paused

pytestmark = pytest.mark.either_database

LEASED = RunPipeline().leased


async def steps_of(database: TemporaryDatabase, after: Position | None) -> int:
    """Return how many steps SQLite's machine takes for the look of a claim."""
    async with stepping(database.session_factory, RunPipeline()) as steps:
        context = steps.run.context
        context.seams = Seams(gates=(TABLES.pause_gate,))
        request = ClaimBuilder(context).next(5, after=after)
    compiled = _due(request, Range.of(after), frozenset()).compile(dialect=sqlite.dialect())
    given = {
        "rowlock_limit": 5,
        "rowlock_after_place": "2000-01-01 00:00:00.000000",
        "rowlock_after_key": 0,
    }
    given = {name: value for name, value in given.items() if name in compiled.params}
    names, parameters = compiled.positiontup, compiled.construct_params(given)
    assert names is not None
    count = 0

    def note() -> int:
        nonlocal count
        count += 1
        return 0

    assert database.url.database is not None
    connection = sqlite3.connect(database.url.database)
    connection.set_progress_handler(note, 1)
    found = connection.execute(str(compiled), [parameters[name] for name in names]).fetchall()
    connection.close()
    assert found == []
    return count


@pytest.mark.parametrize("after", [None, Position("2000-01-01 00:00:00.000000", 0)])
async def test_a_paused_claim_costs_the_same_however_many_are_due(
    sqlite_database: TemporaryDatabase, after: Position | None
) -> None:
    """A pause beside a million due rows would hold the file's write lock, again and again, for as
    long as it takes to read them.
    """
    database = sqlite_database
    await add(database, *(Run() for _ in range(10)))
    await paused(database, "RunPipeline")
    few = await steps_of(database, after)
    await add(database, *(Run() for _ in range(1000)))
    assert await steps_of(database, after) == few


def test_a_gate_that_asks_for_the_row_is_asked_for_each() -> None:
    """A gate over a column of the row would stand where there is no row."""
    pause = TABLES.pause_gate(LEASED, "RunPipeline")
    of_rows: Any = Run.result.is_(None)
    other = insight_tables(MetaData()).pause_gate(LEASED, "Other")
    assert of_no_row(LEASED, [pause, of_rows, true(), other]) == (pause, true(), other)
