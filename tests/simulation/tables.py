"""The host of the simulation: fleets of instances of jobs, mounts that share volumes, and the historian among them.

The one idea: the database itself writes down, by triggers, what is judged in the end: which attempt wrote which row, and every
lease that was taken while another one was alive. Whatever a replica believes, this is what was committed.

Not here: who works on the rows (``pipelines.py``), and the judge (``verdict.py``).
"""

from __future__ import annotations

import sqlite3
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ForeignKey, create_mock_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import LockColumns, ScheduleColumns


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
    """Wants all its instances at once."""

    __tablename__ = "fleets"


class Instance(Resource, Base):
    """Belongs to a fleet, and wants all its jobs at once."""

    __tablename__ = "instances"
    fleet_id: Mapped[int] = mapped_column(ForeignKey("fleets.id"))


class Job(Resource, ScheduleColumns, Base):
    """Belongs to an instance."""

    __tablename__ = "jobs"
    instance_id: Mapped[int] = mapped_column(ForeignKey("instances.id"))


class Volume(Resource, ScheduleColumns, Base):
    """Wanted by several mounts, one at a time."""

    __tablename__ = "volumes"


class Mount(Resource, ScheduleColumns, Base):
    """Wants its volume, which others want too."""

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

_HISTORY = "CREATE TABLE history (kind TEXT, place TEXT, row INTEGER, mark TEXT)"
_TRIGGERS = (
    "CREATE TRIGGER {t}_main AFTER UPDATE OF mark ON {t} WHEN NEW.mark IS NOT OLD.mark "
    "BEGIN INSERT INTO history VALUES ('main', '{t}', NEW.id, NEW.mark); END",
    "CREATE TRIGGER {t}_related AFTER UPDATE OF touched_by ON {t} WHEN NEW.touched_by IS NOT OLD.touched_by "
    "BEGIN INSERT INTO history VALUES ('related', '{t}', NEW.id, NEW.touched_by); END",
    "CREATE TRIGGER {t}_stolen AFTER UPDATE OF lock_token ON {t} WHEN NEW.lock_token <> OLD.lock_token "
    "AND OLD.lock_expires_at > strftime('%Y-%m-%d %H:%M:%f000', 'now') "
    "BEGIN INSERT INTO history VALUES ('stolen', '{t}', NEW.id, OLD.lock_owner || ' lost it to ' || NEW.lock_owner); END",
)
_UNFOUNDED = (
    "CREATE TRIGGER {r}_unfounded AFTER UPDATE OF lock_token ON {r} WHEN NEW.lock_token IS NOT NULL "
    "AND (NEW.lock_owner = '{p}' OR NEW.lock_owner LIKE '{p}:%') "
    "AND NOT EXISTS (SELECT 1 FROM {m} WHERE lock_token = NEW.lock_token AND lock_expires_at >= NEW.lock_expires_at) "
    "BEGIN INSERT INTO history VALUES ('unfounded', '{r}', NEW.id, NEW.lock_owner || ' no longer held its main row'); END",
    "CREATE TRIGGER {m}_deleted AFTER DELETE ON {m} WHEN OLD.lock_token IS NOT NULL "
    "BEGIN INSERT INTO history VALUES ('gone', '{m}', OLD.id, OLD.lock_token); END",
    "CREATE TRIGGER {m}_taken AFTER UPDATE OF lock_token ON {m} WHEN NEW.lock_token <> OLD.lock_token "
    "AND NEW.lock_owner <> OLD.lock_owner BEGIN INSERT INTO history VALUES ('gone', '{m}', OLD.id, OLD.lock_token); END",
)
_ORPHANS = (
    "SELECT '{r}', r.id, r.lock_owner FROM {r} r WHERE (r.lock_owner = '{p}' OR r.lock_owner LIKE '{p}:%') "
    "AND r.lock_token IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {m} m WHERE m.lock_token = r.lock_token) "
    "AND NOT EXISTS (SELECT 1 FROM history h WHERE h.kind = 'gone' AND h.mark = r.lock_token)"
)


def create_tables(file: sqlite3.Connection) -> None:
    """Create the tables and the historian."""
    file.execute("PRAGMA journal_mode=WAL")
    engine = create_mock_engine(
        "sqlite://", lambda ddl, *_, **__: file.execute(str(ddl.compile(dialect=engine.dialect)))
    )
    Base.metadata.create_all(engine, checkfirst=False)
    for statement in historian():
        file.execute(statement)
    file.commit()


def historian() -> list[str]:
    """Return the SQL that lets the database write down which attempt wrote what."""
    each = [trigger.format(t=table) for table in TABLES for trigger in _TRIGGERS]
    return [_HISTORY, *each, *(trigger.format(**names) for names in LOCKING for trigger in _UNFOUNDED)]


def fill(file: sqlite3.Connection, rows: dict[str, list[dict[str, int]]], now: datetime) -> None:
    """Empty every table and put `rows` in, due at `now`."""
    file.execute("DELETE FROM history")
    text = now.replace(tzinfo=None).isoformat(" ", "microseconds")
    for table in TABLES:
        file.execute(f"DELETE FROM {table}")
        due = {} if table == "instances" else {"due_at": text, "attempts": 0}
        for row in rows.get(table, []):
            values = {"status": "todo", "wanted": 0, "seen": 0, "touched": 0, "held": 0} | due | row
            places = ", ".join("?" * len(values))
            file.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", tuple(values.values()))
    file.commit()


def orphans(file: sqlite3.Connection) -> list[tuple[str, int, str]]:
    """Return related rows that are locked under the token of no main row.

    There may be some only where the main row was deleted, or taken by somebody else once its lease had ended; they have expired, or
    will: the sweep clears them.
    """
    return file.execute(_ORPHANS_OF_ALL).fetchall()


_ORPHANS_OF_ALL: Final = " UNION ALL ".join(_ORPHANS.format(**names) for names in LOCKING)
