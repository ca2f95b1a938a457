"""The end of a process whose database is kept locked by somebody else: it comes within bounds."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import text

from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX, Run, Volume
from .scenes import add

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


WORKS = """
import asyncio, sys
from rowlock import Apply, PipelineManager
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from tests.host import VolumePipeline

async def work(item):
    print("working", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return Apply({"status": "active"})

async def main():
    is_sqlite = sys.argv[1].startswith("sqlite")
    engine = create_async_engine(sys.argv[1], connect_args={"timeout": 3600} if is_sqlite else {})
    pipeline = VolumePipeline(
        answer=work, workers_num=1,
        database_timeout=1, cancel_grace=1, lock_timeout=10, heartbeat_trigger=9,
    )
    manager = PipelineManager(async_sessionmaker(engine), [pipeline])
    manager.start()
    while not pipeline.items or pipeline.running:
        await asyncio.sleep(0.01)
    await manager.drain(2)
    print("drained", flush=True)
    await engine.dispose()

asyncio.run(main())
print("closed", flush=True)
"""

STUCK = """
import asyncio, sys, threading
from datetime import timedelta
from rowlock import TransactionTimeout
from rowlock.database.transaction import in_transaction
from rowlock.rows.leased_table import LeasedTable
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from tests.host import Run

closing = threading.Event()

async def work(session, connection):
    await connection.execute(text("SELECT stand_still()"))

async def main():
    engine = create_async_engine(sys.argv[1])
    @event.listens_for(engine.sync_engine, "connect")
    def stand_still(connection, _):
        connection.create_function("stand_still", 0, closing.wait)

    try:
        timeout = timedelta(seconds=0.3)
        sessions = async_sessionmaker(engine)
        await in_transaction(sessions, LeasedTable.of(Run), work, purpose="stand", timeout=timeout)
    except TransactionTimeout:
        print("out of time", flush=True)
    threading.Timer(1, closing.set).start()

asyncio.run(main())
print("closed", flush=True)
"""


@asynccontextmanager
async def process(
    program: str, database: TemporaryDatabase
) -> AsyncIterator[asyncio.subprocess.Process]:
    url = database.url.render_as_string(hide_password=False)
    pipes = {
        "stdin": asyncio.subprocess.PIPE,
        "stdout": asyncio.subprocess.PIPE,
        "stderr": asyncio.subprocess.DEVNULL,
    }
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, url, cwd=Path(__file__).parents[2], **pipes
    )
    try:
        async with asyncio.timeout(HANG_S_MAX):
            yield running
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


async def test_it_ends_while_the_table_is_locked(database: TemporaryDatabase) -> None:
    """A host would hang in its shutdown, or after it, for as long as somebody else works on the
    database.
    """
    await add(database, Volume())
    locks = (
        "BEGIN IMMEDIATE"
        if database.dialect_name == "sqlite"
        else "LOCK TABLE volumes IN ACCESS EXCLUSIVE MODE"
    )
    async with process(WORKS, database) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert await running.stdout.readline() == b"working\n"
        async with database.create_engine().connect() as connection:
            await connection.execute(text(locks))
            running.stdin.write(b"go on\n")
            said = await running.stdout.read()
            await running.wait()
    assert (said, running.returncode) == (b"drained\nclosed\n", 0)


async def test_a_connection_that_is_closed_from_two_sides_is_closed(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A host would hang in the end of `asyncio.run` for ever, for a thread that has ended long
    ago.
    """
    await add(sqlite_database, Run(id=1))
    async with process(STUCK, sqlite_database) as running:
        assert running.stdout is not None
        said = await running.stdout.read()
        await running.wait()
    assert (said, running.returncode) == (b"out of time\nclosed\n", 0)
