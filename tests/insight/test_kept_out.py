"""Tables that are locked, missing or not to be read, and rows that open transactions share: told by
name, and nothing fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    async_sessionmaker,
    create_async_engine,
)

from rowlock import PipelineManager
from rowlock.insight import Insight, InsightLimits, Observer, Verdict, insight_tables
from rowlock.testing import TemporaryDatabase

from .shop import Base, FleetPipeline, Scene, Volume, VolumePipeline, at, furnish

TABLES = insight_tables(Base.metadata)


def insight_of(database: TemporaryDatabase) -> Insight:
    """Return the questions to volumes, with the optional tables; no slow machine ends them."""
    limits = InsightLimits(timeout=timedelta(minutes=5))
    return Insight(database.session_factory, [VolumePipeline()], tables=TABLES, limits=limits)


async def pid_of(connection: AsyncConnection) -> int:
    """Return the process of the server that serves a connection."""
    return int(await connection.scalar(text("SELECT pg_backend_pid()")) or 0)


async def waits_to_lock(watch: AsyncConnection, table: str) -> None:
    """Wait until somebody waits for a lock of a table."""
    waiting = text(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = to_regclass(:table)"
    )
    while not await watch.scalar(waiting, {"table": table}):
        await watch.execute(text("SELECT pg_sleep(0.01)"))


@pytest.mark.parametrize("table", ["volumes", "rowlock_controls"])
async def test_who_has_locked_a_table_is_told(
    postgresql_database: TemporaryDatabase, table: str
) -> None:
    """During a migration that hangs a person would read that there is no answer from the database,
    or that `ready` fails.
    """
    await furnish(postgresql_database, Scene({"due_at": at(-3600)}))
    async with postgresql_database.engine.connect() as other, other.begin():
        pid = await pid_of(other)
        await other.execute(text(f"LOCK TABLE {table}"))
        insight = insight_of(postgresql_database)
        answer = await insight.explain(Volume, 17)
        status = await insight.status()
    [one] = answer.pipelines
    assert one.verdict is Verdict.TOUCHED
    assert one.headline.startswith(f"TOUCHED by an open transaction: pid {pid}, idle ")
    assert one.headline.endswith(f", which has locked {table}")
    assert one.do.endswith(f"SELECT pg_terminate_backend({pid})")
    assert {line.answer for line in one.lines if line.name != "replicas"} == {"?"}
    assert answer.is_there
    if table == "volumes":
        assert status.needs_person
        assert f"! VolumePipeline: pid {pid}, idle" in status.text()
    else:
        assert "? pauses: " in status.text()


async def test_who_waits_for_a_table_before_all_others_is_told(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A migration that waits behind a forgotten reader keeps everybody out, and has no lock."""
    await furnish(postgresql_database, Scene({"due_at": at(-3600)}))
    engine = postgresql_database.engine
    async with engine.connect() as reader, engine.connect() as watch, engine.connect() as other:
        await reader.execute(text("SELECT * FROM volumes"))
        pid = await pid_of(other)
        waiting = asyncio.ensure_future(other.execute(text("LOCK TABLE volumes")))
        await waits_to_lock(watch, "volumes")
        [one] = (await insight_of(postgresql_database).explain(Volume, 17)).pipelines
        await reader.rollback()
        await waiting
    assert one.headline.startswith(f"TOUCHED by an open transaction: pid {pid}, active ")
    assert one.headline.endswith(", which waits to lock volumes")


async def test_a_table_of_replicas_that_is_locked_costs_their_names_alone(
    postgresql_database: TemporaryDatabase,
) -> None:
    """An explanation would wait for a table that it can do without."""
    await furnish(postgresql_database, Scene({"status": "active"}))
    async with postgresql_database.engine.connect() as other, other.begin():
        await other.execute(text("LOCK TABLE rowlock_replicas"))
        answer = await insight_of(postgresql_database).explain(Volume, 17)
        replicas = await insight_of(postgresql_database).replicas()
    assert answer.pipelines[0].verdict is Verdict.NOT_READY
    assert replicas.text().startswith("? ")
    assert "lock timeout" in replicas.text()


