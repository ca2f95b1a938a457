"""The shop of the windows' specification: volumes that are provisioned and backed up, fleets that
lock theirs, and rows in every state.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, ForeignKey, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Outcome, Pipeline, PipelineItem, ScheduleColumns
from rowlock.insight import Insight, InsightLimits
from rowlock.testing import TemporaryDatabase

NOW: Final = datetime(2026, 11, 22, 3, 14, 5, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
UNTIMED: Final = InsightLimits(timeout=HOUR, statement_timeout=HOUR, count_timeout=HOUR)
"""Of questions whose time is not what a test is about: a starved machine takes long for each."""
TOKEN: Final = uuid.UUID("00000000-0000-4000-8000-00003fa2c1d0")
DEAD_TOKEN: Final = uuid.UUID("00000000-0000-4000-8000-000091be04aa")


class Base(DeclarativeBase):
    """The shop's mapped classes."""


class Fleet(LockColumns, Base):
    __tablename__ = "fleets"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="growing")


class Volume(LockColumns, ScheduleColumns, Base):
    __tablename__ = "volumes"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    secret: Mapped[str | None]
    cloud: Mapped[str | None] = mapped_column(default="cloud-1")
    fleet_id: Mapped[int | None] = mapped_column(ForeignKey("fleets.id"))


class Invoice(LockColumns, Base):
    """A row of a model on which no pipeline works."""

    __tablename__ = "invoices"
    id: Mapped[int] = mapped_column(primary_key=True)


class Quiet(Pipeline[Any]):
    model = Volume

    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Any]) -> Outcome:
        return Apply()


class VolumePipeline(Quiet):
    max_attempts = 20


class BackupPipeline(Quiet):
    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "active"


class FleetPipeline(Quiet):
    model = Fleet
    locks = (Volume,)

    def ready(self) -> ColumnElement[bool]:
        return Fleet.status == "growing"


Rows = Callable[[], list[dict[str, Any]]]


@dataclass(frozen=True)
class Scene:
    """A row in some state.

    Attributes:
        volume: columns of volume 17.
        fleets: columns of fleets.
        before: how many volumes are before it in the order of claims.
        due_before: when these are due, in seconds from now.
        prepare: what else is done to the database.
    """

    volume: dict[str, Any] | None = field(default_factory=dict)
    fleets: tuple[dict[str, Any], ...] = ()
    before: int = 0
    due_before: float = -10.0
    prepare: Callable[[TemporaryDatabase], Awaitable[None]] | None = None


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


LEASED: Final = {"lock_token": TOKEN, "lock_expires_at": at(21)}
SCENES: Final = {
    "no_row": Scene(volume=None),
    "running": Scene(LEASED | {"lock_owner": "VolumePipeline", "attempts": 2}),
    "held_by_service": Scene(LEASED | {"lock_owner": "billing:7c1f02aa"}),
    "held_as_related": Scene(LEASED | {"lock_owner": "FleetPipeline:3"}),
    "held_by_pipeline": Scene(LEASED | {"lock_owner": "BackupPipeline"}),
    "parked": Scene(
        {
            "parked_at": at(-22 * 60 - 53),
            "attempts": 20,
            "last_processed_at": at(-22 * 60 - 53),
            "last_error": "gave up after 20 attempts: ConnectionError: cloud-7 refused",
        }
    ),
    "not_ready": Scene({"status": "active"}),
    "kept": Scene({"lock_owner": "BackupPipeline", "last_processed_at": at(-3)}),
    "kept_for_unknown": Scene({"lock_owner": "OldPipeline", "last_processed_at": at(-3)}),
    "resting_failed": Scene({"due_at": at(41), "attempts": 3, "last_processed_at": at(-3)}),
    "resting_until": Scene({"due_at": at(46 * 60)}),
    "awaited": Scene(
        {"fleet_id": 3, "due_at": at(-1)},
        fleets=({"id": 3, "lock_owner": "FleetPipeline", "last_processed_at": at(-12)},),
    ),
    "nobody_runs": Scene({"due_at": at(-14 * 60)}),
    "left_by_dead": Scene(
        {
            "lock_token": DEAD_TOKEN,
            "lock_owner": "VolumePipeline",
            "lock_expires_at": at(-4),
            "due_at": at(-40),
        }
    ),
    "in_line": Scene({"due_at": at(-1)}),
    "in_line_118th": Scene({"due_at": at(-1)}, before=117),
}
"""A row for each verdict that rows alone can tell, by its name."""


async def furnish(database: TemporaryDatabase, scene: Scene) -> None:
    """Write the rows of a scene, at `NOW` if the database's clock can be moved."""
    await database.create_tables(Base.metadata)
    if database.clock is not None:
        database.clock.set(NOW)
    async with database.engine.begin() as connection:
        for fleet in scene.fleets:
            await connection.execute(insert(Fleet).values(fleet))
        if scene.volume is not None:
            values = {"id": 17, "status": "submitted", "due_at": NOW} | scene.volume
            await connection.execute(insert(Volume).values(values))
        if scene.before:
            others = [
                {"id": 1000 + number, "status": "submitted", "due_at": at(scene.due_before)}
                for number in range(scene.before)
            ]
            await connection.execute(insert(Volume), others)
    if scene.prepare is not None:
        await scene.prepare(database)


def insight_of(database: TemporaryDatabase, **how: Any) -> Insight:
    pipelines, limits = [VolumePipeline(), FleetPipeline()], how.pop("limits", UNTIMED)
    return Insight(database.session_factory, how.pop("pipelines", pipelines), limits=limits, **how)
