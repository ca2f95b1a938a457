"""The database of one demo: a SQLite file in a temporary folder, or a schema of its own on a
PostgreSQL server.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import URL, Column, Integer, Table, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock import ConfigurationError, UtcDateTime
from rowlock.demo.host import Base, Document, open_engine

WATCHED = ("lock_token", "lock_owner", "lock_expires_at", "last_processed_at", "status")
_SIDES = [(side, name) for name in WATCHED for side in ("old", "new")]
CHANGES = Table(
    "changes",
    Base.metadata,
    Column("number", Integer, primary_key=True),
    Column("document_id", Integer, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    *(Column(f"{side}_{name}", Document.__table__.c[name].type) for side, name in _SIDES),
)
"""Every change of a document, noted by a trigger in the transaction that makes it: what is rolled
back leaves none, and those of one document are in the order of their commits.
"""
_INSERT = (
    f"INSERT INTO changes (document_id, at, {', '.join('_'.join(side) for side in _SIDES)})"  # noqa: S608 - names of ours
    f" VALUES (NEW.id, {{now}}, {', '.join('.'.join(side) for side in _SIDES)})"
)
_NOW_ON_SQLITE = "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
_TRIGGER = {
    "sqlite": (
        "CREATE TRIGGER note_change AFTER UPDATE ON documents BEGIN"
        f" {_INSERT.format(now=_NOW_ON_SQLITE)}; END",
    ),
    "postgresql": (
        "CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" {_INSERT.format(now='clock_timestamp()')}; RETURN NULL; END $$",
        "CREATE TRIGGER note_change AFTER UPDATE ON documents FOR EACH ROW"
        " EXECUTE FUNCTION note_change()",
    ),
}


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
    """Create the tables and the trigger, yield an engine, and drop the schema afterwards.

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
        for statement in _TRIGGER[connection.dialect.name]:
            await connection.exec_driver_sql(statement)


async def _drop(engine: AsyncEngine, schema: str) -> None:
    async with engine.begin() as connection:
        await connection.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")
