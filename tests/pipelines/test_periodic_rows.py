"""Periodic rows: they are there without being inserted by hand, once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import String, event, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    Apply,
    Cron,
    LockColumns,
    ModelError,
    Periodic,
    PipelineManager,
    Retry,
    ScheduleColumns,
    SettingsError,
    UtcDateTime,
    database_now,
    events,
)
from rowlock.testing import TemporaryDatabase, stepping

from ..host import RecordingPipeline, heard_events
from .scenes import add, is_free, read_all, replica
from .told import told

pytestmark = pytest.mark.either_database(
    but=[
        "test_rows_are_there_without_being_inserted",
        "test_replicas_that_start_at_once_insert_each_row_once",
        "test_a_schedule_that_has_changed_counts_at_once",
        "test_rows_that_the_database_refuses_hold_up_no_others",
    ]
)

HOURLY, NIGHTLY = Cron("0 * * * *"), Cron("0 3 * * *", "Europe/Berlin")
FAR = datetime(2199, 1, 1, tzinfo=UTC)


class Base(DeclarativeBase):
    """The tables of this module alone."""


class Chore(LockColumns, ScheduleColumns, Base):
    __tablename__ = "chores"
    name: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(20))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=database_now())


class Chores(RecordingPipeline):
    model = Chore
    schedule = HOURLY
    periodic = (
        Periodic("purge", values={"status": "on"}),
        Periodic("report", NIGHTLY, {Chore.status: "on"}),
    )

    def ready(self) -> Any:
        return Chore.status == "on"


def statements_of(database: TemporaryDatabase, verb: str) -> list[str]:
    found: list[str] = []

    def note(*arguments: Any) -> None:
        if arguments[2].startswith(verb):
            found.append(arguments[2])

    event.listen(database.engine.sync_engine, "before_cursor_execute", note)
    return found


async def _rows(database: TemporaryDatabase) -> dict[str, Chore]:
    return {row.name: row for row in await read_all(database, Chore)}


async def test_rows_are_there_without_being_inserted(database: TemporaryDatabase) -> None:
    """A job would not run on a new database until somebody remembers to insert its row."""
    await database.create_tables(Base.metadata)
    inserted = statements_of(database, "INSERT")
    for _ in range(2):
        async with stepping(database.session_factory, Chores()) as steps:
            assert await steps.fetch_once() == []
    rows = await _rows(database)
    assert sorted(rows) == ["purge", "report"]
    # A second INSERT of a row would be refused, and that taken for another replica's.
    assert len(inserted) == len(rows)
    for name, schedule in (("purge", HOURLY), ("report", NIGHTLY)):
        assert rows[name].due_at == schedule.next_after(rows[name].created_at)
        assert is_free(rows[name])


async def test_a_declared_row_is_due_by_its_own_schedule(database: TemporaryDatabase) -> None:
    """The nightly report would be written every hour, by the schedule of the pipeline."""
    await add(database, Chore(name="report", status="on"), Chore(name="other", status="on"))
    async with stepping(database.session_factory, Chores(answer=Apply())) as steps:
        await steps.fetch_once()
        assert await steps.work_all() == 2
    for name, schedule in (("report", NIGHTLY), ("other", HOURLY)):
        row = (await _rows(database))[name]
        assert row.last_processed_at is not None
        assert row.due_at == schedule.next_after(row.last_processed_at)


async def test_replicas_that_start_at_once_insert_each_row_once(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A rolling restart would log errors, or one replica would not begin."""
    await database.create_tables(Base.metadata)

    async def start() -> None:
        async with stepping(replica(database), Chores()) as steps:
            await steps.fetch_once()

    await asyncio.gather(*(start() for _ in range(4)))
    assert sorted(await _rows(database)) == ["purge", "report"]
    assert told(caplog, "could not be inserted") == []


async def test_what_is_there_is_left_as_it_is(database: TemporaryDatabase) -> None:
    """A chore that was switched off would be on again after each restart."""
    await add(database, Chore(name="purge", status="off", due_at=datetime(2001, 1, 1, tzinfo=UTC)))
    async with stepping(database.session_factory, Chores()) as steps:
        await steps.fetch_once()
    purge = (await _rows(database))["purge"]
    assert (purge.status, purge.due_at) == ("off", datetime(2001, 1, 1, tzinfo=UTC))


async def test_a_schedule_that_has_changed_counts_at_once(database: TemporaryDatabase) -> None:
    """What is now to be done every hour would wait for the end of the year."""
    await add(database, Chore(name="purge", status="on", due_at=FAR))
    async with stepping(database.session_factory, Chores()) as steps:
        await steps.fetch_once()
    row = (await _rows(database))["purge"]
    assert row.due_at < FAR


class Hourly:
    def __init__(self, minute: int) -> None:
        self.minute = minute
        self.known_by = lambda: minute

    def next_after(self, now: datetime) -> datetime:
        return now.replace(minute=self.minute, microsecond=500_000) + timedelta(hours=1)


