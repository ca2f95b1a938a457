"""Pipelines over pgbouncer in transaction mode, set up as the docs say, by each driver.

Debian's package ``pgbouncer`` is used where it is installed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, ColumnElement, event, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from rowlock import Apply, Pipeline, PipelineItem, PipelineManager, Retry, events, hold_rows
from rowlock.insight import Insight
from rowlock.testing import TemporaryDatabase

from ..host import Base, Run, heard_events

PGBOUNCER = shutil.which(
    "pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
)
CONNECT_ARGS: dict[str, dict[str, Any]] = {
    "asyncpg": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": lambda: f"__rowlock_{uuid.uuid4()}__",
    },
    "psycopg": {"prepare_threshold": None},
}
"""What each driver needs, as ``docs/how-to/pgbouncer.md`` says."""
ROWS = 30
SETTINGS = """\
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
log_connections = 0
log_disconnections = 0
log_stats = 0
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
"""


class RunPipeline(Pipeline[Run]):
    """Fails each row once, and renews leases as often as it can."""

    model = Run
    fetch_delays = (0.05,)
    min_processing_interval = 0
    retry_delay = 0.01

    def ready(self) -> ColumnElement[bool]:
        return Run.status == "new"

    async def process(self, item: PipelineItem[Run]) -> Apply | Retry:
        if item.attempt == 1:
            return Retry(error="once")
        async with item.session() as session:
            await session.get_one(Run, item.id)
        return Apply({"status": "done"}, unless_changed=[Run.status])


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.fixture
def pooler_url(postgresql_database: TemporaryDatabase) -> Iterator[URL]:
    if PGBOUNCER is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    server, port = postgresql_database.url, free_port()
    host = str(server.query.get("host") or server.host)
    said = {"host": host, "port": server.port or 5432, "user": server.username or "postgres"}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        settings = Path(folder) / "pgbouncer.ini"
        settings.write_text(SETTINGS.format(listen_port=port, **said), "utf-8")
        # It refuses to run as root; the owner of the server's socket may enter its folder.
        owner = Path(host).stat().st_uid if host.startswith("/") and os.getuid() == 0 else None
        with subprocess.Popen(
            [PGBOUNCER, settings], stderr=subprocess.PIPE, text=True, user=owner
        ) as pooler:
            assert pooler.stderr is not None
            said_lines = []
            for line in pooler.stderr:
                said_lines.append(line)
                if "process up" in line:
                    break
            assert "process up" in said_lines[-1], said_lines
            yield server.set(drivername="postgresql", host="127.0.0.1", port=port, query={})
            pooler.terminate()


@pytest.fixture(params=CONNECT_ARGS)
async def pooled(
    request: pytest.FixtureRequest, pooler_url: URL, postgresql_database: TemporaryDatabase
) -> AsyncIterator[async_sessionmaker[AsyncSession]]:
    pytest.importorskip(request.param)
    await postgresql_database.create_tables(Base.metadata)
    engine = create_async_engine(
        pooler_url.set(drivername=f"postgresql+{request.param}"),
        connect_args=CONNECT_ARGS[request.param],
    )
    if request.param == "asyncpg":
        event.listen(engine.sync_engine, "begin", lambda _connection: None)
    yield async_sessionmaker(engine, expire_on_commit=False)
    await engine.dispose()


async def test_rows_are_worked_on(pooled: async_sessionmaker[AsyncSession]) -> None:
    """Claims, renewals, failures or outcomes would need a connection of their own, and a host
    behind a pooler could not use rowlock.
    """
    async with pooled.begin() as session:
        session.add_all([Run(id=number, status="new") for number in range(ROWS)])
    pipeline = RunPipeline(workers_num=5)
    with heard_events() as heard:
        async with PipelineManager(pooled, [pipeline]) as manager:
            await heard.wait_for(events.ItemApplied, count=2 * ROWS)
            assert manager.health().healthy
    async with pooled() as session:
        rows = (await session.scalars(select(Run))).all()
    assert {(row.status, row.attempts, row.lock_token) for row in rows} == {("done", 0, None)}
    counters = pipeline.statistics().counters
    assert (counters["applied"], counters["retried"]) == (ROWS, ROWS)


class PlannedPipeline(RunPipeline):
    rehearsable = True

    async def process(self, item: PipelineItem[Run]) -> Apply | Retry:
        async with item.session() as session:
            await session.get_one(Run, item.id)
            await session.commit()
        return Apply({"status": "done"})


async def test_a_rehearsal_leaves_the_connections_of_others_as_they_are(
    pooled: async_sessionmaker[AsyncSession],
) -> None:
    """Transactions of the host could not write any more, by whichever connection they get."""
    async with pooled.begin() as session:
        session.add_all([Run(id=number, status="new") for number in range(8)])
    plan = await Insight(pooled, [PlannedPipeline()]).rehearse("PlannedPipeline", range(8))
    assert {row.outcome for row in plan.rows} == {"Apply"}
    together = asyncio.Barrier(4)

    async def write(number: int) -> None:
        async with pooled.begin() as session:
            (await session.get_one(Run, number)).status = "done"
            await together.wait()  # each has a connection of the server of its own

    async with asyncio.timeout(60):
        await asyncio.gather(*(write(number) for number in range(4)))


async def test_leases_are_renewed(pooled: async_sessionmaker[AsyncSession]) -> None:
    """The thread of heartbeats opens connections beside the pool: without the settings of the
    host's engine every renewal would fail.
    """
    async with pooled.begin() as session:
        session.add(Run(id=1, status="new"))
    go_on = asyncio.Event()

    class Waiting(RunPipeline):
        async def process(self, item: PipelineItem[Run]) -> Apply:
            await go_on.wait()
            return Apply({"status": "done"})

    waiting = Waiting(lock_timeout=2, heartbeat_trigger=1.5, heartbeat_interval=0.1)
    with heard_events() as heard:
        async with PipelineManager(pooled, [waiting]):
            told = await heard.wait_for(events.LeasesRenewed)
            go_on.set()
            await heard.wait_for(events.ItemApplied)
    assert told[0].renewed == 1
    assert waiting.statistics().counters["renewals_failed"] == 0


async def test_services_hold_rows(pooled: async_sessionmaker[AsyncSession]) -> None:
    """A request handler behind a pooler could not lock what it changes."""
    async with pooled.begin() as session:
        session.add(Run(id=1))
    async with hold_rows(pooled, Run, [1]) as held, pooled.begin() as session:
        [row] = await held.guard(session)
        row.status = "held"
    async with pooled() as session:
        assert (await session.get_one(Run, 1)).status == "held"
