"""PostgreSQL that refuses for a while: nothing in hand is lost, everything goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from rowlock import Apply, PipelineManager, events
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX, Run, RunPipeline, Volume, VolumePipeline, heard_events
from ..pipelines.scenes import add, is_free, read, read_all
from .patience import QUICK
from .trouble import begin_trouble, end_trouble


def engine_with(
    database: TemporaryDatabase, *, isolation_level: str | None = None, **settings: str
) -> AsyncEngine:
    options = {} if isolation_level is None else {"isolation_level": isolation_level}
    return database.create_engine(connect_args=database.connect_args(**settings), **options)


@asynccontextmanager
async def locked(database: TemporaryDatabase, key: Any, model: Any = Volume) -> AsyncIterator[None]:
    async with database.session_factory.begin() as session:
        await session.execute(select(model).where(model.id == key).with_for_update())
        yield


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
async def test_statements_that_are_cut_short_are_tried_again(
    postgresql_database: TemporaryDatabase, setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An outcome that waited for a locked row past the server's limit would be lost, or counted
    as a failure.
    """
    database = postgresql_database
    busy, *others = await add(database, *(Volume() for _ in range(4)))
    started, go_on = asyncio.Event(), asyncio.Event()

    async def process(item: Any) -> Apply:
        if item.id == busy.id:
            started.set()
            await go_on.wait()
        return Apply({"status": "active"})

    engine = engine_with(database, **{setting: "100ms"})
    pipeline = VolumePipeline(answer=process, **QUICK)
    with heard_events() as heard:
        async with PipelineManager(async_sessionmaker(engine), [pipeline]) as manager:
            await started.wait()
            async with locked(database, busy.id):
                go_on.set()
                await heard.wait_for(events.ItemApplied, count=len(others))
                async with asyncio.timeout(HANG_S_MAX):
                    while "is tried again" not in caplog.text:  # noqa: ASYNC110
                        await asyncio.sleep(0)
            await heard.wait_for(events.ItemApplied, count=4)
            counters = manager.statistics()[pipeline.name].counters
            assert (counters["applied"], counters["retried"], counters["stale"]) == (4, 0, 0)
    assert len(pipeline.items) == 4
    assert all(
        (row.status, is_free(row)) == ("active", True) for row in await read_all(database, Volume)
    )


PASSING = ("58030", "53400", "XX000", "57P04", "57P05", "25P02", "25P03", "55006", "AB123")


