"""Models of the hosts that make the mistakes of ``stream_mistakes.py``."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams import EventColumns


class Base(DeclarativeBase):
    """Tables of the mistakes."""


class Payment(EventColumns, Base):
    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str] = mapped_column(String(50))
    cents: Mapped[int]


class Bare(Base):
    __tablename__ = "bare"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str]


class Counted(Base):
    __tablename__ = "counted"
    id: Mapped[int] = mapped_column(primary_key=True, default=lambda: 1, autoincrement=False)
    account: Mapped[str]


class Keyless(EventColumns, Base):
    __tablename__ = "keyless"
    __stream_key__ = "acount"
    account: Mapped[str]


class Balance(Base):
    __tablename__ = "balances"
    account: Mapped[str] = mapped_column(String(50), primary_key=True)
    cents: Mapped[int] = mapped_column(default=0)


class Short(Base):
    """A row whose key is too short for accounts."""

    __tablename__ = "shorts"
    account: Mapped[str] = mapped_column(String(5), primary_key=True)
