"""A host whose database is as it should be, and what may be wrong with it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import ColumnElement, Connection, Index, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    Apply,
    LockColumns,
    Outcome,
    Pipeline,
    PipelineItem,
    ScheduleColumns,
    UtcDateTime,
    due_index,
    parked_index,
)
from rowlock.insight import Insight, InsightLimits, Level, insight_tables
from rowlock.streams import EventColumns
from rowlock.testing import TemporaryDatabase

UNTIMED = InsightLimits(*[timedelta(hours=1)] * 3)
"""Of questions whose time is not what a test is about. Not taken from another module: commands of
tests have this one alone.
"""


class Base(DeclarativeBase):
    """The host's mapped classes."""


class Volume(LockColumns, ScheduleColumns, Base):
    __tablename__ = "volumes"
    __table_args__ = (Index("ux_volumes_name", "name", unique=True),)
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    name: Mapped[str | None]


class Fleet(LockColumns, Base):
    """Is looked after in the order of its last processing; spells a column in its own way."""

    __tablename__ = "fleets"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    status: Mapped[str] = mapped_column(default="it's 50 % :new")
    lock_expires_at: Mapped[datetime | None] = mapped_column("lock ends", UtcDateTime, default=None)


class Payment(EventColumns, Base):
    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str]


class Quiet(Pipeline[Any]):
    model: Any = Volume

    async def process(self, item: PipelineItem[Any]) -> Outcome:
        return Apply()


class VolumePipeline(Quiet):
    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "submitted"


class BackupPipeline(Quiet):
    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "active"


class FleetPipeline(Quiet):
    model = Fleet

    def ready(self) -> ColumnElement[bool]:
        return Fleet.status == "it's 50 % :new"


due_index(VolumePipeline)
due_index(BackupPipeline, name="ix_volumes_backup")
due_index(FleetPipeline)
parked_index(Volume)
TABLES: Final = insight_tables(Base.metadata)
PIPELINES: Final = (VolumePipeline, BackupPipeline, FleetPipeline)


@dataclass(frozen=True)
class Defect:
    """Something that is wrong with a database.

    Attributes:
        found: what a check says of it.
        sql: how it comes about.
        only: the one database that can have it; empty for both.
        level: how bad it is.
    """

    found: str
    sql: tuple[str, ...]
    only: str = ""
    level: Level = Level.BAD


def _retyped(column: str, kind: str, options: str = "") -> tuple[str, ...]:
    return (f"ALTER TABLE volumes ALTER COLUMN {column} {options} TYPE {kind}",)


def _recreated(old: str, new: str) -> tuple[str, ...]:
    """Mark that the table is made anew with another spelling of a column."""
    return ("recreate", old, new)