OUTCOMES = {
    "Retry(after)": Retry(after=7200, error="busy"),
    "Apply(after)": Apply(after=7200),
    "Apply(due_at)": Apply(due_at=FAR),
    "values of Apply": Apply({"due_at": FAR}),
    "values of Retry": Retry(values={Chore.due_at: FAR}),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("schedule", [Cron("* * * * *"), Hourly(3)], ids=["cron", "own"])
async def test_a_declared_row_rests_as_its_outcome_said(
    database: TemporaryDatabase, outcome: str, schedule: Any
) -> None:
    """What an outcome said stands; only a changed schedule brings it forward."""
    await add(database, Chore(name="purge", status="on"))
    answer = OUTCOMES[outcome]

    def chores(own: Any) -> Chores:
        declared = {"periodic": [Periodic("purge", own, {"status": "on"})]}
        return type("DeclaredChores", (Chores,), declared)(answer=answer)

    async with stepping(database.session_factory, chores(schedule)) as steps:
        await steps.fetch_once()
        await steps.work_all()
    rests = (await _rows(database))["purge"]
    assert rests.last_processed_at is not None
    said_at = (rests.last_processed_at + timedelta(hours=2)) if "after" in outcome else FAR
    assert abs(rests.due_at - said_at) < timedelta(milliseconds=1)
    again = Hourly(3) if isinstance(schedule, Hourly) else schedule
    async with stepping(database.session_factory, chores(again)) as steps:
        assert await steps.fetch_once() == []
    assert (await _rows(database))["purge"].due_at == rests.due_at
    for changed in (Hourly(4), Cron("*/2 * * * *")):
        async with stepping(database.session_factory, chores(changed)) as steps:
            await steps.fetch_once()
        row = (await _rows(database))["purge"]
        assert row.due_at < rests.due_at
        async with database.session_factory.begin() as session:
            (await session.get_one(Chore, "purge")).due_at = rests.due_at


async def test_a_declared_row_is_first_due_as_declared(database: TemporaryDatabase) -> None:
    """With `due_at` among its values it is first due then, and not at the next start."""
    await database.create_tables(Base.metadata)
    pipeline = type(
        "LaterChores",
        (Chores,),
        {"periodic": [Periodic("purge", values={"status": "on", "due_at": FAR})]},
    )
    for _ in range(2):
        async with stepping(database.session_factory, pipeline()) as steps:
            assert await steps.fetch_once() == []
    assert (await _rows(database))["purge"].due_at >= FAR


async def test_a_declared_row_that_a_wrong_clock_put_far_ahead_comes_back(
    database: TemporaryDatabase,
) -> None:
    """It would rest for years, as its outcome said by that clock."""
    await add(database, Chore(name="purge", status="on"))
    async with stepping(database.session_factory, Chores(answer=Apply(due_at=FAR))) as steps:
        await steps.fetch_once()
        await steps.work_all()
    async with database.session_factory.begin() as session:
        purge = await session.get_one(Chore, "purge")
        purge.last_processed_at = FAR - timedelta(hours=1)
    async with stepping(database.session_factory, Chores()) as steps:
        await steps.fetch_once()
    assert (await _rows(database))["purge"].due_at < FAR


async def test_a_row_that_is_leased_is_left_alone(database: TemporaryDatabase) -> None:
    """Its outcome would find that a service has asked for another time."""
    [row] = await add(database, Chore(name="purge", status="on"))
    async with stepping(database.session_factory, Chores()) as first:
        assert len(await first.fetch_once()) == 1
        async with database.session_factory.begin() as session:
            found = await session.get(Chore, row.name)
            assert found is not None
            found.due_at = FAR
        async with stepping(replica(database), Chores()) as second:
            await second.fetch_once()
        assert (await _rows(database))["purge"].due_at == FAR


class Refused(Chores):
    periodic = (Periodic("purge", values={"status": None}),)


async def test_rows_that_the_database_refuses_hold_up_no_others(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """One wrong value would stop the whole pipeline."""
    await add(database, Chore(name="other", status="on"))
    async with stepping(database.session_factory, Refused()) as steps:
        assert [item.id for item in await steps.fetch_once()] == ["other"]
    [line] = told(caplog, "periodic rows could not be inserted")
    assert "IntegrityError" in (line.error or "")


async def test_a_row_that_is_not_ready_is_told(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be there, and never run, without a word."""
    await database.create_tables(Base.metadata)
    kind = type("Off", (Chores,), {"periodic": [Periodic("purge", values={"status": "off"})]})
    async with stepping(database.session_factory, kind()) as steps:
        await steps.fetch_once()
    [line] = told(caplog, "are not ready")
    assert line.extra["keys"] == ["purge"]


async def test_a_manager_inserts_them_at_its_start(database: TemporaryDatabase) -> None:
    """Only a test that steps by hand would see them."""
    await add(database, Chore(name="other", status="on"))
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [Chores(answer=Apply())]):
            await heard.wait_for(events.ItemApplied)
    async with database.session_factory() as session:
        assert sorted(await session.scalars(select(Chore.name))) == ["other", "purge", "report"]


@pytest.mark.parametrize(
    ("periodic", "kind", "says"),
    [
        ([Periodic("a", NIGHTLY)], ModelError, "status is not nullable"),
        ([Periodic("a", NIGHTLY, {"stat": "on"})], ModelError, "no column 'stat'"),
        ([Periodic("a", NIGHTLY, {"attempts": 5})], ModelError, "written by rowlock"),
        ([Periodic("a", NIGHTLY, {"name": "b", "status": "on"})], ModelError, "primary key"),
        ([Periodic("a", values={"status": "on"})] * 2, SettingsError, "declared once"),
        (["a"], SettingsError, "Periodic"),
        ({"a": NIGHTLY}, SettingsError, "Periodic"),
        (5, SettingsError, "Periodic"),
        ([Periodic("a", "0 3 * * *", {"status": "on"})], SettingsError, r"such as Cron\("),  # type: ignore[arg-type]
    ],
)
def test_a_row_that_cannot_be_is_refused(periodic: Any, kind: type[Exception], says: str) -> None:
    """It would be found by the database, after the start."""
    with pytest.raises(kind, match=says):
        type("Wrong", (Chores,), {"periodic": periodic})()


def test_a_row_needs_a_schedule() -> None:
    """It would be inserted, and be due at all times."""
    with pytest.raises(SettingsError, match="given a schedule each"):
        type("Wrong", (Chores,), {"schedule": None, "periodic": [Periodic("a")]})()
