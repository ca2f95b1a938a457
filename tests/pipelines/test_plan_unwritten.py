"""What resets, parking, changed values and failures leave behind in the row, on both databases."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Column, String
from sqlalchemy.orm import DeclarativeBase, Mapped, make_transient_to_detached, mapped_column

from rowlock import (
    Apply,
    LockColumns,
    Park,
    PipelineItem,
    PipelineSettings,
    Reset,
    Retry,
    ScheduleColumns,
)
from rowlock.leases.apply import RowWrite
from rowlock.pipelines.planner import Planner
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import RecordingPipeline, Run, RunPipeline, Volume
from .scenes import add, change, is_free, read_all, ticket
from .test_plan import _worked


class Base(DeclarativeBase):
    """The tables of this module alone."""


class Narrow(LockColumns, ScheduleColumns, Base):
    """A host's table whose column for errors is short."""

    __tablename__ = "narrow"
    id: Mapped[int] = mapped_column(primary_key=True)
    last_error: Mapped[str | None] = mapped_column(String(50), default=None)


class NarrowPipeline(RecordingPipeline):
    model = Narrow

    def ready(self) -> Any:
        return Narrow.id.is_not(None)


class UnreadablePipeline(RunPipeline):
    def options(self) -> Any:
        raise LookupError("no such option")


