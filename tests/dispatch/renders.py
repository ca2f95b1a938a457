"""The host of the dispatch tests: renders, and handlers of which a test says how they go."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import JSON, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import LockColumns, ScheduleColumns
from rowlock.dispatch import DispatchColumns, dispatch_indexes
from rowlock.testing import TemporaryDatabase


class Base(DeclarativeBase):
    """The host's mapped classes."""


class Render(LockColumns, ScheduleColumns, DispatchColumns, Base):
    """A picture to be made of a scene."""

    __tablename__ = "renders"
    __table_args__ = dispatch_indexes("renders")
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    scene: Mapped[str] = mapped_column(default="")
    url: Mapped[str | None]
    report: Mapped[Any | None] = mapped_column(JSON, default=None)


async def all_renders(database: TemporaryDatabase) -> list[Render]:
    """Return every row, in the order of submission."""
    async with database.session_factory() as session:
        return list((await session.scalars(select(Render).order_by(Render.submitted_at, Render.dedup_key))).all())
