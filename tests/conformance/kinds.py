"""Every kind of model that is accepted, each in a table of its own: what must make no difference
to a lease.
"""

from __future__ import annotations

import enum
import itertools
import uuid
from datetime import datetime
from typing import Any, Final

from sqlalchemy import DateTime, Enum, ForeignKey, Integer, String, Text, Uuid
from sqlalchemy.dialects.postgresql import UUID
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

from rowlock import LockColumns, ScheduleColumns, UtcDateTime


class KindsBase(DeclarativeBase):
    """Keeps these models out of the other tests' tables."""


class Reference(TypeDecorator[str]):
    impl = String(36).with_variant(UUID(as_uuid=False), "postgresql")
    cache_ok = True


class ByUuid(LockColumns, KindsBase):
    __tablename__ = "by_uuid"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    status: Mapped[str] = mapped_column(default="new")


class ByNumber(LockColumns, ScheduleColumns, KindsBase):
    __tablename__ = "by_number"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")


class ByName(LockColumns, KindsBase):
    __tablename__ = "by_name"
    id: Mapped[str] = mapped_column(
        String(60), primary_key=True, default=lambda: f"key '{uuid.uuid4()}\""
    )
    status: Mapped[str] = mapped_column(default="new")


class ByVariant(LockColumns, KindsBase):
    """A key and a value that are texts, but UUIDs on PostgreSQL."""

    __tablename__ = "by_variant"
    id: Mapped[str] = mapped_column(
        String(36).with_variant(UUID(as_uuid=False), "postgresql"),
        primary_key=True,
        default=lambda: str(uuid.uuid4()),
    )
    status: Mapped[str] = mapped_column(
        String(10).with_variant(Text(), "postgresql", "sqlite"), default="new"
    )
    lock_token: Mapped[uuid.UUID | None] = mapped_column(Uuid().with_variant(UUID(), "postgresql"))


class ByDecorated(LockColumns, KindsBase):
    __tablename__ = "by_decorated"
    id: Mapped[str] = mapped_column(
        Reference(), primary_key=True, default=lambda: str(uuid.uuid4())
    )
    status: Mapped[str] = mapped_column(default="new")


class Letter(enum.StrEnum):
    ALPHA, BETA, GAMMA, DELTA, EPSILON, ZETA, ETA, THETA = "abcdefgh"


_letters = itertools.cycle(Letter)


class ByLetter(LockColumns, KindsBase):
    __tablename__ = "by_letter"
    id: Mapped[Letter] = mapped_column(primary_key=True, default=lambda: next(_letters))
    status: Mapped[str] = mapped_column(default="new")


class Color(KindsBase):
    __tablename__ = "colors"
    id: Mapped[int] = mapped_column(primary_key=True)


class ByForeignKey(LockColumns, KindsBase):
    """Its key is the key of another table; the other row is read with it, as a joined collection
    would be.
    """

    __tablename__ = "by_foreign_key"
    id: Mapped[int] = mapped_column(ForeignKey("colors.id"), primary_key=True)
    status: Mapped[str] = mapped_column(default="new")
    color: Mapped[Color] = relationship(lazy="joined")

    def __init__(self, **values: Any) -> None:
        super().__init__(color=Color(), **values)


class Renamed(LockColumns, KindsBase):
    """Other names in the database, and a column whose key is a third name."""

    __tablename__ = "renamed"
    id: Mapped[int] = mapped_column("pk", key="third_name", primary_key=True)
    status: Mapped[str] = mapped_column("x_status", default="new")
    lock_token: Mapped[uuid.UUID | None] = mapped_column("x_token", Uuid)
    lock_owner: Mapped[str | None] = mapped_column("x_owner", String(60))
    lock_expires_at: Mapped[datetime | None] = mapped_column("x_expires", UtcDateTime)
    last_processed_at: Mapped[datetime | None] = mapped_column("x_processed", UtcDateTime)


class Plain(KindsBase):
    """Spells all columns itself, with SQLAlchemy's own types; tokens are read as text."""

    __tablename__ = "plain"
    id: Mapped[str] = mapped_column(
        Uuid(as_uuid=False), primary_key=True, default=lambda: str(uuid.uuid4())
    )
    status: Mapped[str] = mapped_column(Text, default="new")
    lock_token: Mapped[str | None] = mapped_column(Uuid(as_uuid=False))
    lock_owner: Mapped[str | None] = mapped_column(Text)
    lock_expires_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    last_processed_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


class Taken(LockColumns, ScheduleColumns, KindsBase):
    """Columns whose names our own statements might want for their parameters."""

    __tablename__ = "taken"
    id: Mapped[int] = mapped_column("the_key", primary_key=True)
    status: Mapped[str] = mapped_column("new_token", default="new")
    new_attempts: Mapped[str | None]
    guard_token: Mapped[str | None]
    new_0: Mapped[str | None]


class Reserved(LockColumns, KindsBase):
    __tablename__ = "order"
    id: Mapped[int] = mapped_column("select", Integer, primary_key=True)
    status: Mapped[str] = mapped_column("from", Enum("new", "done", name="group"), default="new")


class Animal(LockColumns, KindsBase):
    __tablename__ = "animals"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))
    status: Mapped[str] = mapped_column(default="new")
    __mapper_args__ = {  # noqa: RUF012 - SQLAlchemy's own
        "polymorphic_on": "kind",
        "polymorphic_identity": "animal",
    }


class Cat(Animal):
    __mapper_args__ = {"polymorphic_identity": "cat"}  # noqa: RUF012


KINDS: Final[tuple[type[Any], ...]] = (
    ByUuid,
    ByNumber,
    ByName,
    ByVariant,
    ByDecorated,
    ByLetter,
    ByForeignKey,
    Renamed,
    Plain,
    Taken,
    Reserved,
    Animal,
    Cat,
)
