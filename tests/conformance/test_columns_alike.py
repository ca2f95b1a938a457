"""Columns that the two databases treat differently must make no difference to an outcome."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import ColumnElement, DateTime
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, Retry
from rowlock.testing import TemporaryDatabase, stepping

from ..host import RecordingPipeline, Run, RunPipeline

LONG_AGO, FAR_OFF = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)


class SpeltBase(DeclarativeBase):
    """Keeps the model below out of the host's tables."""


class Spelt(SpeltBase):
    """Spells all columns itself; its times are SQLAlchemy's own, which SQLite returns without a
    zone.
    """

    __tablename__ = "spelt"
    id: Mapped[int] = mapped_column(primary_key=True)
    lock_token: Mapped[uuid.UUID | None]
    lock_owner: Mapped[str | None]
    lock_expires_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    last_processed_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    due_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), default=lambda: LONG_AGO)
    attempts: Mapped[int] = mapped_column(default=0)
    last_error: Mapped[str | None]
    parked_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    deadline_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


class SpeltPipeline(RecordingPipeline):
    model = Spelt

    def ready(self) -> ColumnElement[bool]:
        return Spelt.id.is_not(None)


async def after_one_attempt(
    database: TemporaryDatabase, row: Any, pipeline: RecordingPipeline
) -> Any:
    await database.create_tables(type(row).metadata)
    async with database.session_factory.begin() as session:
        session.add(row)
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
    async with database.session_factory() as session:
        return await session.get(type(row), row.id)


@pytest.mark.parametrize("held", [{"a": 1, "b": [1, None]}, None])
async def test_a_json_column_can_be_compared(database: TemporaryDatabase, held: Any) -> None:
    """An outcome that rests on a JSON column would fail at every attempt."""
    pipeline = RunPipeline(answer=Apply({"status": "done"}, unless_changed=[Run.result]))
    row = await after_one_attempt(database, Run(id=1, result=held), pipeline)
    assert (row.status, row.last_error) == ("done", None)


@pytest.mark.parametrize(
    ("deadline", "parked"), [(None, False), (LONG_AGO, True), (FAR_OFF, False)]
)
async def test_a_deadline_spelt_by_the_host_is_kept(
    database: TemporaryDatabase, deadline: datetime | None, parked: bool
) -> None:
    """A failure of such a row could not be written: it would be tried for ever, and wait for its
    lease each time.
    """
    row = await after_one_attempt(
        database, Spelt(id=1, deadline_at=deadline), SpeltPipeline(answer=Retry(error="no disk"))
    )
    assert (row.attempts, row.lock_token, row.parked_at is not None) == (1, None, parked)
    assert "no disk" in row.last_error


async def test_a_due_time_spelt_by_the_host_is_written(database: TemporaryDatabase) -> None:
    """A due time spelt by the host would be taken for changed, and the next one never be
    written.
    """
    row = await after_one_attempt(database, Spelt(id=1), SpeltPipeline(answer=Apply(after=3600)))
    due_at = row.due_at if row.due_at.tzinfo else row.due_at.replace(tzinfo=UTC)
    assert due_at > LONG_AGO
