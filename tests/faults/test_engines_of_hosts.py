"""Engines as hosts set them up: without a pool, with a small one, with schemas of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_scoped_session, async_sessionmaker
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateSchema

from rowlock import Apply, ConfigurationError, PipelineManager, events, hold_rows
from rowlock.testing import TemporaryDatabase

from ..host import Attachment, Base, Run, RunPipeline, Volume, VolumePipeline, heard_events
from ..pipelines.related_scenes import GatheringPipeline, add_volume, write_all
from ..pipelines.scenes import add
from .patience import QUICK, RENEWED_SOON

ELSEWHERE = "elsewhere"
COUNT = 6


def _works_elsewhere(engine: AsyncEngine) -> AsyncEngine:
    @event.listens_for(engine.sync_engine, "connect")
    def choose(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET search_path TO {ELSEWHERE}")
        cursor.close()
        connection.commit()

    return engine


POOLS: dict[str, Callable[[TemporaryDatabase], AsyncEngine]] = {
    "no pool": lambda database: database.create_engine(poolclass=NullPool),
    "pings": lambda database: database.create_engine(pool_pre_ping=True, pool_recycle=1),
    "one connection at a time": lambda database: database.create_engine(
        pool_size=1, max_overflow=0
    ),
}
SCHEMAS: dict[str, Callable[[TemporaryDatabase], AsyncEngine]] = {
    "search_path": lambda database: _works_elsewhere(database.create_engine()),
    "schema_translate_map": (
        lambda database: database.create_engine().execution_options(
            schema_translate_map={None: ELSEWHERE}
        )
    ),
}


async def works(sessions: async_sessionmaker[Any]) -> None:
    """Renew, lock related rows, write and hold on that engine, its heartbeats in their thread."""

    async def until_renewed(item: Any, rows: list[Any]) -> Apply:
        await heard.wait_for(events.LeasesRenewed, count=2)
        return write_all(item, rows)

    gathering = GatheringPipeline(then=until_renewed, **RENEWED_SOON, **QUICK)
    runs = RunPipeline(**QUICK)
    with heard_events() as heard:
        async with PipelineManager(sessions, [gathering, runs]) as manager:
            await heard.wait_for(events.ItemApplied, count=COUNT + 1)
            statistics = manager.statistics()
    for name, counters in ((name, one.counters) for name, one in statistics.items()):
        lost = [counters[kind] for kind in ("leases_lost", "renewals_failed", "stale", "retried")]
        assert lost == [0, 0, 0, 0], name
    async with hold_rows(sessions, Run, range(COUNT)) as held:
        assert [row.status for row in held.rows] == ["done"] * COUNT
    async with sessions() as session:
        assert (await session.scalars(select(Volume.status))).all() == ["active"]
        assert set((await session.scalars(select(Attachment.status))).all()) == {"gathered"}
        assert set((await session.scalars(select(Attachment.lock_token))).all()) == {None}


@pytest.mark.parametrize("kind", POOLS)
async def test_engines_with_pools_of_all_kinds(database: TemporaryDatabase, kind: str) -> None:
    """A host with little to spare, or a pooler in front of its server, could not use us."""
    await add_volume(database)
    await add(database, *(Run(id=number) for number in range(COUNT)))
    await works(async_sessionmaker(POOLS[kind](database), expire_on_commit=False))


@pytest.mark.parametrize("kind", SCHEMAS)
async def test_engines_that_work_in_a_schema(
    postgresql_database: TemporaryDatabase, kind: str
) -> None:
    """Heartbeats and claims would go to the tables of another tenant, or find none."""
    await postgresql_database.create_tables(Base.metadata)
    engine = SCHEMAS[kind](postgresql_database)
    async with postgresql_database.engine.begin() as connection:
        await connection.execute(CreateSchema(ELSEWHERE))
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all, checkfirst=False)
    async with sessions.begin() as session:
        session.add(volume := Volume())
        await session.flush()
        session.add_all(Attachment(volume_id=volume.id, name=str(number)) for number in range(3))
        session.add_all(Run(id=number) for number in range(COUNT))
    await works(sessions)
    async with postgresql_database.engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM public.runs")) == 0


async def test_a_database_for_each_model(
    sqlite_database: TemporaryDatabase, postgresql_database: TemporaryDatabase
) -> None:
    """Rows would be looked for where they are not, or be freed in the wrong place."""
    await add_volume(postgresql_database)
    await add(sqlite_database, *(Run(id=number) for number in range(COUNT)))
    routes = {
        Volume: postgresql_database.engine,
        Attachment: postgresql_database.engine,
        Run: sqlite_database.engine,
    }
    await works(async_sessionmaker(binds=routes, expire_on_commit=False))


async def test_a_scoped_session_is_refused(database: TemporaryDatabase) -> None:
    """The transactions of all loops would be one."""
    scoped: Any = async_scoped_session(database.session_factory, scopefunc=lambda: 1)
    with pytest.raises(ConfigurationError, match="a scoped session"):
        PipelineManager(scoped, [VolumePipeline()])