async def test_a_shared_lock_names_one_of_its_holders(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A row that two transactions share would look as if nothing kept it."""
    await furnish(postgresql_database, Scene({"due_at": at(-3600)}))
    engine = postgresql_database.engine
    async with engine.connect() as one, engine.connect() as two:
        pids = {await pid_of(one), await pid_of(two)}
        for connection in (one, two):
            await connection.execute(text("SELECT * FROM volumes WHERE id = 17 FOR SHARE"))
        explanation = (await insight_of(postgresql_database).explain(Volume, 17)).pipelines[0]
        told = (explanation.headline, *explanation.also)
    assert any(f"pid {pid}, idle" in headline for pid in pids for headline in told)
    again = (await insight_of(postgresql_database).explain(Volume, 17)).pipelines[0]
    assert "TOUCHED" not in str((again.headline, *again.also))


@contextmanager
def as_role(engine: AsyncEngine, role: str) -> Iterator[None]:
    """Have each new connection of an engine be another user's."""

    def become(connection: Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL ROLE {role}")

    event.listen(engine.sync_engine, "begin", become)
    yield
    event.remove(engine.sync_engine, "begin", become)


@pytest.fixture
async def role(postgresql_database: TemporaryDatabase) -> AsyncIterator[str]:
    """A user of the server who may read the volumes and nothing else."""
    name = f"reader_{id(postgresql_database)}"
    async with postgresql_database.engine.begin() as connection:
        await connection.execute(text(f"CREATE ROLE {name}"))
    yield name
    async with postgresql_database.engine.begin() as connection:
        await connection.execute(text(f"DROP OWNED BY {name}"))
        await connection.execute(text(f"DROP ROLE {name}"))


async def test_what_a_user_may_not_see_is_told(
    postgresql_database: TemporaryDatabase, role: str
) -> None:
    """An explanation would fail for want of rights, or say of what it cannot see that it is not
    there.
    """
    await furnish(postgresql_database, Scene({"due_at": at(-3600)}))
    async with postgresql_database.engine.begin() as connection:
        await connection.execute(text(f"GRANT SELECT ON volumes TO {role}"))
    asking = postgresql_database.create_engine()
    insight = Insight(async_sessionmaker(asking), [VolumePipeline()], tables=TABLES)
    async with postgresql_database.engine.connect() as other:
        await other.execute(text("SELECT * FROM volumes WHERE id = 17 FOR UPDATE"))
        with as_role(asking, role):
            without = Insight(async_sessionmaker(asking), [VolumePipeline()])
            [plain] = (await without.explain(Volume, 17)).pipelines
            pid = await pid_of(other)
            [one] = (await insight.explain(Volume, 17)).pipelines
            status = await insight.status()
    assert plain.also == (f"TOUCHED by an open transaction: pid {pid}",)
    assert "? replicas: permission denied for table rowlock_replicas" in status.text()
    assert "? pauses: permission denied for table rowlock_controls" in status.text()
    lines = {line.name: line for line in one.lines}
    assert lines["replicas"].detail == "permission denied for table rowlock_replicas"
    assert lines["ready"].answer == "yes"


@pytest.mark.parametrize("lost", ["rowlock_controls", "rowlock_replicas"])
async def test_a_replica_lives_without_one_of_the_tables(
    database: TemporaryDatabase, lost: str
) -> None:
    """Replicas would look dead, or forget a pause, since the other table was dropped."""
    await furnish(database, Scene({"status": "active"}))
    manager = PipelineManager(
        database.session_factory, [VolumePipeline()], gates=[TABLES.pause_gate]
    )
    insight = insight_of(database)
    observer = Observer(manager, tables=TABLES, name="web-7")
    await insight.pause("VolumePipeline", by="alice", reason="provider down")
    async with database.engine.begin() as connection:
        await connection.execute(text(f"DROP TABLE {lost}"))
    await observer.beat()
    if lost == "rowlock_controls":
        assert [one.name for one in (await insight.replicas()).live] == ["web-7"]
        status = await insight.status()
        assert "? pauses: " in status.text()
        assert "1 replica: web-7" in status.text()
        [one] = (await insight.explain(Volume, 17)).pipelines
        assert "CLAIMS FAIL in the database: " in str(one.also)
    else:
        assert observer.paused == {"VolumePipeline"}
        assert "? replicas: " in (await insight.status()).text()


async def test_each_pipeline_asks_its_own_database(
    sqlite_database: TemporaryDatabase, tmp_path: Path
) -> None:
    """A process with two managers would look for the rows of one in the database of the other, and
    pause nothing.
    """
    await furnish(sqlite_database, Scene({"status": "active"}, fleets=()))
    other = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/other.db")
    async with other.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(text("INSERT INTO fleets (id, status) VALUES (3, 'grown')"))
    managers = [
        PipelineManager(sessions, [pipeline], gates=[TABLES.pause_gate])
        for sessions, pipeline in (
            (sqlite_database.session_factory, VolumePipeline()),
            (async_sessionmaker(other), FleetPipeline()),
        )
    ]
    observer = Observer(*managers, tables=TABLES, name="web-7")
    insight = Insight.of(observer)
    assert [one.verdict for one in (await insight.explain("Fleet", 3)).pipelines] == [
        Verdict.NOT_READY
    ]
    assert (await insight.explain("Volume", 17)).pipelines[0].verdict is Verdict.NOT_READY
    async with managers[0], managers[1]:
        await insight.pause("FleetPipeline", by="alice", reason="provider down")
        await observer.beat()
        assert observer.paused == {"FleetPipeline"}
        status = await insight.status()
        assert "other.db" in status.database
        told = {one.pipeline: (one.state(None), one.runs_on) for one in status.pipelines}
        assert told == {
            "VolumePipeline": ("runs on 1", 1),
            "FleetPipeline": ("paused by alice now: provider down", 1),
        }
        async with other.begin() as connection:
            await connection.run_sync(TABLES.replicas.drop)  # type: ignore[union-attr]
        await observer.beat()
        assert [one.name for one in (await insight.replicas()).live] == ["web-7"]
    await other.dispose()
