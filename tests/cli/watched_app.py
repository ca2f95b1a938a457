"""An app that `top` looks at: volumes in every state, and replicas that say what they do."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from sqlalchemy import ColumnElement, Index, insert
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Outcome, Pipeline, PipelineItem, ScheduleColumns
from rowlock.insight import Insight, insight_tables
from rowlock.insight.replicas import LiveReplicas
from rowlock.insight.status import Status
from rowlock.testing import TemporaryDatabase

URL_VARIABLE: Final = "WATCHED_DATABASE"
PARKED: Final = ("17", "18", "40", "41")
HOSTILE: Final = "\x1b]0;owned\x07\x1b[2J[bold]\u202egnp.exe"
"""Would set the title of a terminal, and clear it."""


class Base(DeclarativeBase):
    """The mapped classes."""


class Volume(LockColumns, ScheduleColumns, Base):
    """Its key is text, which may be anything."""

    __tablename__ = "volumes"
    __table_args__ = (Index("ix_volumes_parked_at", "parked_at"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")


class VolumePipeline(Pipeline[Volume]):
    model = Volume
    max_attempts = 20

    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Volume]) -> Outcome:
        return Apply()


class BackupPipeline(VolumePipeline):
    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "active"


TABLES: Final = insight_tables(Base.metadata)


def questions() -> Insight:
    """Return the questions to the database that the environment names."""
    engine = create_async_engine(os.environ[URL_VARIABLE])
    return Insight(async_sessionmaker(engine), [VolumePipeline(), BackupPipeline()], tables=TABLES)


class Broken(Insight):
    async def status(self, **_: Any) -> Any:
        return Status("shop", cast("Any", "never"), LiveReplicas(None, None), ())


def broken() -> Insight:
    return Broken(async_sessionmaker(create_async_engine(os.environ[URL_VARIABLE])), [])


def report(first: int) -> dict[str, Any]:
    item = {"pipeline": "VolumePipeline", "state": "running", "attempt": 1}
    return {
        "pipelines": {
            "VolumePipeline": {
                "settled_s": 7.1,
                "p95_s": 1.8,
                "running": 10,
                "queued": 6,
                "capacity": 10,
                "fetch_failures": 0,
            },
            "BackupPipeline": {"settled_s": 0.0, "running": 0, "queued": 0, "capacity": 10},
        },
        "items": [
            item | {"row_id": str(first + one), "since_s": 720 - 150 * one} for one in range(3)
        ],
    }


async def furnish(
    database: TemporaryDatabase, *, parked: Sequence[str] = PARKED, error: str = "cloud-7 refused"
) -> None:
    """Write 118 rows that are due, four that are parked, and two replicas that live."""
    await database.create_tables(Base.metadata)
    now = datetime.now(UTC)
    ago = now - timedelta(minutes=2, seconds=30)
    rows = [{"id": f"{1000 + number}", "due_at": ago} for number in range(118)]
    held = {
        "due_at": ago,
        "lock_owner": "VolumePipeline",
        "lock_token": uuid.UUID(int=10),
        "lock_expires_at": now + timedelta(hours=1),
    }
    set_aside = [
        {
            "id": key,
            "due_at": ago,
            "attempts": 20,
            "last_error": error,
            "parked_at": now - timedelta(minutes=22 - place),
            "last_processed_at": ago,
        }
        for place, key in enumerate(parked)
    ]
    # Live for an hour, however slowly a test runs.
    seen = {"seen_at": now + timedelta(hours=1), "started_at": now - timedelta(hours=1)}
    replicas = [
        {"mark": mark, "name": name, "host": name, "pid": 1, "version": "1", "draining": False}
        | seen
        | {"report": report(first)}
        for mark, name, first in (("0000000a", "web-7", 90), ("0000000b", "web-8", 93))
    ]
    assert TABLES.replicas is not None
    async with database.engine.begin() as connection:
        await connection.execute(insert(Volume), rows)
        await connection.execute(insert(Volume), set_aside)
        await connection.execute(insert(Volume), [held | {"id": f"9{one}"} for one in range(6)])
        await connection.execute(insert(TABLES.replicas), replicas)
