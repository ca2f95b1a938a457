"""The database of one demo: a SQLite file in a temporary folder, or a schema of its own on a PostgreSQL server.

Both are removed at the end unless they are to be kept. The replicas open the same one by its `Address`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from rowlock import ConfigurationError
from rowlock.demo.documents import Base
from rowlock.demo.history import begin_history

SQLITE_WAIT_S = 15
"""How long a writer waits for its turn: SQLite has one at a time."""
CONNECT_S_MAX = 10


@dataclass(frozen=True, slots=True)
class Address:
    """Where the demo's tables are. `schema`: PostgreSQL only."""

    url: str
    schema: str | None = None

    def __str__(self) -> str:
        url = make_url(self.url)
        return f"schema {self.schema} of {url!r}" if self.schema else str(url.database)


def address_in(folder: Path, database: str | None) -> Address:
    """Return a new address: of a SQLite file in `folder`, or on the PostgreSQL server of the URL `database`.

    Raises:
        ConfigurationError: the URL is not one of PostgreSQL, or asyncpg is not installed.
    """
    if database is None:
        return Address(_text(URL.create("sqlite+aiosqlite", database=str(folder / "demo.db"))))
    try:
        url = make_url(database)
    except ArgumentError:
        raise ConfigurationError(
            f"--database {database!r} is no URL; it looks like postgresql://user@host/name"
        ) from None
    if url.drivername not in {"postgresql", "postgres", "postgresql+asyncpg"}:
        raise ConfigurationError(
            f"--database is for PostgreSQL (postgresql://user@host/name), not {url.drivername}; leave it out for SQLite"
        )
    if find_spec("asyncpg") is None:
        raise ConfigurationError("PostgreSQL needs asyncpg: python -m pip install 'rowlock[postgresql]'")
    return Address(_text(url.set(drivername="postgresql+asyncpg")), f"rowlock_demo_{secrets.token_hex(4)}")


def open_engine(address: Address) -> AsyncEngine:
    """Return an engine whose statements find the demo's tables; nothing connects yet."""
    if address.schema is None:
        return create_async_engine(address.url, connect_args={"timeout": SQLITE_WAIT_S})
    options = {"timeout": CONNECT_S_MAX, "server_settings": {"search_path": address.schema}}
    return create_async_engine(address.url, connect_args=options)


@asynccontextmanager
async def tables_at(address: Address, *, keep: bool) -> AsyncIterator[AsyncEngine]:
    """Create the tables and the history's trigger, yield an engine, and drop the schema afterwards unless `keep`.

    Raises:
        ConfigurationError: the database cannot be reached or does not let us create a schema.
    """
    engine = open_engine(address)
    try:
        try:
            await _create(engine, address)
        except Exception as error:
            raise ConfigurationError(f"cannot create the tables in {address}: {error}") from error
        try:
            yield engine
        finally:
            if not keep:
                await _drop(engine, address)
    finally:
        await engine.dispose()


async def _create(engine: AsyncEngine, address: Address) -> None:
    async with engine.begin() as connection:
        if address.schema is not None:
            await connection.exec_driver_sql(f"CREATE SCHEMA {address.schema}")
        await connection.run_sync(Base.metadata.create_all)
        await begin_history(connection)
    if address.schema is None:
        # Now, since the switch needs the file for itself.
        async with engine.connect() as connection:
            await connection.exec_driver_sql("PRAGMA journal_mode=WAL")


async def _drop(engine: AsyncEngine, address: Address) -> None:
    if address.schema is not None:
        async with engine.begin() as connection:
            await connection.exec_driver_sql(f"DROP SCHEMA {address.schema} CASCADE")


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)
