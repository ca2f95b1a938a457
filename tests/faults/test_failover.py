"""Connections that outlast a failover: alive, and of no use for writing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock import Apply, PipelineManager, events, make_due, pipeline_hinter
from rowlock.testing import TemporaryDatabase

from ..host import Run, Volume, VolumePipeline, heard_events
from ..pipelines.scenes import add, read
from .patience import QUICK, HeldWork, until_healthy

POOL = 5


class Failover:
    """A database whose new connections only read while it `is_read_only`, and go on to do so
    afterwards.
    """

    def __init__(self, database: TemporaryDatabase) -> None:
        """Open an engine, whose pool keeps all of its connections."""
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
        """Open all of its connections."""
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
    """A failover, over a database of the test's own."""
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
