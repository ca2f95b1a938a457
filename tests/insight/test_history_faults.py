"""Whatever is wrong with the history, no outcome is harmed; it mends itself, and is told once."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock import PipelineManager, events
from rowlock.insight import Insight, Observer
from rowlock.insight import recorder as recorder_module
from rowlock.testing import TemporaryDatabase

from ..host import Base, Run, RunPipeline, heard_events
from ..pipelines.scenes import add
from .test_actions import BY
from .test_history import TABLES, applied, history_of, make_tables, recorder_of

BEATS_MAX = 20
"""How often a replica is asked until what it says is new."""

LOG = "rowlock.insight.recorder"
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


UNKEPT = (
    "CREATE FUNCTION unkept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " IF NEW.error ~ '[^ -~]' THEN RAISE EXCEPTION 'no equivalent' USING ERRCODE = '22P05'; END IF;"
    " IF NEW.row_id = '3' THEN RAISE EXCEPTION 'too long' USING ERRCODE = '22001'; END IF;"
    " RETURN NEW; END $$;"
    "CREATE TRIGGER unkept BEFORE INSERT ON rowlock_history FOR EACH ROW EXECUTE FUNCTION unkept()"
)


async def test_a_value_that_the_database_cannot_keep_stops_no_history(
    postgresql_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """In a database whose encoding lacks a character of one error, or counts bytes, all later
    entries would wait behind it for ever.
    """
    database = postgresql_database
    await make_tables(database)
    await run_sql(database, UNKEPT)
    recorder = recorder_of(database)
    recorder.start()
    for fact in (applied(1, error="grün…"), applied(3), applied(4)):
        events.emit(fact)
        await recorder.write()
    assert not recorder.is_failing
    await recorder.stop()
    assert [(entry.row_id, entry.error, entry.dropped) for entry in await history_of(database)] == [
        ("1", r"gr\xfcn\u2026", None),
        ("", None, 1),
        ("4", None, None),
    ]
    told = [one for one in caplog.records if "cannot be written" in one.getMessage()]
    assert len(told) == 1


async def test_a_history_that_is_locked_delays_no_outcome(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration of the history would stop the work, or a person's action."""
    monkeypatch.setattr(recorder_module, "TIMEOUT", timedelta(seconds=0.2))
    monkeypatch.setattr(recorder_module, "ACTION_TIMEOUT", timedelta(seconds=0.2))
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
            monkeypatch.setattr(recorder_module, "TIMEOUT", timedelta(seconds=60))
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


async def worked_on(sessions: Any, fault: Any, *, count: int, answer: Any = None) -> Observer:
    """Have runs worked on while the history cannot be written, and a beat told; then end the fault,
    write again, and return the observer.
    """
    manager = PipelineManager(sessions, [RunPipeline(answer=answer)])
    with heard_events() as heard:
        async with Observer(manager, tables=TABLES, name="web-7") as observer, manager:
            assert observer.history is not None
            async with sessions.begin() as session:
                session.add_all([Run(id=number) for number in range(count)])
            await heard.wait_for(events.ItemApplied, count=count)
            for _ in range(3):
                await observer.history.write()
            assert (observer.history.is_failing, observer.history.waiting) == (True, count)
            told = await told_by(observer, sessions, f"{count} entries wait, 0 are lost")
            assert f"{count} entries wait, 0 are lost" in told
            await fault()
            await observer.history.write()
            assert (observer.history.is_failing, observer.history.waiting) == (False, 0)
            assert "history cannot be written" not in await told_by(observer, sessions, "")
    return observer


async def told_by(observer: Observer, sessions: Any, wanted: str) -> str:
    """Return what a check finds about the replica, as soon as `wanted` is in it, or nothing is
    where that is empty: a beat that was begun before may be the last to say how it is.
    """
    told = ""
    for _ in range(BEATS_MAX):
        await observer.beat()
        found = await Insight(sessions, [RunPipeline()], tables=TABLES).check()
        told = "\n".join(one.text for one in found if one.about == "web-7")
        if (wanted in told) if wanted else not told:
            break
    return told


async def test_a_role_without_rights_to_the_history(postgresql_database: TemporaryDatabase) -> None:
    """A service whose role may not write the history would do no work, or lose entries without a
    word.
    """
    database = postgresql_database
    await make_tables(database)
    await database.create_tables(Base.metadata)
    role = f"worker_{id(database)}"
    for statement in (
        f"CREATE ROLE {role}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}",
        f"REVOKE INSERT ON rowlock_history FROM {role}",
    ):
        await run_sql(database, statement)
    engine = database.create_engine(connect_args=database.connect_args(role=role))

    async def granted() -> None:
        await run_sql(database, f"GRANT INSERT ON rowlock_history TO {role}")

    try:
        await worked_on(async_sessionmaker(engine, expire_on_commit=False), granted, count=3)
        assert len(await history_of(database)) == 3
    finally:
        await engine.dispose()
        await run_sql(database, f"DROP OWNED BY {role}")
        await run_sql(database, f"DROP ROLE {role}")
