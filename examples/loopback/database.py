"""The way to the database of an example."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

Sessions = async_sessionmaker[AsyncSession]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Sessions]:
    """Open an engine of one's own."""
    engine = create_async_engine(url)
    try:
        yield async_sessionmaker(engine, expire_on_commit=False)
    finally:
        await engine.dispose()
