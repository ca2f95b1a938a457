"""What type checkers say of a host's code. Never run: `test_pins.py` has it checked.

A line that ends in ``# refused`` is an error for each of them, and no other line is.
"""

from __future__ import annotations

import uuid
from typing import Any, TypedDict, assert_type

from advanced_alchemy.base import UUIDAuditBase
from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column
from sqlmodel import Field, SQLModel, col

from rowlock import (
    NOW_PLACEHOLDER,
    Apply,
    LockColumns,
    Outcome,
    Pipeline,
    PipelineItem,
    PipelineManager,
    Retry,
    ScheduleColumns,
)


class Base(DeclarativeBase):
    """The host's base."""


class Volume(LockColumns, ScheduleColumns, Base):
    __tablename__ = "volumes"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    status: Mapped[str]
    disk_id: Mapped[str | None]


class Fleet(LockColumns, Base):
    """Whose key is not named `id`."""

    __tablename__ = "fleets"
    name: Mapped[str] = mapped_column(primary_key=True)


class Disk(MappedAsDataclass, Base):
    __tablename__ = "disks"
    id: Mapped[int] = mapped_column(primary_key=True, init=False)


class Order(LockColumns, SQLModel, table=True):
    id: int | None = Field(default=None, primary_key=True)
    status: str = "new"


class Invoice(LockColumns, UUIDAuditBase):
    __tablename__ = "invoices"
    status: Mapped[str]


class VolumePipeline(Pipeline[Volume]):
    model = Volume
    intent = (Volume.status, "due_at")
    lock_timeout = 60

    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "new"

    async def process(self, item: PipelineItem[Volume]) -> Outcome:
        """The key and the row are of the model."""
        assert_type(item.id, uuid.UUID)
        assert_type(item.row, Volume)
        print(item.id.hexagon)  # refused
        return Apply({"status": "done"})


class FleetPipeline(Pipeline[Fleet]):
    model = Fleet

    async def process(self, item: PipelineItem[Fleet]) -> Apply:
        """The key may be anything; the row says more."""
        assert_type(item.id, Any)
        assert_type(item.row.name, str)
        return Apply()


class OrderPipeline(Pipeline[Order]):
    model = Order

    def ready(self) -> ColumnElement[bool]:
        """`col` tells type checkers that it is a column."""
        return col(Order.status) == "new"

    def process(self, item: PipelineItem[Order]) -> Apply:
        """The key of a row that is there is not None."""
        assert_type(item.id, int)
        return Apply({col(Order.status): "done"})


class InvoicePipeline(Pipeline[Invoice]):
    model = Invoice

    async def process(self, item: PipelineItem[Invoice]) -> Apply:
        """The key comes from a mixin of the base."""
        assert_type(item.id, uuid.UUID)
        return Apply({Invoice.status: "done"})


def keys(disk: PipelineItem[Disk], anything: PipelineItem[Any]) -> None:
    """The key of a mapped dataclass, and of what nothing is known of."""
    assert_type(disk.id, int)
    assert_type(anything.id, Any)


class VolumeValues(TypedDict, total=False):
    """What outcomes may write, for hosts that want values checked as well."""

    status: str
    size_gb: int


def values(written: dict[str, Any], typed: VolumeValues) -> None:
    """Keys of update maps are columns; a TypedDict has the values checked."""
    Apply()
    Apply({"status": "done", "due_at": NOW_PLACEHOLDER})
    Apply({Volume.status: "done", Volume.disk_id: None})
    Apply({Volume.__table__.c.status: "done"})
    Apply(written)
    Apply({**written, "status": "done"})
    Apply(dict.fromkeys(("status", "disk_id"), "done"))
    Apply(typed)
    Apply(VolumeValues(status="done"))
    Apply({"status": "done"}, unless_changed=[Volume.status, "due_at"])
    Retry(values={Volume.status: "done"})
    Apply("done")  # refused
    Apply([("status", "done")])  # refused
    Apply({1: "done"})  # refused
    Apply({Volume: "done"})  # refused
    Apply(VolumeValues(state="done"))  # refused
    Apply(VolumeValues(size_gb="large"))  # refused
    Apply({"status": "done"}, unless_changed=[1])  # refused
    Apply({"status": "done"}, after="soon")  # refused
    Retry(values={1: "done"})  # refused


def settings() -> None:
    """Keywords of the constructor are known by name and type."""
    VolumePipeline(lock_timeout=10, workers_num=3)
    VolumePipeline(lock_timeout="10 s")  # refused
    VolumePipeline(worker_num=3)  # refused


def managers(sessions: async_sessionmaker[AsyncSession]) -> None:
    """A list of pipelines of several models needs no annotation."""
    pipelines = [VolumePipeline(), FleetPipeline(), OrderPipeline(), InvoicePipeline()]
    PipelineManager(sessions, pipelines)
    two = [VolumePipeline(), OrderPipeline()]
    two.append(FleetPipeline())
    PipelineManager(sessions, two)
    PipelineManager(sessions, [Volume])  # refused
