"""A stream of payments, as tests of steps need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from sqlalchemy import String, insert
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.inputs.table_source import EventColumns

MEANT: Final = {"rowlock_changes_events": True}
"""Options of a statement that changes events on purpose."""


class Paid(Protocol):
    """An event: the model of each base is a class of its own."""

    account: str
    cents: int


def new_base() -> tuple[type[DeclarativeBase], Any]:
    """Return a base of its own, and the model of its payments."""

    class Base(DeclarativeBase):
        pass

    class Payment(EventColumns, Base):
        __tablename__ = "payments"
        __stream_key__ = "account"
        account: Mapped[str] = mapped_column(String(50))
        cents: Mapped[int]

    return Base, Payment


async def pay(
    sessions: async_sessionmaker[AsyncSession], model: Any, payments: Sequence[tuple[str, int]]
) -> None:
    """Add payments in one transaction; every third has no bucket, as of raw SQL."""
    rows = [
        {"account": account, "cents": cents, "bucket": None if n % 3 == 2 else bucket_of(account)}
        for n, (account, cents) in enumerate(payments)
    ]
    async with sessions.begin() as session:
        await session.execute(insert(model), rows)
