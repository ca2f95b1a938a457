"""Models whose times are plain ``DateTime(timezone=True)``: SQLite reads these without zone."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, DateTime, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Outcome, Pipeline, PipelineItem, ScheduleColumns
from rowlock.insight import Insight
from rowlock.insight.census import exact_counts
from rowlock.testing import TemporaryDatabase

from .shop import at

LATE_S = 600


class Base(DeclarativeBase):
    """Of these tests."""


class Order(LockColumns, ScheduleColumns, Base):
    """Spells the time by which it is claimed itself."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    due_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class OrderPipeline(Pipeline[Order]):
    model = Order

    def ready(self) -> ColumnElement[bool]:
        return Order.id > 0

    async def process(self, item: PipelineItem[Order]) -> Outcome:
        return Apply()


async def test_plain_times_are_counted_from(database: TemporaryDatabase) -> None:
    """One such model would cost the status of all pipelines, and the census."""
    await database.create_tables(Base.metadata)
    async with database.engine.begin() as connection:
        await connection.execute(insert(Order).values(id=1, due_at=at(-LATE_S)))
    pipeline: Pipeline[Any] = OrderPipeline()
    insight = Insight(database.session_factory, [pipeline])
    [told] = (await insight.status()).pipelines
    view = await insight.explain_pipeline("OrderPipeline")
    parts = insight._asked(pipeline, None).question.parts
    async with database.engine.connect() as connection:
        exact = await exact_counts(connection, pipeline.leased, parts)
    for oldest_s in (told.counts.oldest_s, view.status.counts.oldest_s, exact.oldest_s):
        assert oldest_s is not None
        assert oldest_s >= LATE_S
