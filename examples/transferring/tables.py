"""The tables of the bank."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import LockColumns, ScheduleColumns
from rowlock.dispatch import DispatchColumns, dispatch_indexes
from rowlock.streams import EventColumns


class Base(DeclarativeBase):
    """All tables of the bank; those of the streams join them."""


class Transfer(EventColumns, Base):
    """What one account has paid to another one."""

    __tablename__ = "transfers"
    __stream_key__ = "payer"

    payer: Mapped[str] = mapped_column(String(50))
    payee: Mapped[str] = mapped_column(String(50))
    cents: Mapped[int]


class Alarm(LockColumns, ScheduleColumns, DispatchColumns, Base):
    """A letter to the owner of an account that is overdrawn: a row of an outbox."""

    __tablename__ = "alarms"
    __table_args__ = dispatch_indexes("alarms")

    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str]
    cents: Mapped[int]
