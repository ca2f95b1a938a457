"""The tables of a small hosting service, all of them worked on by pipelines; ``alembic/`` is how
they came to be.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import ForeignKey, MetaData, String, false
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import LockColumns, ScheduleColumns, UtcDateTime, due_index, parked_index

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """All tables of the service."""

    metadata = MetaData(naming_convention=NAMING)


class Volume(LockColumns, Base):
    """A disk that a customer asked for, to be created at a provider."""

    __tablename__ = "volumes"
    __table_args__ = (due_index("volumes", ready="status = 'submitted'"),)

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    status: Mapped[str] = mapped_column(String(20), default="submitted")
    size_gb: Mapped[int]
    disk_id: Mapped[str | None] = mapped_column(String(100))
    active_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Document(LockColumns, ScheduleColumns, Base):
    """A file on a volume, to be read again now and then."""

    __tablename__ = "documents"
    __table_args__ = (
        due_index("documents", ready="status = 'listed'", column="due_at"),
        parked_index("documents"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    volume_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("volumes.id", ondelete="CASCADE"), index=True
    )
    path: Mapped[str] = mapped_column(String(1000), unique=True)
    status: Mapped[str] = mapped_column(String(20), default="listed", server_default="listed")
    sha256: Mapped[str | None] = mapped_column(String(64))


class Fleet(LockColumns, Base):
    """Instances that are looked after together."""

    __tablename__ = "fleets"
    __table_args__ = (due_index("fleets", ready="status = 'scattered'"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    status: Mapped[str] = mapped_column(String(20), default="scattered", server_default="scattered")


class Instance(LockColumns, Base):
    """A machine of a fleet. Jobs are placed on it, and it is probed all the time."""

    __tablename__ = "instances"
    __table_args__ = (due_index("instances", ready="status = 'up'"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    # Indexed: a fleet that wants its instances asks by it.
    fleet_id: Mapped[int] = mapped_column(ForeignKey("fleets.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(100))
    status: Mapped[str] = mapped_column(String(20), default="up", server_default="up")
    cpus: Mapped[int] = mapped_column(default=8)
    cpus_used: Mapped[int] = mapped_column(default=0, server_default="0")
    probes: Mapped[int] = mapped_column(default=0, server_default="0")


class Job(LockColumns, ScheduleColumns, Base):
    """A program of a customer's, to be run on some instance; `to_be_stopped` is the customer's
    column and no pipeline's.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        due_index("jobs", ready="status IN ('submitted', 'running')", column="due_at"),
        parked_index("jobs"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    instance_id: Mapped[int | None] = mapped_column(
        ForeignKey("instances.id", ondelete="SET NULL"), index=True
    )
    name: Mapped[str] = mapped_column(String(100), unique=True)
    status: Mapped[str] = mapped_column(String(20), default="submitted", server_default="submitted")
    cpus: Mapped[int] = mapped_column(default=1, server_default="1")
    to_be_stopped: Mapped[bool] = mapped_column(default=False, server_default=false())
