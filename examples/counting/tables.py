"""The tables of the program, and the way to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase

Sessions = async_sessionmaker[AsyncSession]


class Base(DeclarativeBase):
    """All tables of the program; those of the streams join them."""


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Sessions]:
    """Open an engine of one's own."""
    engine = create_async_engine(url)
    try:
        yield async_sessionmaker(engine, expire_on_commit=False)
    finally:
        await engine.dispose()