async def test_reset_keeps_the_owner_and_counts_nothing(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Another pipeline would snatch the row from the one that waits for a related lock."""
    now = database_with_clock.clock.now
    row, counters = await _worked(
        database_with_clock, RunPipeline(answer=Reset()), Run(id=1, due_at=now, attempts=1)
    )
    assert (row.lock_token, row.lock_owner, row.lock_expires_at) == (None, "RunPipeline", None)
    assert (row.last_processed_at, row.attempts, row.last_error) == (now, 1, None)
    assert timedelta(seconds=0.8) <= row.due_at - now <= timedelta(seconds=1.2)
    assert counters.reset == 1


async def test_rows_that_are_reset_let_others_go_first(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Rows that wait for related locks would fill the queue again and again, and starve all
    others.
    """
    now = database_with_clock.clock.now
    await add(
        database_with_clock,
        *(Run(id=number, due_at=now - timedelta(hours=1)) for number in range(4)),
        Run(id=9, due_at=now),
    )
    pipeline = RunPipeline(answer=lambda item: Apply() if item.id == 9 else Reset(), workers_num=2)
    async with stepping(database_with_clock.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_all()
        assert [item.id for item in await steps.fetch_once()] == [9]


async def test_park_sets_the_row_aside(database_with_clock: TemporaryDatabase) -> None:
    """A row that needs a person would be worked on again and again."""
    now = database_with_clock.clock.now
    row, counters = await _worked(
        database_with_clock, RunPipeline(answer=Park("needs a licence")), Run(id=1, due_at=now)
    )
    assert (row.parked_at, row.last_error) == (now, "needs a licence")
    assert is_free(row)
    assert counters.parked == 1


async def test_a_changed_value_stops_the_apply_and_the_row_is_due_at_once(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A stop that came while the row was worked on would be overwritten, or wait for the next
    interval.
    """
    run = Run(id=1, due_at=database_with_clock.clock.now)

    async def answer(item: Any) -> Apply:
        await change(database_with_clock, run, status="stopping")
        return Apply({"status": "done"}, unless_changed=[Run.status], hint=[Run])

    pipeline = RunPipeline(answer=answer)
    row, counters = await _worked(database_with_clock, pipeline, run)
    assert (row.status, row.due_at, row.attempts) == ("stopping", database_with_clock.clock.now, 0)
    assert (row.last_processed_at, is_free(row)) == (None, True)
    assert (counters.changed, counters.applied) == (1, 0)
    assert len(pipeline.stale) == 1


async def test_a_due_time_in_another_shape_is_not_taken_for_a_request(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A host that wrote due_at by SQL of its own would have its row worked on without a rest."""
    await add(sqlite_database, Run(id=1))
    async with sqlite_database.engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE runs SET due_at = datetime('now', '-1 hour')")
    async with stepping(sqlite_database.session_factory, RunPipeline(answer=Apply())) as steps:
        await steps.fetch_once()
        await steps.work_once()
        assert await steps.fetch_once() == []


@pytest.mark.parametrize("attempts", [0, 2])
async def test_a_row_that_cannot_be_read_is_counted_and_parked_at_the_limit(
    database: TemporaryDatabase, attempts: int
) -> None:
    """Its failure could not be written for want of the row itself, and it would be tried again
    after every lease for ever.
    """
    run = Run(id=1, attempts=attempts, deadline_at=datetime(2020, 1, 1, tzinfo=UTC))
    pipeline = UnreadablePipeline(max_attempts=3)
    row, counters = await _worked(database, pipeline, run)
    assert (row.attempts, is_free(row), pipeline.items) == (attempts + 1, True, [])
    assert "no such option" in row.last_error
    assert (counters.retried, counters.parked) == ((1, 0) if attempts == 0 else (0, 1))
    assert (row.parked_at is None) == (attempts == 0)


async def test_an_error_is_cut_to_the_hosts_column(database: TemporaryDatabase) -> None:
    """A failure whose text is too long could not be written, and the row would stay locked and
    uncounted.
    """
    await add(database, Narrow(id=1))
    async with stepping(
        database.session_factory, NarrowPipeline(answer=ValueError("x" * 500))
    ) as steps:
        await steps.fetch_once()
        await steps.work_once()
    row = (await read_all(database, Narrow))[0]
    assert (row.attempts, len(row.last_error), is_free(row)) == (1, 50, True)


VOLUMES = LeasedTable.of(Volume)
STATUS = VOLUMES.column("status")
FREED = {"lock_token": None, "lock_owner": None, "lock_expires_at": None}


def planner(*intent: Column[Any]) -> Planner:
    now = datetime(2031, 5, 17, tzinfo=UTC)
    settings = PipelineSettings()
    of: Any = SimpleNamespace(leased=VOLUMES, settings=settings, intent=intent, schedules=None)
    plans = Planner(of, now)
    plans.rng = random.Random(1)
    return plans


def written(write: RowWrite) -> dict[str, Any]:
    return {column.name: value for column, value in write.values.items()}


def read(row: Volume) -> PipelineItem[Any]:
    item = ticket()
    make_transient_to_detached(row)
    item.row = row
    return item


@virtual_time
async def test_outcomes_of_one_batch_that_are_alike_are_one_write() -> None:
    """A thousand rows with the same outcome would be planned, grouped and compared a thousand
    times.
    """
    plan, same = planner(), {"status": "active"}
    first, second = plan.plan(ticket(), Apply(same)), plan.plan(ticket(), Apply(dict(same)))
    assert first is second
    other = plan.plan(ticket(), Apply({"status": "other"}))
    assert (other is first, written(other)["status"], written(first)["status"]) == (
        False,
        "other",
        "active",
    )
    assert written(plan.plan(ticket(), Apply({"size_gb": 1})))["size_gb"] == 1
    assert written(plan.plan(ticket(), Apply({"size_gb": True})))["size_gb"] is True


@virtual_time
async def test_what_services_own_is_held_against_what_was_read() -> None:
    """A request that came meanwhile would be overwritten, or a failure that writes nothing of it
    be kept from being counted.
    """
    plan = planner(STATUS)
    item = read(Volume(id=uuid.uuid4(), status="as read", size_gb=7))
    applied = plan.plan(item, Apply({"disk_id": "d"}, unless_changed=["size_gb"]))
    assert applied.unless_changed == {STATUS: "as read", VOLUMES.column("size_gb"): 7}
    assert {column.name: value for column, value in applied.when_changed.items()} == FREED
    assert plan.plan(item, Retry(error="no", values={"disk_id": "d"})).unless_changed == {}
    assert plan.plan(item, Retry(error="no", values={"status": "failed"})).unless_changed == {
        STATUS: "as read"
    }
    unread = plan.plan(ticket(), Apply({"disk_id": "d"}))
    assert (unread.unless_changed, unread.when_changed) == ({}, {})
