"""Connections that outlast a failover: alive, and of no use for writing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from rowlock import Apply, PipelineManager, events, make_due, pipeline_hinter
from rowlock.database.pools import SeparatePool
from rowlock.database.transaction import bind_of
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from ..pipelines.scenes import add, read, read_all
from .patience import QUICK, HeldWork, until_healthy

POOL = 5
PREPARED_AFTER = 8
"""Executions after which each driver has prepared what a claim needs."""


class Failover:
    """A database whose new connections only read while it `is_read_only`, and go on to do so
    afterwards.
    """

    def __init__(self, database: TemporaryDatabase) -> None:
        self._database = database
        self.engine = database.create_engine(pool_size=POOL, max_overflow=0)
        self.sessions = async_sessionmaker(self.engine, expire_on_commit=False)
        self._is_read_only = False
        if database.dialect_name == "sqlite":
            event.listen(self.engine.sync_engine, "connect", self._limit)

    async def set_read_only(self, is_read_only: bool) -> None:
        """Let new connections only read, or write again; leaves the open ones as they are."""
        self._is_read_only = is_read_only
        if self._database.dialect_name == "postgresql":
            name, state = self._database.url.database, "on" if is_read_only else "off"
            async with self._database.engine.begin() as connection:
                await connection.execute(
                    text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {state}')
                )

    async def fill_the_pool(self) -> None:
        async with asyncio.TaskGroup() as opening:
            together = asyncio.Barrier(POOL)
            for _ in range(POOL):
                opening.create_task(self._open(together))

    async def _open(self, together: asyncio.Barrier) -> None:
        async with self.engine.connect():
            await together.wait()

    def _limit(self, connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA query_only = {self._is_read_only}")
        cursor.close()


@pytest.fixture
async def failover(database: TemporaryDatabase) -> Failover:
    return Failover(database)


async def test_writing_resumes_over_a_pool_of_read_only_connections(
    database: TemporaryDatabase, failover: Failover
) -> None:
    """A connection that answered with 25006 (or any SQLSTATE that speaks of the connection's
    server, not of the statement) is invalidated; writing resumes within one backoff.
    """
    [volume] = await add(database, Volume())
    work = HeldWork(Apply({"status": "active"}))
    pipeline = VolumePipeline(answer=work, workers_num=2, **QUICK)
    with heard_events() as heard:
        async with PipelineManager(failover.sessions, [pipeline]) as manager:
            await work.started.wait()
            await failover.set_read_only(True)
            await failover.engine.dispose()
            await failover.fill_the_pool()
            work.go_on.set()
            await heard.wait_for(events.FetchFailed, count=3)
            assert not manager.health().healthy
            assert "read" in (manager.health().pipelines[0].last_error or "")
            await failover.fill_the_pool()
            await failover.set_read_only(False)
            await heard.wait_for(events.ItemApplied)
            pipeline_hinter.hint_fetch(Volume)
            await until_healthy(manager)
            assert heard.of(events.LoopReplaced) == []
            assert manager.statistics()[pipeline.name].counters["retried"] == 0
    assert ((await read(database, volume)).status, len(pipeline.items)) == ("active", 1)


async def test_a_service_heals_the_pool_that_it_uses(
    database: TemporaryDatabase, failover: Failover
) -> None:
    """A process without a pipeline would fail requests until it is restarted."""
    [run] = await add(database, Run())
    await failover.set_read_only(True)
    await failover.fill_the_pool()
    await failover.set_read_only(False)

    async def serve() -> None:
        async with failover.sessions.begin() as session:
            await make_due(session, await session.get_one(Run, run.id))

    with pytest.raises(DBAPIError, match=r"read-?only"):
        await serve()
    for _ in range(POOL):
        await serve()


async def test_an_engine_that_is_made_anew_for_each_session_is_listened_to_once(
    failover: Failover,
) -> None:
    """Each renewal over an engine with options of its own would add a listener for good."""
    engine = failover.engine.execution_options(rowlock_test=True)
    renewing = SeparatePool(async_sessionmaker(engine), file_wait=timedelta(seconds=1))
    for _ in range(3):
        bind_of(renewing(), LeasedTable.of(Run))
    listeners: Any = engine.dialect.dispatch
    assert len(list(listeners.handle_error)) == 1


@pytest.fixture(params=["asyncpg", "psycopg"])
async def one_connection(
    request: pytest.FixtureRequest, postgresql_database: TemporaryDatabase
) -> AsyncIterator[AsyncEngine]:
    pytest.importorskip(request.param)
    url = postgresql_database.url.set(drivername=f"postgresql+{request.param}")
    engine = create_async_engine(url, pool_size=1, max_overflow=0)
    yield engine
    await engine.dispose()


MEANWHILE = {
    "a migration": "ALTER TABLE runs ALTER COLUMN id TYPE BIGINT",
    "a reset": "DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$",
}


@pytest.mark.parametrize("reads", ["with the claim", "later"])
@pytest.mark.parametrize("kind", MEANWHILE)
async def test_a_connection_whose_prepared_statements_are_of_no_use_is_replaced(
    postgresql_database: TemporaryDatabase, one_connection: AsyncEngine, kind: str, reads: str
) -> None:
    """After a migration, or ``DISCARD ALL`` of a pooler, the server refuses what the driver has
    prepared: each claim over that connection would fail for ever, or rows lose attempts.
    """
    database, pipeline = postgresql_database, RunPipeline(max_attempts=1)
    sessions = async_sessionmaker(one_connection, expire_on_commit=False)
    alone = one_connection.execution_options(isolation_level="AUTOCOMMIT")
    async with stepping(sessions, pipeline) as steps:
        steps.run.context.claims_rows = reads == "with the claim"
        for number in range(PREPARED_AFTER):
            await add(database, Run(id=number))
            assert len(await steps.fetch_once()) == 1
            await steps.work_all()
        await add(database, Run(id=PREPARED_AFTER))
        # So that the driver does not know: psycopg forgets all at an ALTER and at a rollback.
        async with (alone if kind == "a reset" else database.engine).connect() as connection:
            await connection.execute(text(MEANWHILE[kind]))
            await connection.commit()
        claimed = 0
        for _ in range(2):
            with suppress(DBAPIError):
                claimed += len(await steps.fetch_once())
        assert claimed == 1
        await steps.work_all()
    rows = await read_all(database, Run)
    assert {(row.status, row.attempts) for row in rows} == {("done", 0)}


async def test_a_row_that_is_read_by_a_statement_of_before_a_migration_keeps_its_attempts(
    postgresql_database: TemporaryDatabase, one_connection: AsyncEngine
) -> None:
    """A migration between the claim and the reading would cost the row an attempt, or park it."""
    database, pipeline = postgresql_database, RunPipeline(max_attempts=1)
    sessions = async_sessionmaker(one_connection, expire_on_commit=False)
    async with stepping(sessions, pipeline) as steps:
        steps.run.context.claims_rows = False
        for number in range(PREPARED_AFTER):
            await add(database, Run(id=number))
            assert len(await steps.fetch_once()) == 1
            async with database.engine.begin() as connection:
                if number == PREPARED_AFTER - 1:
                    await connection.execute(text(MEANWHILE["a migration"]))
            await steps.work_all()
    rows = await read_all(database, Run)
    assert {(row.status, row.attempts) for row in rows} == {("done", 0)}
