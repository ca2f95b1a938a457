"""`Insight.check` of apps that dispatch, or have streams: what their tables want."""

from __future__ import annotations

from typing import Any

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import LockColumns, ScheduleColumns
from rowlock.dispatch import DispatchColumns, dispatch_columns, dispatch_indexes
from rowlock.insight import Insight, Level
from rowlock.insight.checkup import WORK_NAMES
from rowlock.migrations import set_fillfactor
from rowlock.streams import EventColumns, StepContext, Streams
from rowlock.streams.tables import add_stream_tables
from rowlock.testing import TemporaryDatabase

from .checking import Quiet, on_connection, spoil


class DispatchBase(DeclarativeBase):
    """Of a host that dispatches."""


class Render(LockColumns, ScheduleColumns, DispatchColumns, DispatchBase):
    __tablename__ = "renders"
    __table_args__ = dispatch_indexes("renders")
    id: Mapped[int] = mapped_column(primary_key=True)


class RenderPipeline(Quiet):
    model = Render

    def ready(self) -> Any:
        return Render.status.in_(["pending", "running"])


class StreamBase(DeclarativeBase):
    """Of a host with streams."""


class Payment(EventColumns, StreamBase):
    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str]
    cents: Mapped[int]


async def made(database: TemporaryDatabase, metadata: MetaData, *leased: str) -> None:
    """Make the tables, and those of streams by the step of a migration."""
    own = [table for table in metadata.sorted_tables if not table.name.startswith("rowlock_")]

    def make(connection: Connection) -> None:
        metadata.create_all(connection, tables=own)
        op = Operations(MigrationContext.configure(connection))
        if len(own) < len(metadata.tables):
            add_stream_tables(op)
        for name in leased:
            set_fillfactor(op, name)

    await on_connection(database, make)


async def texts(insight: Insight) -> list[str]:
    return [one.text for one in await insight.check() if one.level is not Level.NOTE]


def test_the_columns_of_dispatched_rows_are_known() -> None:
    """A column that came later would not be looked at."""
    assert {column.name for column in dispatch_columns()} == WORK_NAMES


async def test_a_host_that_dispatches(database: TemporaryDatabase) -> None:
    """Two active rows of one key could be submitted, and nobody would hear of it."""
    await made(database, DispatchBase.metadata, "renders")
    insight = Insight(database.session_factory, [RenderPipeline()])
    assert await texts(insight) == []
    await spoil(
        database, ("DROP INDEX ux_renders_dedup_key", "ALTER TABLE renders DROP COLUMN stages")
    )
    column, index = await texts(insight)
    assert column == "column stages is not in the database: add it"
    assert index.startswith(
        "unique index ux_renders_dedup_key of the model is not in the database: add"
        " ux_renders_dedup_key ON renders (dedup_key) WHERE status IN"
    )


async def test_a_host_with_streams(database: TemporaryDatabase) -> None:
    """A host would be told to mend tables of our own, or not that their migration was missed."""
    streams = Streams(StreamBase)
    balances = streams.flow("balances", Payment, shards=2)

    @balances.by_key(state=int)
    def add(step: StepContext, account: str, cents: int | None, payments: list[Payment]) -> int:
        return (cents or 0) + sum(payment.cents for payment in payments)

    await made(database, StreamBase.metadata)
    insight = Insight(database.session_factory, streams.pipelines())
    assert await texts(insight) == []
    assert "parked_index" not in str(await insight.check())
    plan = await insight.explain_claim(next(iter(insight.pipelines)))
    assert not plan.needs_person
    assert plan.headline.endswith("which is small")
    await spoil(
        database,
        (
            "ALTER TABLE rowlock_stream_flows DROP COLUMN stalled",
            "DROP INDEX ix_rowlock_stream_log_stream_position",
            "DROP TABLE rowlock_stream_cursors",
            "ALTER TABLE payments DROP COLUMN bucket",
        ),
    )
    assert sorted(await texts(insight)) == [
        "column bucket is not in the database: add it",
        "column stalled is not in the database: add it",
        "index ix_rowlock_stream_log_stream_position of the model is not in the database: add"
        " ix_rowlock_stream_log_stream_position ON rowlock_stream_log (stream, position)",
        "the table is not in the database: add_stream_tables(op), of rowlock.streams, makes it",
    ]
