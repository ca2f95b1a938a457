"""The observer of a replica: it says that the replica lives, keeps a pause, and harms nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import MetaData, event, insert, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock import ConfigurationError, PipelineError, PipelineManager, events
from rowlock.insight import Insight, InsightTables, Observer, insight_tables, replica_mark
from rowlock.insight import observer as observer_module
from rowlock.insight.replicas import REPORT_BYTES_MAX
from rowlock.testing import TemporaryDatabase

from ..host import Run, RunPipeline, VolumePipeline, heard_events, wait_s_max
from ..pipelines.scenes import add, read_all

pytestmark = pytest.mark.either_database(
    but=[
        "test_a_replica_says_that_it_lives_and_that_it_stops",
        "test_a_row_that_was_swept_comes_back",
        "test_a_table_that_is_dropped_harms_nothing",
        "test_a_database_that_is_away_harms_nothing",
    ]
)

TABLES = insight_tables(MetaData())


async def make_tables(database: TemporaryDatabase) -> None:
    assert TABLES.replicas is not None
    await database.create_tables(TABLES.replicas.metadata)


async def replicas(database: TemporaryDatabase) -> list[Any]:
    assert TABLES.replicas is not None
    async with database.engine.connect() as connection:
        return list((await connection.execute(select(TABLES.replicas))).all())


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition()` is true."""
    async with asyncio.timeout(wait_s_max()):
        while not condition():  # noqa: ASYNC110 - what it looks at sets no event
            await asyncio.sleep(0.01)


def manager_of(database: TemporaryDatabase, *pipelines: Any) -> PipelineManager:
    return PipelineManager(database.session_factory, pipelines, gates=[TABLES.pause_gate])


@asynccontextmanager
async def at_rest(*managers: PipelineManager, **given: Any) -> AsyncIterator[Observer]:
    """Give an observer that beats only when it is told to."""
    yield Observer(*managers, **{"tables": TABLES, **given})


async def test_a_replica_says_that_it_lives_and_that_it_stops(database: TemporaryDatabase) -> None:
    """Nobody could tell which replicas there are, or one that was stopped would seem dead."""
    await make_tables(database)
    await add(database, Run(id=1))
    with heard_events() as heard:
        async with manager_of(database, RunPipeline()) as manager:
            async with Observer(manager, tables=TABLES, name="web-7") as observer:
                await heard.wait_for(events.ItemApplied)
                applied = 0
                while not applied:
                    await observer.beat()
                    # Its own first beat, with an older report, may have been written behind that.
                    [row] = await replicas(database)
                    told = row.report["pipelines"]["RunPipeline"]
                    applied = told["totals"]["applied"]
                assert (row.mark, row.name, row.pid) == (replica_mark(), "web-7", os.getpid())
                assert not row.draining
                assert (told["state"], applied, told["paused"]) == ("running", 1, False)
                manager.shutdown()
                await observer.beat()
                [row] = await replicas(database)
                assert row.draining
            assert await replicas(database) == []


async def test_a_row_that_was_swept_comes_back(database_with_clock: TemporaryDatabase) -> None:
    """A replica that could not write for long would be gone for ever; or dead ones stay."""
    database = database_with_clock
    assert database.clock is not None
    assert TABLES.replicas is not None
    await make_tables(database)
    async with database.engine.begin() as connection:
        for mark, silent in (
            ("dead0000", timedelta(hours=1.1)),
            ("dead0001", timedelta(hours=0.9)),
        ):
            then = database.clock.now - silent
            row = {"name": "web", "host": "web", "pid": 1, "version": "1", "report": {}}
            await connection.execute(
                insert(TABLES.replicas).values(mark=mark, started_at=then, seen_at=then, **row)
            )
    async with at_rest(manager_of(database, RunPipeline())) as observer:
        await observer.beat()
        assert {row.mark for row in await replicas(database)} == {"dead0001", replica_mark()}
        started = database.clock.now
        async with database.engine.begin() as connection:
            await connection.execute(TABLES.replicas.delete())
        database.clock.advance(5)
        await observer.beat()
        [row] = await replicas(database)
        assert row.seen_at == started + timedelta(seconds=5)


