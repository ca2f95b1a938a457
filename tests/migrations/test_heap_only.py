"""Heartbeats are heap-only on PostgreSQL: with the tree as it stands they write the row and no
index. Counts, not times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from hosting.tables import Volume
from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import Apply, Pipeline, PipelineItem
from rowlock.leases.renew import renew
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import PostgresqlServer, TemporaryDatabase, stepping

from ..databases import postgresql_database
from .conftest import Tree

ROWS, LEASED, BEATS = 2000, 200, 20


class VolumePipeline(Pipeline[Volume]):
    model = Volume
    workers_num = LEASED

    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Volume]) -> Apply:
        return Apply()


async def heap_only_share(database: TemporaryDatabase) -> float:
    """Lease rows, renew them again and again, and return how many of the updates were heap-only."""
    await run(
        database,
        "INSERT INTO volumes (id, status, size_gb, disk_id) SELECT gen_random_uuid(), 'submitted',"
        f" 1, repeat('x', 50) FROM generate_series(1, {ROWS})",
    )
    # One connection, so that what it did is counted when it says so.
    engine = database.create_engine(pool_size=1, max_overflow=0)
    factory: async_sessionmaker[AsyncSession] = async_sessionmaker(engine)
    leased = LeasedTable.of(Volume)
    async with stepping(factory, VolumePipeline()) as steps:
        items = await steps.fetch_once(LEASED)
        assert len(items) == LEASED
        before = await counted(factory)
        for _ in range(BEATS):
            async with engine.begin() as connection:
                assert (
                    len(await renew(connection, leased, items, lock_timeout=timedelta(seconds=30)))
                    == LEASED
                )
        updates, heap_only = [
            now - then for now, then in zip(await counted(factory), before, strict=True)
        ]
    assert updates == LEASED * BEATS
    return heap_only / updates


async def counted(factory: async_sessionmaker[AsyncSession]) -> tuple[int, int]:
    """Return how many updates of volumes the server has counted, and how many of them were
    heap-only.
    """
    async with factory.begin() as session:
        connection = await session.connection()
        await connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    async with factory() as session:
        connection = await session.connection()
        sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'volumes'"
        updates, heap_only = (await connection.exec_driver_sql(sql)).one()
        return updates, heap_only


async def test_heartbeats_write_no_index(postgresql_server: Callable[[], PostgresqlServer]) -> None:
    """A busy replica's heartbeats would bloat every index of the host's table, and multiply the
    write-ahead log.
    """
    # A server of its own: old row versions stay while a transaction runs anywhere on the server,
    # and so do the pages they fill.
    url = await asyncio.to_thread(postgresql_server().start)
    async with postgresql_database(url) as database:
        await Tree(database).upgrade()
        await run(database, "ALTER TABLE volumes SET (autovacuum_enabled = off)")
        assert await heap_only_share(database) >= 0.95
        # The measure would have noticed.
        await run(database, "CREATE INDEX spoilt ON volumes (id) WHERE lock_expires_at IS NULL")
        assert await heap_only_share(database) == 0


async def run(database: TemporaryDatabase, statement: str) -> None:
    """Run one statement in a transaction of its own."""
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql(statement)
