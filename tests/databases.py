"""PostgreSQL databases for tests that have the URL of a server, and no fixture."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from sqlalchemy import URL

from rowlock.testing import TemporaryDatabase
from rowlock.testing.databases import (
    create_postgresql_database,
    drop_postgresql_database,
)


@asynccontextmanager
async def postgresql_database(server: URL) -> AsyncIterator[TemporaryDatabase]:
    """Yield a new database on a server, and drop it afterwards, cutting connections."""
    database = await create_postgresql_database(server)
    try:
        async with aclosing(database):
            yield database
    finally:
        await drop_postgresql_database(server, database)
