"""A service in one process, the pipeline in another: its rows are found without a poll."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from rowlock import PipelineHinter, PipelineManager, hint_after_commit
from rowlock.database.notify_channel import listening
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX
from .notified import NAME, Base, Parcel
from .processes import Replica

CONNECTIONS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND application_name = :name"
)


@asynccontextmanager
async def notified(database: TemporaryDatabase) -> AsyncIterator[Replica]:
    await database.create_tables(Base.metadata)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("notified.py")),
        database.url.render_as_string(hide_password=False),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    replica = Replica(process, [])
    try:
        await replica.wait_for("Woken")
        yield replica
    finally:
        await replica.end()


async def send_parcel(database: TemporaryDatabase, hinter: PipelineHinter) -> None:
    """Do what a service does: add a row, and hint with the commit."""
    async with database.session_factory.begin() as session:
        session.add(Parcel())
        hint_after_commit(session, Parcel, hinter=hinter)


async def until_no_line(database: TemporaryDatabase) -> None:
    async with asyncio.timeout(HANG_S_MAX), database.engine.connect() as connection:
        while await connection.scalar(text(f"SELECT count(*) {CONNECTIONS}"), {"name": NAME}):
            await connection.rollback()


async def test_a_service_in_another_process_is_heard(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A row that a web process adds would wait for the worker process to poll; and so would what
    that one hints in turn.
    """
    database, bills = postgresql_database, asyncio.Event()

    def note(model: str) -> None:
        if model == "Bill":
            bills.set()

    async with (
        notified(database) as replica,
        PipelineManager(database.session_factory, notify=True) as manager,
    ):
        async with listening(database.create_engine(), None, heard=note, lost=lambda: None):
            for count in range(1, 4):
                await send_parcel(database, manager.hinter)
                assert await replica.wait_for("Applied", times=count) == list(range(1, count + 1))
            async with asyncio.timeout(HANG_S_MAX):
                await bills.wait()
        assert replica.process.stdin is not None
        replica.process.stdin.close()
        await replica.wait_for("Done")
        await until_no_line(database)


async def test_without_notify_nothing_is_said(postgresql_database: TemporaryDatabase) -> None:
    """A host that did not ask for it would pay for a connection and for statements."""
    engine = create_async_engine(postgresql_database.url)
    heard: list[str] = []
    async with listening(
        postgresql_database.create_engine(), None, heard=heard.append, lost=lambda: None
    ):
        async with PipelineManager(postgresql_database.session_factory) as manager:
            manager.hinter.hint_fetch(Parcel)
            assert manager.health().notifications is None
        async with engine.begin() as connection:
            await connection.execute(text("SELECT pg_notify('rowlock_public', 'Last')"))
        async with asyncio.timeout(HANG_S_MAX):
            while not heard:
                async with engine.connect() as connection:
                    await connection.execute(text("SELECT 1"))
    await engine.dispose()
    assert heard == ["Last"]
