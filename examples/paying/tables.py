"""The tables of the service, and the way to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import String
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams import EventColumns

Sessions = async_sessionmaker[AsyncSession]


class Base(DeclarativeBase):
    """All tables of the service; those of the streams join them."""


class Payment(EventColumns, Base):
    """What was paid into an account, or out of it. Its number is the client's: a second attempt
    finds it there.
    """

    __tablename__ = "payments"
    __stream_key__ = "account"

    number: Mapped[str] = mapped_column(String(50), unique=True)
    account: Mapped[str] = mapped_column(String(50))
    cents: Mapped[int]


class Balance(Base):
    """What is in an account."""

    __tablename__ = "balances"

    account: Mapped[str] = mapped_column(String(50), primary_key=True)
    cents: Mapped[int] = mapped_column(default=0)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Sessions]:
    """Open an engine of one's own."""
    engine = create_async_engine(url)
    try:
        yield async_sessionmaker(engine, expire_on_commit=False)
    finally:
        await engine.dispose()
