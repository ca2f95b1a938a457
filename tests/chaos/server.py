"""The server of the chaos: durable, restarted at will, and asked by those who judge.

Whoever asks does so past the proxies; what fails because the server is away is asked again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
from sqlalchemy import URL, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from rowlock.testing import PostgresqlServer

from ..simulator.judge.history import Change, install_historian, read_history
from .host import BATCHES, JOBS, SITES, WATCHED, Base, Batch, Job, Site

AWAY_S_MAX = 30.0
"""How long the server may be away for who asks it."""
LOOKS_EVERY_S = 0.05
ROUNDS_BEHIND_MAX = 2
"""Most rounds that a row may want at once."""

_OTHERS = "datname = current_database() AND pid <> pg_backend_pid()"
_UNSETTLED = " UNION ALL ".join(
    f"SELECT '{table}', id FROM {table} WHERE lock_token IS NOT NULL OR lock_owner IS NOT NULL"
    + ("" if table == "sites" else " OR (done < wanted AND parked_at IS NULL)")
    for table in ("jobs", "batches", "sites")
)

T = TypeVar("T")


@contextmanager
def own_server() -> Iterator[PostgresqlServer]:
    """Give a server that nobody else uses; it is durable, or a crash would lose what was
    committed.
    """
    # Not in the folder for temporary files: its path may be too long for a socket.
    folder = Path(
        tempfile.mkdtemp(
            prefix="rowlock-chaos-server-", dir="/tmp" if Path("/tmp").is_dir() else None
        )
    )
    server = PostgresqlServer(folder, durable=True)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Server:
    def __init__(self, server: PostgresqlServer) -> None:
        self._server = server
        self.url: URL = server.start().set(drivername="postgresql+asyncpg")
        self._engine = create_async_engine(self.url, pool_size=1)

    async def prepare(self) -> None:
        """Make the tables with their historian, and fill them."""
        async with self._engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
            await connection.execute(
                Job.__table__.insert(), [{"id": n} for n in range(1, JOBS + 1)]
            )
            await connection.execute(
                Batch.__table__.insert(), [{"id": n} for n in range(1, BATCHES + 1)]
            )
            await connection.execute(
                Site.__table__.insert(), [{"id": n} for n in range(1, SITES + 1)]
            )
            await install_historian(connection, WATCHED, also=WATCHED)

    async def restart(self, *, at_once: bool) -> None:
        """Stop it, in order or `at_once` as in a crash, and start it again."""
        pid_file = self._server.directory / "data" / "postmaster.pid"
        pid = int(pid_file.read_text(encoding="utf-8").split()[0])
        os.kill(pid, signal.SIGQUIT if at_once else signal.SIGINT)
        async with asyncio.timeout(AWAY_S_MAX):
            while pid_file.exists():  # noqa: ASYNC110 - nobody tells us of the end of another's process
                await asyncio.sleep(LOOKS_EVERY_S)
        await asyncio.to_thread(self._server.start)

    async def ask_for(self, table: str, keys: Sequence[int]) -> None:
        """Want one more round of these rows, as a service does, unless they are far behind: in
        the end all must settle.
        """
        await self._execute(
            f"UPDATE {table} SET wanted = wanted + 1, due_at = LEAST(due_at, now()) "
            f"WHERE id = ANY(:keys) AND wanted < done + {ROUNDS_BEHIND_MAX}",
            keys=list(keys),
        )

    async def terminate(self, chosen: Callable[[list[int]], list[int]]) -> int:
        """End the connections that are `chosen` among all but our own, and return how many there
        were.
        """
        rows = await self._execute(f"SELECT pid FROM pg_stat_activity WHERE {_OTHERS} ORDER BY pid")
        pids = chosen([row[0] for row in rows])
        await self._execute(
            "SELECT pg_terminate_backend(pid) FROM unnest(:pids ::int[]) AS pid", pids=pids
        )
        return len(pids)

    async def unsettled(self) -> list[Any]:
        """Return rows that carry lock columns, or want more rounds."""
        return await self._execute(_UNSETTLED)

    async def left_open(self, *, older_than_s: float) -> list[Any]:
        """Return transactions of others that are open and idle for longer than that."""
        return await self._execute(
            f"SELECT application_name, state, query FROM pg_stat_activity WHERE {_OTHERS} AND"
            " xact_start IS NOT NULL AND state LIKE 'idle in transaction%' AND state_change <"
            f" now() - make_interval(secs => {older_than_s})"
        )

    async def connections(self) -> list[Any]:
        return await self._execute(
            f"SELECT application_name, state, query FROM pg_stat_activity WHERE {_OTHERS} AND"
            " application_name LIKE 'replica%'"
        )

    async def rows(self, table: str, *columns: str) -> list[Any]:
        return await self._execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY id")

    async def history(self) -> list[Change]:
        return await self._try(read_history)

    async def aclose(self) -> None:
        await self._engine.dispose()

    async def _execute(self, statement: str, **parameters: Any) -> list[Any]:
        async def execute(connection: AsyncConnection) -> list[Any]:
            result = await connection.execute(text(statement), parameters)
            return [tuple(row) for row in result] if result.returns_rows else []

        return await self._try(execute)

    async def _try(self, work: Callable[[AsyncConnection], Any]) -> Any:
        async with asyncio.timeout(AWAY_S_MAX):
            while True:
                with suppress(
                    SQLAlchemyError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError
                ):
                    async with self._engine.begin() as connection:
                        return await work(connection)
                await asyncio.sleep(LOOKS_EVERY_S)
