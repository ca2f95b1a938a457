"""An SQLite file that is full, locked by another process, gone or replaced."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import NullPool, event, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from rowlock import Apply, PipelineManager, events
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX, Base, Run, RunPipeline, Volume, VolumePipeline, heard_events
from ..pipelines.scenes import add, is_free, read_all
from .patience import QUICK, HeldWork, until_healthy

PROMPT = {**QUICK, "database_timeout": 2}

LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("free", flush=True)
"""


@contextmanager
def locked_by_another_process(file: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        try:
            yield process
        finally:
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "free\n"


async def test_a_file_that_another_process_has_locked_is_waited_for(
    sqlite_database: TemporaryDatabase,
) -> None:
    """Somebody who writes for longer than the busy timeout would cost results, or a loop."""
    database = sqlite_database
    await add(database, *(Volume() for _ in range(3)))
    engine = database.create_engine(connect_args={"timeout": 0.05})
    work = HeldWork(Apply({"status": "active"}))
    pipeline = VolumePipeline(answer=work, workers_num=4, **PROMPT)
    with heard_events() as heard:
        async with PipelineManager(async_sessionmaker(engine), [pipeline]) as manager:
            await work.started.wait()
            with locked_by_another_process(str(database.url.database)):
                work.go_on.set()
                await heard.wait_for(events.FetchFailed, count=3)
                assert not manager.health().healthy
                assert "database is locked" in (manager.health().pipelines[0].last_error or "")
                assert heard.of(events.ItemApplied) == []
            await heard.wait_for(events.ItemApplied, count=3)
            await until_healthy(manager)
            counters = manager.statistics()[pipeline.name].counters
            assert (counters["retried"], counters["stale"], counters["loops_replaced"]) == (0, 0, 0)
    assert len(pipeline.items) == 3
    assert all(
        (row.status, is_free(row)) == ("active", True) for row in await read_all(database, Volume)
    )


class FullDisk:
    """Lets the connections of an engine grow the file by nothing more, until there is `room`
    again.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.pages = 2**30
        event.listen(engine.sync_engine, "begin", self._limit)

    def _limit(self, connection: Any) -> None:
        driver: DBAPIConnection = connection.connection.dbapi_connection
        cursor = driver.cursor()
        cursor.execute(f"PRAGMA max_page_count = {self.pages}")
        cursor.close()


async def test_a_full_disk_is_waited_for(sqlite_database: TemporaryDatabase) -> None:
    """Results in hand would be lost or counted as failures while an administrator makes room."""
    database = sqlite_database
    await add(database, *(Run(id=number) for number in range(3)))
    engine = database.create_engine()
    disk = FullDisk(engine)
    large = "x" * 100_000
    pipeline = RunPipeline(answer=Apply({"status": "done", "result": large}), **PROMPT)
    async with database.engine.connect() as connection:
        disk.pages = int(await connection.scalar(text("PRAGMA page_count")) or 0)
    with heard_events() as heard:
        async with PipelineManager(async_sessionmaker(engine), [pipeline]) as manager:
            await heard.wait_for(events.ItemStarted, count=3)
            counters = manager.statistics()[pipeline.name].counters
            await _until_refused(heard)
            assert (counters["applied"], counters["retried"]) == (0, 0)
            disk.pages = 2**30
            await heard.wait_for(events.ItemApplied, count=3)
            counters = manager.statistics()[pipeline.name].counters
            assert (counters["retried"], counters["stale"], counters["loops_replaced"]) == (0, 0, 0)
    assert all((row.status, row.result) == ("done", large) for row in await read_all(database, Run))


async def _until_refused(heard: Any) -> None:
    # Three attempts are in hand; whatever the library tries now is refused for want of room.
    for _ in range(50):
        await asyncio.sleep(0.01)
    assert heard.of(events.ItemApplied) == []


async def take_in_the_log(file: Path) -> None:
    """Write what was committed into the file itself: whoever moves only the file leaves its
    write-ahead log behind.
    """
    with closing(sqlite3.connect(file)) as connection:
        async with asyncio.timeout(HANG_S_MAX):
            # Somebody may just be writing it there.
            while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_file_that_is_gone_is_told_and_waited_for(
    sqlite_database: TemporaryDatabase, tmp_path: Path
) -> None:
    """A file that somebody moved away would end a loop, or be worked on as a ghost after it was
    put back.
    """
    await add(sqlite_database, Volume())
    await sqlite_database.engine.dispose()
    file, away = Path(str(sqlite_database.url.database)), tmp_path / "away.db"
    # No pool: each transaction opens the file that has the name now.
    engine = sqlite_database.create_engine(poolclass=NullPool)
    with heard_events() as heard:
        async with PipelineManager(
            async_sessionmaker(engine), [VolumePipeline(**PROMPT)]
        ) as manager:
            await heard.wait_for(events.ItemApplied)
            await take_in_the_log(file)
            file.rename(away)  # noqa: ASYNC240
            await heard.wait_for(events.FetchFailed, count=2)
            assert not manager.health().healthy
            assert "no such table" in (manager.health().pipelines[0].last_error or "")
            away.rename(file)
            async with sqlite_database.session_factory.begin() as session:
                session.add(Volume())
            await heard.wait_for(events.ItemApplied, count=2)
            await until_healthy(manager)
            assert heard.of(events.LoopReplaced) == []
    assert [row.status for row in await read_all(sqlite_database, Volume)] == ["active", "active"]


async def test_a_file_that_was_replaced_is_worked_on(
    sqlite_database: TemporaryDatabase, tmp_path: Path
) -> None:
    """What was claimed in the old file would be written into the new one, where the same row may
    be somebody else's.
    """
    await add(sqlite_database, Run(id=1))
    await sqlite_database.engine.dispose()
    file = Path(str(sqlite_database.url.database))
    engine = sqlite_database.create_engine(poolclass=NullPool)
    work = HeldWork(Apply({"status": "done", "result": "of the old file"}))
    with heard_events() as heard:
        async with PipelineManager(
            async_sessionmaker(engine), [RunPipeline(answer=work, **PROMPT)]
        ):
            await work.started.wait()
            for path in file.parent.glob(f"{file.name}*"):
                path.unlink()
            other = TemporaryDatabase(sqlite_database.url)
            await other.create_tables(Base.metadata)
            async with other.session_factory.begin() as session:
                session.add(Run(id=1, due_at=datetime(9000, 1, 1, tzinfo=UTC)))
            await other.aclose()
            work.go_on.set()
            await heard.wait_for(events.ItemStale)
    [row] = await read_all(sqlite_database, Run)
    assert (row.status, row.result, is_free(row)) == ("queued", None, True)
