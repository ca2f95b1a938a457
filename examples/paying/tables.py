"""The tables of the service."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams import EventColumns


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