async def test_what_is_queued_of_a_paused_pipeline_is_returned(database: TemporaryDatabase) -> None:
    """Rows that were claimed before the pause would be begun for minutes after it."""
    await make_tables(database)
    await add(database, *(Run(id=number) for number in range(1, 9)))
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def work_long(item: Any) -> None:
        begun.set()
        await may_end.wait()

    pipeline = RunPipeline(answer=work_long, workers_num=1, queue_upper_limit_factor=8)
    actions = Insight(database.session_factory, [pipeline], tables=TABLES)
    async with manager_of(database, pipeline) as manager, at_rest(manager) as observer:
        await begun.wait()
        await until(lambda: pipeline.statistics().queued == 7)
        await actions.pause("RunPipeline", by="alice", reason="provider down")
        await observer.beat()
        assert observer.paused == {"RunPipeline"}
        held = [row.id for row in await read_all(database, Run) if row.lock_token is not None]
        assert len(held) == 1
        may_end.set()
        await until(lambda: pipeline.statistics().counters["applied"] == 1)
        assert pipeline.statistics().counters["started"] == 1
        await actions.resume("RunPipeline", by="alice", reason="provider back")
        await until(lambda: pipeline.statistics().counters["applied"] == 8)
        await observer.beat()
        assert observer.paused == frozenset()


async def test_an_observer_at_rest_asks_little(database: TemporaryDatabase) -> None:
    """A hundred replicas that do nothing would keep a database busy."""
    await make_tables(database)
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    async with at_rest(manager_of(database, RunPipeline(), VolumePipeline())) as observer:
        await observer.beat()
        event.listen(database.engine.sync_engine, "before_cursor_execute", note)
        for _ in range(10):
            await observer.beat()
        event.remove(database.engine.sync_engine, "before_cursor_execute", note)
    asked = [one for one in statements if not one.startswith("BEGIN")]
    assert len(asked) == 10
    assert len(asked) / (10 * observer_module.BEAT_S) <= 0.25


