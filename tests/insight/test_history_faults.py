"""Whatever is wrong with the history, no outcome is harmed; it mends itself, and is told once."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from rowlock import PipelineManager, events
from rowlock.insight import Insight, Observer
from rowlock.insight.history import acts as acts_module
from rowlock.insight.history import writer as writer_module
from rowlock.testing import TemporaryDatabase

from ..host import Run, RunPipeline, heard_events
from ..pipelines.scenes import add
from .test_actions import BY
from .test_history import TABLES, history_of, make_tables

LOG = "rowlock.insight.history"
FULL = {
    "sqlite": (
        "CREATE TRIGGER full_disk BEFORE INSERT ON rowlock_history"
        " BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END",
        "DROP TRIGGER full_disk",
    ),
    "postgresql": (
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION"
        " 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;"
        "CREATE TRIGGER full_disk BEFORE INSERT ON rowlock_history FOR EACH ROW"
        " EXECUTE FUNCTION full_disk()",
        "DROP TRIGGER full_disk ON rowlock_history",
    ),
}


async def run_sql(database: TemporaryDatabase, statements: str) -> None:
    """Execute statements, one after the other."""
    is_sqlite = database.engine.dialect.name == "sqlite"
    async with database.engine.begin() as connection:
        for statement in [statements] if is_sqlite else _split(statements):
            await connection.execute(text(statement))


def _split(statements: str) -> list[str]:
    head, separator, tail = statements.partition("$$;")
    return [head + "$$", tail] if separator else [statements]


@pytest.mark.parametrize("fault", ["dropped", "other columns", "full"])
async def test_what_is_wrong_harms_no_outcome(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """A window would take the house down with it, or fill the log, or stay blind for ever."""
    caplog.set_level(logging.INFO, LOG)
    full, freed = FULL[database.engine.dialect.name]
    broken, mended = {
        "dropped": ("DROP TABLE rowlock_history", None),
        "other columns": (
            "ALTER TABLE rowlock_history RENAME COLUMN error TO said",
            "ALTER TABLE rowlock_history RENAME COLUMN said TO error",
        ),
        "full": (full, freed),
    }[fault]
    await make_tables(database)
    manager = PipelineManager(database.session_factory, [RunPipeline()])
    with heard_events() as heard:
        async with Observer(manager, tables=TABLES) as observer, manager:
            assert observer.history is not None
            await run_sql(database, broken)
            await add(database, Run(id=1), Run(id=2))
            await heard.wait_for(events.ItemApplied, count=2)
            for _ in range(3):
                await observer.history.write()
            if mended is None:
                await make_tables(database)
            else:
                await run_sql(database, mended)
            await add(database, Run(id=3))
            await heard.wait_for(events.ItemApplied, count=3)
            await observer.history.write()
            assert not heard.of(events.ItemFailed)
    assert {entry.row_id for entry in await history_of(database)} == {"1", "2", "3"}
    lines = [one.getMessage() for one in caplog.records if one.name.startswith(LOG)]
    assert [line.partition(" (")[0] for line in lines] == [
        "The history cannot be written",
        "The history is written again",
    ]


async def test_a_history_that_is_locked_delays_no_outcome(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration of the history would stop the work, or a person's action."""
    monkeypatch.setattr(writer_module, "TIMEOUT", timedelta(seconds=0.2))
    monkeypatch.setattr(acts_module, "TIMEOUT", timedelta(seconds=0.2))
    database = postgresql_database
    await make_tables(database)
    await add(database, Run(id=1))
    pipeline = RunPipeline()
    manager = PipelineManager(database.session_factory, [pipeline], gates=[TABLES.pause_gate])
    insight = Insight(database.session_factory, [pipeline], tables=TABLES)
    with heard_events() as heard:
        async with Observer(manager, tables=TABLES) as observer:
            assert observer.history is not None
            async with database.engine.begin() as connection, manager:
                await connection.execute(text("LOCK TABLE rowlock_history"))
                await heard.wait_for(events.ItemApplied)
                await observer.history.write()
                done = await insight.park("Run", 1, **BY)
                assert done.outcome == "parked"
            monkeypatch.setattr(writer_module, "TIMEOUT", timedelta(seconds=60))
    assert [entry.kind for entry in await history_of(database)] == ["applied"]


async def test_what_cannot_be_written_at_the_end_is_told(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A shutdown would wait for ever, or lose entries without a word."""
    await add(database, Run(id=1))
    manager = PipelineManager(database.session_factory, [RunPipeline()])
    with heard_events() as heard:
        async with Observer(manager, tables=TABLES) as observer, manager:
            await heard.wait_for(events.ItemApplied)
    assert observer.history is not None
    assert observer.history.dropped == 1
    [line] = [one for one in caplog.records if "before the end" in one.getMessage()]
    assert line.levelno == logging.WARNING


async def test_an_action_without_its_table_is_done(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A person could not act, since a window is broken."""
    await add(database, Run(id=1))
    insight: Any = Insight(database.session_factory, [RunPipeline()], tables=TABLES)
    assert (await insight.park("Run", 1, **BY)).outcome == "parked"
    [line] = [one for one in caplog.records if "not in the history" in one.getMessage()]
    assert "alice" in line.getMessage()
