"""The database of one demo: a SQLite file in a temporary folder, or a schema of its own on a
PostgreSQL server.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock import ConfigurationError
from rowlock.demo.host import Base, Document, open_engine
from rowlock.testing import install_historian


def address_in(folder: Path, database: str | None) -> URL:
    """Return a new address: of a SQLite file in `folder`, or of a schema on the PostgreSQL server
    of the URL `database`.

    Raises:
        ConfigurationError: the URL is not one of PostgreSQL, or asyncpg is not installed.
    """
    if database is None:
        return URL.create("sqlite+aiosqlite", database=str(folder / "demo.db"))
    try:
        url = make_url(database)
    except ArgumentError:
        url = URL.create("nonsense")
    if url.get_backend_name() not in {"postgresql", "postgres"}:
        # The URL itself may have a password in it.
        raise ConfigurationError(
            "--database is for PostgreSQL: postgresql://user@host/name; leave it out for SQLite"
        )
    if find_spec("asyncpg") is None:
        raise ConfigurationError(
            "PostgreSQL needs asyncpg: python -m pip install 'rowlock[postgresql]'"
        )
    schema = f"rowlock_demo_{secrets.token_hex(4)}"
    return url.set(drivername="postgresql+asyncpg").update_query_dict({"schema": schema})


@asynccontextmanager
async def tables_at(address: URL) -> AsyncIterator[AsyncEngine]:
    """Create the tables and the historian, yield an engine, and drop the schema afterwards.

    Raises:
        ConfigurationError: the database cannot be reached or does not let us create a schema.
    """
    engine, schema = open_engine(address), address.query.get("schema")
    try:
        try:
            await _create(
                engine, f"CREATE SCHEMA {schema}" if schema else "PRAGMA journal_mode=WAL"
            )
        except Exception as error:
            raise ConfigurationError(f"cannot create the tables in {address!r}: {error}") from error
        try:
            yield engine
        finally:
            if schema:
                await _drop(engine, str(schema))
    finally:
        await engine.dispose()


async def _create(engine: AsyncEngine, first: str) -> None:
    async with engine.begin() as connection:
        await connection.exec_driver_sql(first)
        await connection.run_sync(Base.metadata.create_all)
        await install_historian(connection, [Document], also={Document: ["status"]})


async def _drop(engine: AsyncEngine, schema: str) -> None:
    async with engine.begin() as connection:
        await connection.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")
