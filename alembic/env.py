"""How this service's migrations run: on the URL given by ``-x url=...`` or by ``DATABASE_URL``, one
transaction each.

A program that has a connection already hands it in as ``config.attributes["connection"]``.
"""

from __future__ import annotations

import asyncio
import os

from hosting.tables import Base
from sqlalchemy import Connection, event, pool
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from alembic import context
from rowlock.migrations import autogenerate_options


def database_url() -> str:
    """Return the URL of the database to migrate."""
    url = context.get_x_argument(as_dictionary=True).get("url") or os.environ.get("DATABASE_URL")
    if not url:
        raise SystemExit(
            "which database? alembic -x url=sqlite+aiosqlite:///app.db upgrade head, or set"
            " DATABASE_URL"
        )
    return url


def migrate(connection: Connection) -> None:
    """Run the migrations on `connection`."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_server_default=True,
        # CREATE INDEX CONCURRENTLY commits what came before it: that should be whole migrations.
        transaction_per_migration=True,
        transactional_ddl=True,
        **autogenerate_options(),
    )
    with context.begin_transaction():
        context.run_migrations()


def begin_on_sqlite(engine: AsyncEngine) -> None:
    """Make migrations of SQLite all or nothing: its driver would begin no transaction for them."""

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


async def connect_and_migrate() -> None:
    """Open a connection and run the migrations on it."""
    engine = create_async_engine(database_url(), poolclass=pool.NullPool)
    if engine.dialect.name == "sqlite":
        begin_on_sqlite(engine)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(migrate)
    finally:
        await engine.dispose()


def print_sql() -> None:
    """Print what would be run (``--sql``)."""
    context.configure(
        url=database_url(),
        target_metadata=Base.metadata,
        literal_binds=True,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    print_sql()
elif (given := context.config.attributes.get("connection")) is not None:
    migrate(given)
else:
    asyncio.run(connect_and_migrate())
