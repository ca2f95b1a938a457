"""The database file of a simulation, and engines on it that are used by one process after another.

The one idea: to make an engine and compile its statements takes longer than to simulate a minute,
so engines outlive processes, and runs. Each has connected once before, since the first connection
of an engine takes other turns of the loop than the following.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import URL, NullPool, create_engine, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)

from rowlock.testing import DatabaseClock, run_virtual, virtual_time_now
from rowlock.testing.database_clock import follow_on_connection

from ..judge.history import historian_statements
from .faulty_connection import FaultyConnection, SimulatedConnection

if TYPE_CHECKING:
    from sqlalchemy import Engine

CONNECTIONS_MAX: Final = 20
"""Most connections of one process at once."""
STATEMENTS_MAX: Final = 2_000
"""Most compiled statements that are kept."""


class PooledEngine:
    """An engine, and the line of whoever uses it now.

    Attributes:
        faulty_connection: of whoever uses it now.
        engine: its connections go over that line.
        session_factory: sessions on it, with ``expire_on_commit=False``.
    """

    def __init__(self, engines: Engines) -> None:
        self.faulty_connection = FaultyConnection(Random(0))
        self._engines = engines
        url = URL.create("sqlite+aiosqlite", database="simulated")
        self.engine: AsyncEngine = create_async_engine(
            url,
            async_creator=self._connect,
            pool_size=CONNECTIONS_MAX,
            max_overflow=0,
            query_cache_size=STATEMENTS_MAX,
        )
        engines.compile_once(self.engine.sync_engine)
        self.session_factory: async_sessionmaker[AsyncSession] = async_sessionmaker(
            self.engine, expire_on_commit=False
        )
        run_virtual(self._connect_once)

    def clear(self) -> None:
        """Lose every connection, and forget about all that were ever made."""
        self.faulty_connection.drop_all()
        self.engine.sync_engine.dispose(close=False)

    async def _connect(self) -> SimulatedConnection:
        await asyncio.sleep(0)
        return await self.faulty_connection.connect(self._engines.path, self._engines.clock)

    async def _connect_once(self) -> None:
        async with self.engine.connect():
            pass
        self.clear()


class Schema(NamedTuple):
    """What the database file has: tables of `models`, whose `watched` columns are noted besides,
    and what `also` says in SQL.
    """

    models: Sequence[type]
    watched: Mapping[type, Sequence[str]]
    also: Sequence[str]


class Engines:
    """The database file, its clock and its engines.

    Attributes:
        path: the file of this run.
        clock: the database's time, which runs with the loop's.
        eye: sees what was committed, outside the loop and in no time.
        file: the same as a plain connection of the driver.
        copies: each connection is to a copy of what was committed, in memory.
    """

    def __init__(self, schema: Callable[[Engines], Schema]) -> None:
        """Create the tables of the models that `schema` returns, the historian, and what else it
        says in SQL.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="rowlock-simulation-")
        self._runs = 0
        self.path = self._new_path()
        self.clock = DatabaseClock(source=virtual_time_now)
        self.eye: Engine = create_engine(
            "sqlite:///simulated", creator=lambda: sqlite3.connect(self.path)
        )
        event.listen(
            self.eye, "connect", lambda connection, _: follow_on_connection(connection, self.clock)
        )
        self.copies: Engine = create_engine("sqlite://", creator=self._copy, poolclass=NullPool)
        self.file = sqlite3.connect(":memory:")
        self._pooled: list[PooledEngine] = []
        self._used = 0
        try:
            _create_tables(self.eye, schema(self))
        except BaseException:
            self.close()
            raise
        self._blank = self.path.read_bytes()

    def close(self) -> None:
        self._lose_all()
        self._folder.cleanup()

    def clean(self) -> None:
        """Begin anew: empty tables, all engines unused, and the time at which every run starts."""
        self._lose_all()
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        # Another file each time: SQLite closes a connection for good only when the last cursor on
        # it is gone.
        self.path = self._new_path()
        self.path.write_bytes(self._blank)
        self.file = sqlite3.connect(self.path)
        self.clock = DatabaseClock(source=virtual_time_now)
        self._used = 0

    def have_engines(self, count: int) -> None:
        """See to it that so many engines are there; not in a running loop."""
        while len(self._pooled) < count:
            self._pooled.append(PooledEngine(self))

    def compile_once(self, engine: Engine) -> None:
        """Let an engine use the statements that another one has compiled."""
        if self._pooled:
            first = self._pooled[0].engine.sync_engine
            engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache

    def next_engine(self, faulty_connection: FaultyConnection) -> PooledEngine:
        """Return an engine that nobody has used in this run, with a line of its own."""
        pooled = self._pooled[self._used]
        self._used += 1
        pooled.faulty_connection = faulty_connection
        return pooled

    def _copy(self) -> sqlite3.Connection:
        copy = sqlite3.connect(":memory:")
        self.file.backup(copy)
        follow_on_connection(copy, self.clock)
        return copy

    def _lose_all(self) -> None:
        self.eye.dispose()
        self.file.close()
        for pooled in self._pooled:
            pooled.clear()

    def _new_path(self) -> Path:
        self._runs += 1
        return Path(self._folder.name) / f"simulation-{self._runs}.db"


def _create_tables(engine: Engine, schema: Schema) -> None:
    models: Sequence[Any] = schema.models
    metadatas: dict[Any, None] = dict.fromkeys(model.metadata for model in models)
    dialect: Any = sqlite.dialect()
    noted = historian_statements(dialect, dict.fromkeys(schema.models), also=schema.watched)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        for metadata in metadatas:
            metadata.create_all(connection)
        for statement in (*noted, *schema.also):
            connection.exec_driver_sql(statement)
        connection.commit()
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()
