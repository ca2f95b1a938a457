"""The host of the simulation: fleets of instances of jobs, mounts that share volumes, with the
historian of `rowlock.testing`.

Not here: who works on the rows (``pipelines.py``), and the judge (``verdict.py``).
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from sqlalchemy import ForeignKey, create_mock_engine
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import LockColumns, ScheduleColumns

from ..simulator.judge.history import HISTORY_TABLE, historian_statements


class Base(DeclarativeBase):
    """The mapped classes of the simulation."""


class Resource(LockColumns):
    """What every row here has besides its lease.

    Attributes:
        status: ``todo`` until an attempt says ``done``.
        wanted: counted up by services; theirs alone.
        seen: the `wanted` that the last result was computed from.
        mark: the attempt that wrote the row as its main row.
        touched: how often it was written as a related row.
        touched_by: the attempt that did so last.
        held: how often services wrote it while they held it.
    """

    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="todo")
    wanted: Mapped[int] = mapped_column(default=0)
    seen: Mapped[int] = mapped_column(default=0)
    mark: Mapped[str | None]
    touched: Mapped[int] = mapped_column(default=0)
    touched_by: Mapped[str | None]
    held: Mapped[int] = mapped_column(default=0)


class Fleet(Resource, ScheduleColumns, Base):
    __tablename__ = "fleets"


class Instance(Resource, Base):
    """Belongs to a fleet, and wants all its jobs at once."""

    __tablename__ = "instances"
    fleet_id: Mapped[int] = mapped_column(ForeignKey("fleets.id"))


class Job(Resource, ScheduleColumns, Base):
    __tablename__ = "jobs"
    instance_id: Mapped[int] = mapped_column(ForeignKey("instances.id"))


class Volume(Resource, ScheduleColumns, Base):
    __tablename__ = "volumes"


class Mount(Resource, ScheduleColumns, Base):
    __tablename__ = "mounts"
    volume_id: Mapped[int] = mapped_column(ForeignKey("volumes.id"))


TABLES: Final = ("fleets", "instances", "jobs", "volumes", "mounts")
MODELS: Final[dict[str, Any]] = {
    "fleets": Fleet,
    "instances": Instance,
    "jobs": Job,
    "volumes": Volume,
    "mounts": Mount,
}
LOCKING: Final = (
    {"p": "FleetPipeline", "m": "fleets", "r": "instances"},
    {"p": "InstancePipeline", "m": "instances", "r": "jobs"},
    {"p": "MountPipeline", "m": "mounts", "r": "volumes"},
)
"""Pipelines that lock related rows, with the tables of their main and of their related rows."""

WATCHED: Final = ("status", "wanted", "seen", "mark", "touched", "touched_by", "held")
"""What the historian notes besides the leases."""

_ORPHANS = (
    "SELECT '{r}', r.id, r.lock_owner FROM {r} r WHERE (r.lock_owner = '{p}' OR r.lock_owner"
    " LIKE '{p}:%') AND r.lock_token IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {m} m WHERE"
    f" m.lock_token = r.lock_token) AND NOT EXISTS (SELECT 1 FROM {HISTORY_TABLE} WHERE place ="
    " '{m}' AND was ->> 'lock_token' = r.lock_token AND (became IS NULL OR (became ->>"
    " 'lock_token' <> r.lock_token AND became ->> 'lock_owner' <> was ->> 'lock_owner')))"
)


def create_tables(file: sqlite3.Connection) -> None:
    file.execute("PRAGMA journal_mode=WAL")
    engine = create_mock_engine(
        "sqlite://", lambda ddl, *_, **__: file.execute(str(ddl.compile(dialect=engine.dialect)))
    )
    Base.metadata.create_all(engine, checkfirst=False)
    for statement in historian_statements(
        sqlite.dialect(), MODELS.values(), also=dict.fromkeys(MODELS.values(), WATCHED)
    ):
        file.execute(statement)
    file.commit()


def orphans(file: sqlite3.Connection) -> list[tuple[str, int, str]]:
    """Return related rows that are locked under the token of no main row.

    There may be some only where the main row was deleted, or taken by somebody else once its lease
    had ended; they have expired, or will: the sweep clears them.
    """
    return file.execute(_ORPHANS_OF_ALL).fetchall()


_ORPHANS_OF_ALL: Final = " UNION ALL ".join(_ORPHANS.format(**names) for names in LOCKING)