INDEX_1: Final = "DROP INDEX ix_volumes_due_at"
DEFECTS: Final = {
    "lock column lacks": Defect(
        "column lock_owner is not in the database: add it",
        ("ALTER TABLE volumes DROP COLUMN lock_owner",),
    ),
    "schedule lacks": Defect(
        "column due_at is not in the database: add it",
        (
            INDEX_1,
            "DROP INDEX ix_volumes_backup",
            "ALTER TABLE volumes DROP COLUMN due_at",
            "ALTER TABLE volumes DROP COLUMN attempts",
        ),
    ),
    "bucket lacks": Defect(
        "column bucket is not in the database: add it", ("ALTER TABLE payments DROP COLUMN bucket",)
    ),
    "naive time": Defect(
        "column last_processed_at is a time without a zone",
        _retyped("last_processed_at", "timestamp"),
        "postgresql",
    ),
    "token as text": Defect(
        "column lock_token is text (VARCHAR(36)), not a UUID: make it UUID",
        _retyped("lock_token", "varchar(36)"),
        "postgresql",
    ),
    "token as a number": Defect(
        "column lock_token is a number (NUMERIC), not text: make it CHAR(32)",
        _recreated("lock_token CHAR(32)", "lock_token NUMERIC"),
        "sqlite",
    ),
    "owner too short": Defect(
        "column lock_owner holds 20 characters, the model says 255",
        _retyped("lock_owner", "varchar(20)"),
        "postgresql",
    ),
    "owner never null": Defect(
        "column lock_owner takes no null, and null means that there is none: let it be null",
        ("ALTER TABLE volumes ALTER COLUMN lock_owner SET NOT NULL",),
        "postgresql",
    ),
    "owner never null in a file": Defect(
        "column lock_owner takes no null, and null means that there is none: let it be null",
        _recreated("lock_owner VARCHAR(255)", "lock_owner VARCHAR(255) NOT NULL"),
        "sqlite",
    ),
    "due at null": Defect(
        "column due_at may be null: a row without it is never claimed; set it NOT NULL",
        (
            "ALTER TABLE volumes ALTER COLUMN due_at DROP NOT NULL",
            "ALTER TABLE volumes ALTER COLUMN due_at DROP DEFAULT",
            "INSERT INTO volumes (id, status) VALUES (1, 'old')",
        ),
        "postgresql",
    ),
    "no default": Defect(
        "column attempts has no default: rows that others insert without it are refused; give it",
        ("ALTER TABLE volumes ALTER COLUMN attempts DROP DEFAULT",),
        "postgresql",
        Level.WARN,
    ),
    "no index": Defect(
        "no index serves the claim of VolumePipeline: add ix_volumes_due_at ON volumes (due_at, id)"
        " WHERE status = 'submitted' AND parked_at IS NULL",
        (INDEX_1,),
    ),
    "no index of processing": Defect(
        "no index serves the claim of FleetPipeline: add ix_fleets_last_processed_at ON fleets",
        ("DROP INDEX ix_fleets_last_processed_at",),
    ),
    "another condition": Defect(
        "no index serves the claim of VolumePipeline, since ix_volumes_due_at does not",
        (INDEX_1, "CREATE INDEX ix_volumes_due_at ON volumes (due_at, id) WHERE status = 'other'"),
    ),
    "all rows": Defect(
        "index ix_volumes_due_at holds all rows: claims of VolumePipeline read past the settled",
        (INDEX_1, "CREATE INDEX ix_volumes_due_at ON volumes (due_at, id)"),
        level=Level.WARN,
    ),
    "parked rows": Defect(
        "index ix_volumes_due_at holds parked rows: claims of VolumePipeline read past them",
        (
            INDEX_1,
            "CREATE INDEX ix_volumes_due_at ON volumes (due_at, id) WHERE status = 'submitted'",
        ),
        level=Level.WARN,
    ),
    "lock column in an index": Defect(
        "index ix_expiry contains lock ends: every heartbeat writes every index (0 % heap-only);"
        " drop it",
        ('CREATE INDEX ix_expiry ON fleets (status, "lock ends")',),
    ),
    "lock column in a condition": Defect(
        "index ix_free contains lock_token: every heartbeat writes every index",
        ("CREATE INDEX ix_free ON volumes (status) WHERE lock_token IS NULL",),
    ),
    "unique index lacks": Defect(
        "unique index ux_volumes_name of the model is not in the database: add",
        ("DROP INDEX ux_volumes_name",),
    ),
    "no room in pages": Defect(
        "fillfactor 100: set 70, or heartbeats move rows",
        ("ALTER TABLE volumes RESET (fillfactor)",),
        "postgresql",
        Level.WARN,
    ),
    "no replicas": Defect(
        "the table is not in the database: add_insight_tables(op, ...), of",
        ("DROP TABLE rowlock_replicas",),
    ),
    "pause has no end": Defect(
        "column until is not in the database: add it",
        ("ALTER TABLE rowlock_controls DROP COLUMN until",),
    ),
}
"""What may be wrong, by a name."""


async def be_well(database: TemporaryDatabase) -> None:
    await database.create_tables(Base.metadata)
    if database.dialect_name == "postgresql":
        async with database.engine.begin() as connection:
            for table in ("volumes", "fleets"):
                await connection.execute(text(f"ALTER TABLE {table} SET (fillfactor = 70)"))


async def spoil(database: TemporaryDatabase, sql: tuple[str, ...]) -> None:
    async with database.engine.begin() as connection:
        if sql[0] != "recreate":
            for statement in sql:
                await connection.exec_driver_sql(statement)
            return
        query = "SELECT sql FROM sqlite_master WHERE tbl_name = 'volumes' AND sql IS NOT NULL"
        made = [str(row[0]) for row in (await connection.exec_driver_sql(query)).all()]
        await connection.exec_driver_sql("DROP TABLE volumes")
        assert any(sql[1] in statement for statement in made), made
        for statement in made:
            await connection.exec_driver_sql(statement.replace(sql[1], sql[2]))


def insight_of(database: TemporaryDatabase, **how: Any) -> Insight:
    pipelines = [pipeline() for pipeline in how.pop("pipelines", PIPELINES)]
    how = {"tables": TABLES, "limits": UNTIMED} | how
    return Insight(database.session_factory, pipelines, **how)


async def autogenerated(database: TemporaryDatabase) -> list[Any]:
    found: list[Any] = []

    def compare(connection: Connection) -> None:
        context = MigrationContext.configure(connection)
        found.extend(compare_metadata(context, Base.metadata))

    await on_connection(database, compare)
    return found


async def on_connection(database: TemporaryDatabase, work: Callable[[Connection], None]) -> None:
    """Run something on a connection, in a transaction that Alembic may leave for a while."""
    async with database.engine.connect() as connection:
        if database.dialect_name == "sqlite":
            await connection.exec_driver_sql("BEGIN")
        await connection.run_sync(work)
        await connection.commit()