BROKEN = {
    "missing": "DROP TABLE rowlock_replicas",
    "all missing": "DROP TABLE rowlock_controls",
    "other columns": "ALTER TABLE rowlock_replicas RENAME COLUMN report TO said",
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_table_that_is_dropped_harms_nothing(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    """A window would take the house down with it, or fill the log."""
    caplog.set_level(logging.INFO, "rowlock.insight.observer")
    await make_tables(database)
    await add(database, Run(id=1))
    with heard_events() as heard:
        manager = PipelineManager(database.session_factory, [RunPipeline()])
        async with manager, at_rest(manager) as observer:
            await observer.beat()
            async with database.engine.begin() as connection:
                await connection.execute(text(BROKEN[broken]))
            for _ in range(3):
                await observer.beat()
            await heard.wait_for(events.ItemApplied)
            await add(database, Run(id=2))
            await heard.wait_for(events.ItemApplied, count=2)
            [line] = [one for one in caplog.records if "cannot do its part" in one.getMessage()]
            assert line.levelno == logging.WARNING
            async with database.engine.begin() as connection:
                if broken == "other columns":
                    back = "ALTER TABLE rowlock_replicas RENAME COLUMN said TO report"
                    await connection.execute(text(back))
            await make_tables(database)
            await observer.beat()
            assert [row.mark for row in await replicas(database)] == [replica_mark()]
    assert "does its part again" in caplog.records[-1].getMessage()


async def test_a_table_that_is_locked_harms_nothing(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcomes would wait for whoever has locked a table of ours."""
    database = postgresql_database
    monkeypatch.setattr(observer_module, "STATEMENT_TIMEOUT", timedelta(seconds=0.3))
    await make_tables(database)
    await add(database, Run(id=1))
    with heard_events() as heard:
        manager = PipelineManager(database.session_factory, [RunPipeline()])
        async with database.engine.connect() as locking:
            await locking.execute(text("LOCK TABLE rowlock_replicas IN ACCESS EXCLUSIVE MODE"))
            async with manager, at_rest(manager) as observer:
                await observer.beat()
                await heard.wait_for(events.ItemApplied)
                await locking.rollback()
                await observer.beat()
                assert len(await replicas(database)) == 1


async def test_without_tables_it_can_be_asked(database: TemporaryDatabase) -> None:
    """A host without tables would have no rates."""
    await add(database, Run(id=1))
    with heard_events() as heard:
        manager = PipelineManager(database.session_factory, [RunPipeline()])
        async with manager, Observer(manager) as observer:
            await heard.wait_for(events.ItemApplied)
            await observer.beat()
            assert observer.statistics()["RunPipeline"].counters["applied"] == 1
            assert len(observer.samples("RunPipeline")) >= 1
            assert [one.pipeline for one in observer.health()] == ["RunPipeline"]
            assert observer.skew_s is None


async def test_pipelines_are_registered_late_and_managers_are_several(
    database: TemporaryDatabase,
) -> None:
    """Of a host that is put together as it starts, a part would not be seen."""
    await make_tables(database)
    one, other = manager_of(database), manager_of(database)
    async with one, other, at_rest(one, other, tables=InsightTables(TABLES.replicas, None)) as it:
        await it.beat()
        assert await replicas(database) == []
        one.register(RunPipeline())
        other.register(VolumePipeline())
        await it.beat()
        [row] = await replicas(database)
    assert set(row.report["pipelines"]) == {"RunPipeline", "VolumePipeline"}


async def test_a_replica_has_one_observer(database: TemporaryDatabase) -> None:
    """Two would write one row, and each delete it from under the other."""
    manager = manager_of(database, RunPipeline())
    async with Observer(manager):
        with pytest.raises(PipelineError, match="give it all managers"):
            async with Observer(manager):
                pass
    async with Observer(manager):
        pass


@pytest.mark.parametrize("wrong", [(), (7,), ([],)])
def test_what_is_no_manager_is_refused(wrong: Any) -> None:
    """The mistake would show in a task, later."""
    with pytest.raises(ConfigurationError, match="takes the managers of the process"):
        Observer(*wrong)


async def test_the_clock_of_the_process_is_compared(database_with_clock: TemporaryDatabase) -> None:
    """A host whose clock is an hour off would not hear of it."""
    database = database_with_clock
    assert database.clock is not None
    await make_tables(database)
    async with at_rest(manager_of(database, RunPipeline())) as observer:
        await observer.beat()
        before = observer.skew_s
        database.clock.advance(3600)
        await observer.beat()
    assert before is not None
    assert observer.skew_s is not None
    assert 3500 < before - observer.skew_s < 3700


async def test_a_report_is_bounded(database: TemporaryDatabase) -> None:
    """A replica with a thousand pipelines or long keys would write megabytes."""
    await make_tables(database)

    def named(number: int) -> Any:
        return type(f"Pipeline{number:03}{'x' * 150}", (RunPipeline,), {})()

    manager = manager_of(database, *(named(number) for number in range(120)))
    async with at_rest(manager) as observer:
        await observer.beat()
        [row] = await replicas(database)
    assert len(json.dumps(row.report).encode()) <= REPORT_BYTES_MAX
    assert row.report["left_out"] > 0
    assert row.report["pipelines"]
    assert row.report["pipelines_left_out"] == 120 - len(row.report["pipelines"])


async def test_each_of_many_pipelines_is_said_to_run(database: TemporaryDatabase) -> None:
    """Rows of the last of many pipelines would seem to be nobody's."""
    await make_tables(database)
    pipelines = [type(f"Pipeline{number}", (RunPipeline,), {})() for number in range(40)]
    manager = manager_of(database, *pipelines)
    async with manager, at_rest(manager) as observer:
        await observer.beat()
        [row] = await replicas(database)
        assert (await Insight.of(observer).replicas()).live[0].runs("Pipeline39")
    assert len(row.report["pipelines"]) == 40


async def test_one_of_several_managers_may_stop(database: TemporaryDatabase) -> None:
    """All rows of a process would seem to be nobody's as soon as a part of it is shut down."""
    await make_tables(database)
    one, other = manager_of(database, RunPipeline()), manager_of(database, VolumePipeline())
    async with one, at_rest(one, other) as observer:
        async with other:
            pass
        await observer.beat()
        [live] = (await Insight.of(observer).replicas()).live
    assert (live.runs("RunPipeline"), live.runs("VolumePipeline")) == (True, False)
    assert live.state == "live"


async def test_a_database_that_is_away_harms_nothing(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """After an outage a replica would live and nobody see it, or the log be full of it."""
    caplog.set_level(logging.INFO, "rowlock.insight.observer")
    await make_tables(database)
    await add(database, Run(id=1))
    is_away = True

    def refuse(*_: Any) -> None:
        if is_away:
            raise ConnectionResetError("the database is away")

    engine = database.create_engine()
    event.listen(engine.sync_engine, "before_cursor_execute", refuse)
    manager = PipelineManager(async_sessionmaker(engine), [RunPipeline()])
    with heard_events() as heard:
        async with manager, at_rest(manager) as observer:
            for _ in range(3):
                await observer.beat()
            is_away = False
            await heard.wait_for(events.ItemApplied)
            await observer.beat()
            assert [row.mark for row in await replicas(database)] == [replica_mark()]
    told = [one.levelno for one in caplog.records if "its part" in one.getMessage()]
    assert told == [logging.WARNING, logging.INFO]


async def test_insight_of_an_observer_asks_all_its_managers(database: TemporaryDatabase) -> None:
    """A host with two managers could ask about one of them; or not pause the other."""
    await make_tables(database)
    await add(database, Run(id=1))
    one, other = manager_of(database, RunPipeline()), manager_of(database, VolumePipeline())
    insight = Insight.of(Observer(one, other))
    assert set(insight.pipelines) == {"RunPipeline", "VolumePipeline"}
    done = await insight.pause("VolumePipeline", by="alice", reason="provider down")
    assert done.outcome == "paused"
