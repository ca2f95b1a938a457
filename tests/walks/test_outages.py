"""The database goes away and comes back; the host is not restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from rowlock import PipelineManager, events, pipeline_hinter
from rowlock.testing import PostgresqlServer, TemporaryDatabase

from ..host import Base, Volume, VolumePipeline, heard_events

QUICK = {
    "workers_num": 4,
    "lock_timeout": 2,
    "heartbeat_trigger": 1,
    "heartbeat_interval": 0.1,
    "renew_timeout": 0.3,
    "database_timeout": 1,
    "fetch_delays": (0.05, 0.1),
}


async def test_a_server_that_restarts_is_survived(
    postgresql_server: Callable[[], PostgresqlServer],
) -> None:
    """A restart of the database would end a loop for good, and rows would wait for a restart of
    the host.
    """
    server = postgresql_server()
    engine = create_async_engine(await asyncio.to_thread(server.start))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    with heard_events() as heard:
        async with PipelineManager(
            async_sessionmaker(engine), [VolumePipeline(**QUICK)]
        ) as manager:
            await _add_volume(engine)
            await heard.wait_for(events.ItemApplied)
            await asyncio.to_thread(server.stop)
            await heard.wait_for(events.FetchFailed, count=3)
            assert not manager.health().healthy
            assert manager.health().pipelines[0].last_error is not None
            await asyncio.to_thread(server.start)
            await _add_volume(engine)
            await heard.wait_for(events.ItemApplied, count=2)
            await heard.wait_for(events.RowsClaimed, count=2)
            assert manager.health().healthy
            assert heard.of(events.LoopReplaced) == []
    await engine.dispose()


async def test_work_in_hand_is_cancelled_when_the_server_stays_away(
    postgresql_server: Callable[[], PostgresqlServer],
) -> None:
    """A holder that cannot renew would go on working while another replica takes its row."""
    server = postgresql_server()
    engine = create_async_engine(await asyncio.to_thread(server.start))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    pipeline = VolumePipeline(answer=lambda item: asyncio.Event().wait(), **QUICK)
    with heard_events() as heard:
        manager = PipelineManager(async_sessionmaker(engine), [pipeline])
        manager.start()
        await _add_volume(engine)
        await heard.wait_for(events.ItemStarted)
        await asyncio.to_thread(server.stop)
        await heard.wait_for(events.LeaseExpired)
        assert pipeline.items[0].remaining.total_seconds() == 0
        await heard.wait_for(events.ItemStale)
        assert pipeline.running == 0
        await manager.drain(1)
    await engine.dispose()


async def test_killed_connections_are_survived(postgresql_database: TemporaryDatabase) -> None:
    """Connections that an administrator or a proxy cuts would take items or loops with them."""
    database = postgresql_database
    await database.create_tables(Base.metadata)
    killer = database.create_engine()
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [VolumePipeline(**QUICK)]) as manager:
            for _ in range(5):
                async with async_sessionmaker(killer).begin() as session:
                    session.add_all([Volume() for _ in range(40)])
                pipeline_hinter.hint_fetch(Volume)
                await heard.wait_for(events.RowsClaimed)
                await _kill_other_connections(killer)
            await heard.wait_for(events.ItemApplied, count=200)
            assert len(heard.of(events.ItemApplied)) == 200
            counters = manager.statistics()["VolumePipeline"].counters
            assert counters["applied"] == 200
    async with killer.connect() as connection:
        found = await connection.execute(
            text("SELECT status, count(*) FROM volumes GROUP BY status")
        )
        assert [tuple(row) for row in found] == [("active", 200)]


async def test_an_exhausted_pool_is_survived(database: TemporaryDatabase) -> None:
    """A host that holds every connection for a while would end a loop, or lose what is in hand."""
    await database.create_tables(Base.metadata)
    engine = database.create_engine(pool_size=2, max_overflow=0, pool_timeout=0.2)
    with heard_events() as heard:
        async with PipelineManager(async_sessionmaker(engine), [VolumePipeline(**QUICK)]):
            held = [await engine.connect(), await engine.connect()]
            await heard.wait_for(events.FetchFailed, count=2)
            for connection in held:
                await connection.close()
            await _add_volume(engine)
            await heard.wait_for(events.ItemApplied)
            assert heard.of(events.LoopReplaced) == []


async def _add_volume(engine: AsyncEngine) -> None:
    # The first connection out of the pool may still be a dead one.
    for _ in range(20):
        try:
            async with async_sessionmaker(engine).begin() as session:
                session.add(Volume())
            return
        except Exception:  # noqa: BLE001 - any error of a dead connection
            continue


async def _kill_other_connections(killer: AsyncEngine) -> None:
    async with killer.connect() as connection:
        await connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
