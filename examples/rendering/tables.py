"""The table of a small rendering service: what was asked for, what became of it, and where the
picture is.
"""

from __future__ import annotations

import uuid

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import LockColumns, ScheduleColumns
from rowlock.dispatch import DispatchColumns, dispatch_indexes


class Base(DeclarativeBase):
    """All tables of the service."""


class Render(LockColumns, ScheduleColumns, DispatchColumns, Base):
    """A picture of a part of the Mandelbrot set: `width` pixels around a point, larger with more
    `zoom`.
    """

    __tablename__ = "renders"
    __table_args__ = dispatch_indexes("renders")

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    x: Mapped[float]
    y: Mapped[float]
    zoom: Mapped[float]
    width: Mapped[int]
    url: Mapped[str | None] = mapped_column(String(200))