@pytest.mark.parametrize("code", PASSING)
async def test_a_result_outlasts_the_trouble_of_the_server(
    postgresql_database: TemporaryDatabase, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Finished work would be dropped and begun again, for a disk that failed once or a code that
    nobody knows.
    """
    [volume] = await add(postgresql_database, Volume())
    await begin_trouble(postgresql_database, code, table="volumes", status="active")
    pipeline = VolumePipeline(answer=Apply({"status": "active"}), **QUICK)
    with heard_events() as heard:
        async with PipelineManager(postgresql_database.session_factory, [pipeline]) as manager:
            async with asyncio.timeout(HANG_S_MAX):
                while "is tried again" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await end_trouble(postgresql_database)
            await heard.wait_for(events.ItemApplied)
            counters = manager.statistics()[pipeline.name].counters
            assert (counters["applied"], counters["retried"], counters["stale"]) == (1, 0, 0)
    assert len(pipeline.items) == 1
    row = await read(postgresql_database, volume)
    assert (row.status, is_free(row)) == ("active", True)


@pytest.mark.parametrize("code", ["XX001", "57P01"])
async def test_the_trouble_of_one_row_keeps_no_other_from_being_written(
    postgresql_database: TemporaryDatabase, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A host's trigger with a code of its own, or a damaged page, would hold up the results of
    all other rows.
    """
    rows = await add(postgresql_database, *(Volume(size_gb=number) for number in range(5)))
    await begin_trouble(postgresql_database, code, table="volumes", status="refused")
    together = asyncio.Barrier(len(rows))
    # Not the first to be written, which would go by itself.
    refused = sorted(row.id for row in rows)[2]

    async def process(item: Any) -> Apply:
        await together.wait()
        return Apply({"status": "refused" if item.id == refused else "active"})

    pipeline = VolumePipeline(answer=process, workers_num=len(rows), **QUICK)
    with heard_events() as heard:
        async with PipelineManager(postgresql_database.session_factory, [pipeline]):
            await heard.wait_for(events.ItemApplied, count=4)
            await end_trouble(postgresql_database)
            await heard.wait_for(events.ItemApplied, count=5)
    assert {
        row.id for row in await read_all(postgresql_database, Volume) if row.status == "refused"
    } == {refused}
    assert len(pipeline.items) == 5
    again = "%(pipeline)s: writing the outcome of row %(row_id)s is tried again"
    tried = {vars(record)["rowlock_row_id"] for record in caplog.records if record.msg == again}
    assert tried <= {refused} or code != "XX001", "the other code speaks of the server"


async def test_the_victim_of_a_deadlock_is_written_again(
    postgresql_database: TemporaryDatabase,
) -> None:
    """An outcome that PostgreSQL chose to end would be lost, or what `also` wrote be there
    twice.
    """
    await add(postgresql_database, Run(id=1), Run(id=2, status="other"))
    engine = engine_with(postgresql_database, deadlock_timeout="20ms")
    patient = engine_with(postgresql_database, deadlock_timeout="60s")
    waits, tries = asyncio.Event(), []

    async def also(session: Any, now: Any) -> None:
        tries.append(now)
        waits.set()
        await session.execute(update(Run).where(Run.id == 2).values(result=[len(tries)]))

    async def service() -> None:
        async with async_sessionmaker(patient).begin() as session:
            await session.execute(update(Run).where(Run.id == 2).values(status="held"))
            held.set()
            await waits.wait()
            await session.execute(update(Run).where(Run.id == 1).values(updated_at=text("now()")))

    held = asyncio.Event()
    serving = asyncio.create_task(service())
    await held.wait()
    with heard_events() as heard:
        pipeline = RunPipeline(answer=Apply({"status": "done"}, also=also), **QUICK)
        async with PipelineManager(async_sessionmaker(engine), [pipeline]) as manager:
            await heard.wait_for(events.ItemApplied)
            assert manager.statistics()[pipeline.name].counters["retried"] == 0
    await serving
    rows = {row.id: row for row in await read_all(postgresql_database, Run)}
    # More than twice on a machine that is so busy that a try runs out of time.
    assert len(tries) >= 2
    assert (rows[1].status, rows[2].status, rows[2].result) == ("done", "held", [len(tries)])


def twice(item: Any) -> Apply:
    return Apply({"result": [1]} if item.row.result is None else {"status": "done"})


async def test_an_old_snapshot_holds_up_nothing(postgresql_database: TemporaryDatabase) -> None:
    """A report that runs for hours keeps dead row versions; rows would not be found or not be
    freed because of it.
    """
    database, count = postgresql_database, 100
    await add(database, *(Run(id=number) for number in range(count)))
    old = engine_with(database, isolation_level="REPEATABLE READ")
    async with old.connect() as report:
        assert (
            await report.scalar(text("SELECT count(*) FROM runs WHERE status = 'queued'")) == count
        )
        with heard_events() as heard:
            pipeline = RunPipeline(answer=twice, **QUICK)
            async with PipelineManager(database.session_factory, [pipeline]):
                await heard.wait_for(events.ItemApplied, count=2 * count)
        assert (
            await report.scalar(text("SELECT count(*) FROM runs WHERE status = 'queued'")) == count
        )
    assert all(
        (row.status, is_free(row)) == ("done", True) for row in await read_all(database, Run)
    )


async def test_also_that_waits_for_a_locked_row_is_tried_again(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A statement of `also` that runs out of our time would be told as the host's own
    cancellation, and the work be done again.
    """
    database, tries = postgresql_database, []
    _, other = await add(database, Run(id=1), Run(id=2, status="other"))

    async def also(session: Any, now: Any) -> None:
        tries.append(now)
        if len(tries) == 2:
            released.set()
        await session.execute(update(Run).where(Run.id == 2).values(result=[len(tries)]))

    released = asyncio.Event()
    with heard_events() as heard:
        pipeline = RunPipeline(
            answer=Apply({"status": "done"}, also=also), **(QUICK | {"database_timeout": 0.5})
        )
        async with PipelineManager(database.session_factory, [pipeline]) as manager:
            async with locked(database, other.id, Run):
                await released.wait()
            await heard.wait_for(events.ItemApplied)
            counters = manager.statistics()[pipeline.name].counters
    assert (counters["retried"], len(pipeline.items)) == (0, 1)
