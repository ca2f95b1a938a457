"""Where all processes of the example meet: a folder with the database and the calendar."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.testing import TemporaryDatabase

from .dates import Calendar

Sessions = async_sessionmaker[AsyncSession]


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[TemporaryDatabase]:
    """Open the database, whose time is that of the calendar."""
    url = URL.create("sqlite+aiosqlite", database=str(folder / "app.db"))
    database = TemporaryDatabase(url, clock=Calendar(folder).clock())
    try:
        yield database
    finally:
        await database.aclose()
