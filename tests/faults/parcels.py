"""A table with a constraint of every kind, and its pipeline."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, CheckConstraint, ColumnElement, ForeignKey, String, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Outcome, PipelineItem, ScheduleColumns
from rowlock.testing import TemporaryDatabase

from ..host import RecordingPipeline


class Base(DeclarativeBase):
    """The mapped classes of this room."""


class Depot(Base):
    __tablename__ = "depots"
    id: Mapped[int] = mapped_column(primary_key=True)


class Parcel(LockColumns, ScheduleColumns, Base):
    """A row of which nearly every column refuses something."""

    __tablename__ = "parcels"
    __table_args__ = (CheckConstraint("weight >= 0", name="weighs_something"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")
    weight: Mapped[int] = mapped_column(default=1)
    code: Mapped[str | None] = mapped_column(unique=True)
    label: Mapped[str | None] = mapped_column(String(5))
    note: Mapped[str | None]
    papers: Mapped[Any | None] = mapped_column(JSON)
    depot_id: Mapped[int | None] = mapped_column(ForeignKey("depots.id"))
    next_depot_id: Mapped[int | None] = mapped_column(
        ForeignKey("depots.id", deferrable=True, initially="DEFERRED")
    )


class ParcelPipeline(RecordingPipeline):
    model = Parcel

    def ready(self) -> ColumnElement[bool]:
        return Parcel.status == "new"

    def usual_answer(self, item: PipelineItem[Any]) -> Outcome:
        return Apply({"status": "sent"})


def heed_foreign_keys(database: TemporaryDatabase) -> None:
    """Have SQLite look at foreign keys, on connections opened from now on."""
    if database.dialect_name != "sqlite":
        return

    @event.listens_for(database.engine.sync_engine, "connect")
    def switch_on(connection: DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()


async def add_parcels(database: TemporaryDatabase, *parcels: Parcel) -> None:
    heed_foreign_keys(database)
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add_all([Depot(id=1), *parcels])
