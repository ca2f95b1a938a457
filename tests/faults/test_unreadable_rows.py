"""Rows with times or counts that Python cannot read: they are set aside and told."""

from __future__ import annotations

import enum
import pickle
import uuid
from typing import Any

import pytest
from sqlalchemy import JSON, Enum, PickleType, String, insert, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from rowlock import (
    Apply,
    LockColumns,
    PipelineItem,
    PipelineManager,
    Retry,
    ScheduleColumns,
    events,
    unpark,
)
from rowlock.pipelines import context
from rowlock.testing import TemporaryDatabase, stepping

from ..host import RecordingPipeline, Run, RunPipeline, Volume, VolumePipeline, heard_events
from ..leases.test_claim_resumed import LONG_AGO, VOLUMES, claimed_behind
from ..pipelines.scenes import add, counted, read, read_all, until

TIMES = ("due_at", "last_processed_at", "deadline_at")
BEYOND = {
    "postgresql": ("0044-03-15 BC", "20000-01-01"),
    "sqlite": ("", "0", "1700000000", "no time"),
}
NEVER_DUE = {("due_at", "20000-01-01"), ("due_at", "no time")}
"""They lie behind all times, so the row is not due."""
SPOILT = [
    (database, column, value)
    for database, values in BEYOND.items()
    for column in TIMES
    for value in values
    if (column, value) not in NEVER_DUE
]


async def spoil(database: TemporaryDatabase, table: str, column: str, value: object) -> None:
    first = f"(SELECT id FROM {table} ORDER BY id LIMIT 1)"
    async with database.engine.begin() as connection:
        await connection.execute(
            text(f"UPDATE {table} SET {column} = '{value}' WHERE id = {first}")
        )


@pytest.mark.parametrize(("name", "column", "value"), SPOILT)
@pytest.mark.parametrize("with_row", [False, True])
async def test_a_row_that_cannot_be_read_is_parked_and_told(
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    name: str,
    column: str,
    value: str,
    *,
    with_row: bool,
) -> None:
    """It would head every claim and fail it, and no row of the pipeline would be worked on
    again.
    """
    database: TemporaryDatabase = request.getfixturevalue(f"{name}_database")
    spoilt, *others = await add(database, *(Run(id=number) for number in (1, 2, 3)))
    await spoil(database, "runs", column, value)
    pipeline = RunPipeline(min_processing_interval=0)
    with heard_events() as heard:
        async with stepping(database.session_factory, pipeline) as steps:
            steps.run.context.claims_rows = with_row
            assert len(await steps.fetch_once()) == 3
            await steps.work_all()
            assert await steps.fetch_once() == []
            assert (counted(steps)["parked"], counted(steps)["fetches"]) == (1, 2)
    parks = [event.row_id for event in heard.of(events.ItemApplied) if event.outcome == "Park"]
    assert parks == [spoilt.id]
    assert [item.id for item in pipeline.items] == [other.id for other in others]
    assert [r.getMessage() for r in caplog.records if "cannot be read" in r.msg] == [
        f"RunPipeline: row 1 is parked: its {column} cannot be read"
    ]
    if column == "last_processed_at":
        # It is mended by what was written, so a service may unpark the row as it is.
        async with database.session_factory.begin() as session:
            row = await session.get_one(Run, spoilt.id)
            assert (row.last_error or "").startswith(f"{column} cannot be read")
            await unpark(session, row)
        async with stepping(database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            await steps.work_all()
        assert (await read(database, spoilt)).status == "done"


UNSTAMPED = [
    *(("postgresql", value) for value in ("0044-03-15 BC", "20000-01-01", "infinity")),
    *(("sqlite", value) for value in ("", "0", "1700000000", "no time", "infinity")),
]


@pytest.mark.parametrize(("name", "value"), UNSTAMPED)
async def test_without_a_schedule_its_stamp_is_mended_and_told(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    """It cannot be parked: it would fail every claim, or never be worked on, and nobody would
    know.
    """
    database: TemporaryDatabase = request.getfixturevalue(f"{name}_database")
    await add(database, *(Volume(id=uuid.UUID(int=number)) for number in (1, 2)))
    await spoil(database, "volumes", "last_processed_at", value)
    pipeline = VolumePipeline(min_processing_interval=0)
    async with stepping(database.session_factory, pipeline) as steps:
        assert len(await steps.fetch_once()) == 2
        await steps.work_all()
        assert [item.id.int for item in pipeline.items] == [2]
        await steps.fetch_once()
        await steps.work_all()
        assert [item.id.int for item in pipeline.items] == [2, 1]
    assert {row.status for row in await read_all(database, Volume)} == {"active"}
    assert sum("cannot be read" in record.msg for record in caplog.records) == 1


@pytest.mark.parametrize("died", [False, True])
async def test_attempts_that_cannot_be_counted_further(
    database: TemporaryDatabase, *, died: bool
) -> None:
    """One more would overflow in the claim, and stop the pipeline for all rows; or in the
    outcome, and keep the row leased.
    """
    most = 2**31 - 1
    died_with: dict[str, Any] = (
        {"lock_token": uuid.uuid4(), "lock_owner": "RunPipeline"} if died else {}
    )
    worn, other = await add(database, Run(id=1, attempts=most, **died_with), Run(id=2))
    async with stepping(database.session_factory, RunPipeline(max_attempts=20)) as steps:
        assert len(await steps.fetch_once()) == 2
        await steps.work_all()
    after = await read(database, worn)
    assert (after.parked_at is None, after.lock_token, (after.last_error or "")[:13]) == (
        False,
        None,
        "gave up after",
    )
    assert most - 1 <= after.attempts <= most
    assert (await read(database, other)).status == "done"


async def test_attempts_that_cannot_be_counted_further_fail_on(database: TemporaryDatabase) -> None:
    """Without a limit, a failure that is counted no further would keep its row leased."""
    [worn] = await add(database, Run(id=1, attempts=2**31 - 1))
    async with stepping(database.session_factory, RunPipeline(answer=Retry(error="no"))) as steps:
        assert len(await steps.fetch_once()) == 1
        await steps.work_all()
    after = await read(database, worn)
    assert (after.parked_at, after.lock_token, after.last_error) == (None, None, "no")
    assert after.attempts == 2**31 - 1


async def test_a_count_that_only_sqlite_keeps(sqlite_database: TemporaryDatabase) -> None:
    """One more would be no number of SQLite's any more, and every claim would fail."""
    died_with: dict[str, Any] = {"lock_token": uuid.uuid4(), "lock_owner": "RunPipeline"}
    worn, other = await add(sqlite_database, Run(id=1, **died_with), Run(id=2))
    await spoil(sqlite_database, "runs", "attempts", 2**63 - 1)
    async with stepping(sqlite_database.session_factory, RunPipeline(max_attempts=20)) as steps:
        assert len(await steps.fetch_once()) == 2
        await steps.work_all()
    assert (await read(sqlite_database, worn)).parked_at is not None
    assert (await read(sqlite_database, other)).status == "done"


@pytest.mark.parametrize("column", ["lock_expires_at", "parked_at"])
@pytest.mark.parametrize("value", BEYOND["postgresql"])
async def test_times_that_no_claim_reads(
    postgresql_database: TemporaryDatabase, column: str, value: str
) -> None:
    """A lease or a parking with such a time would fail the claims of all other rows."""
    _, other = await add(postgresql_database, Run(id=1), Run(id=2))
    await spoil(postgresql_database, "runs", column, value)
    async with stepping(postgresql_database.session_factory, RunPipeline()) as steps:
        await steps.fetch_once()
        await steps.work_all()
        if column == "lock_expires_at":
            # Nobody's lease ends there: the sweep clears it.
            assert await steps.sweep_once() == (1 if value == "20000-01-01" else 0)
            await steps.fetch_once()
            await steps.work_all()
    async with postgresql_database.engine.connect() as connection:
        statuses = list(await connection.scalars(text("SELECT status FROM runs ORDER BY id")))
    assert statuses == ["queued" if column == "parked_at" else "done", "done"]
    assert other.id == 2


# ---------------------------------------------------------------- columns of the host's own


RAISED: dict[str, type[Exception]] = {
    "bad": MemoryError,
    "gone": FileNotFoundError,
    "away": ConnectionRefusedError,
    "late": TimeoutError,
}


class Refusing(TypeDecorator[str]):
    impl = String
    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        if value in RAISED:
            raise RAISED[value](value) from TimeoutError("of a server that is asked")
        return value


def parcels(*members: str) -> type[Any]:
    sizes = enum.Enum("sizes", {member: member for member in members})  # type: ignore[misc]

    class OwnSize(TypeDecorator[enum.Enum]):
        impl = String
        cache_ok = True

        def process_result_value(self, value: Any, dialect: Any) -> Any:
            return value and sizes(value)

    class ParcelBase(DeclarativeBase):
        """Of this code alone."""

    class Parcel(LockColumns, ScheduleColumns, ParcelBase):
        """Has columns of types that may refuse what they read."""

        __tablename__ = "unread_parcels"
        id: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str] = mapped_column(default="new")
        note: Mapped[Any] = mapped_column(JSON, nullable=True)
        config: Mapped[Any] = mapped_column(PickleType, nullable=True)
        label: Mapped[str | None] = mapped_column(Refusing)
        size: Mapped[Any] = mapped_column(
            Enum(*members, native_enum=False, length=20), nullable=True
        )
        own_size: Mapped[Any] = mapped_column(OwnSize, nullable=True)

    return Parcel


def parcel_pipeline(model_: type[Any], **settings: Any) -> RecordingPipeline:
    class ParcelPipeline(RecordingPipeline):
        model = model_

        def ready(self) -> Any:
            return model_.status == "new"

    return ParcelPipeline(answer=Apply({"status": "done"}), **settings)


UNREAD = {
    "a document nested too deep": ("note", "[" * 2000 + "]" * 2000),
    "a torn pickle": ("config", pickle.dumps(["a", "b"])[:-4]),
    "a pickle of a class that was renamed": ("config", b"cno_such_module\nThing\n."),
    "a type that raises anything": ("label", "bad"),
    "a type that misses a file": ("label", "gone"),
}


@pytest.mark.parametrize("kind", UNREAD)
async def test_a_row_that_cannot_be_read_costs_itself_alone(
    database: TemporaryDatabase, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The nine are done before the first lease ends; the bad one is parked alone and told; a
    claim whose answer cannot be read frees, at once, what carries its token.
    """
    column, value = UNREAD[kind]
    parcel = parcels("small")
    await database.create_tables(parcel.metadata)
    await add(database, *(parcel(id=number) for number in range(1, 11)))
    cast = "json" if column == "note" and database.dialect_name == "postgresql" else None
    async with database.engine.begin() as connection:
        written = f"CAST(:value AS {cast})" if cast else ":value"
        await connection.execute(
            text(f"UPDATE unread_parcels SET {column} = {written} WHERE id = 1"), {"value": value}
        )
    pipeline = parcel_pipeline(parcel, fetch_delays=(0.05,), lock_timeout=3600, max_attempts=1)
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [pipeline]) as manager:
            [parked] = await heard.wait_for(events.ItemParked)
            # The outcome that parks is one of them.
            await heard.wait_for(events.ItemApplied, count=10)
            [health] = manager.health().pipelines
    assert parked.row_id == 1
    assert sorted(item.id for item in pipeline.items) == list(range(2, 11))
    assert {item.attempt for item in pipeline.items} == {1}
    assert not any(item.prev_lock_expired for item in pipeline.items)
    assert (health.parked, health.unreadable, health.healthy) == (1, 2, True)
    assert sum("cannot be read by this replica" in record.msg for record in caplog.records) == 1
    async with database.engine.connect() as connection:
        columns = "attempts, lock_token, parked_at, last_error"
        row = (
            await connection.execute(text(f"SELECT {columns} FROM unread_parcels WHERE id = 1"))
        ).one()
    assert (row.attempts, row.lock_token, row.parked_at is None) == (0, None, False)
    assert row.last_error.startswith("no replica has read it: ")


@pytest.mark.parametrize("value", ["away", "late"])
async def test_a_type_whose_own_server_is_away_keeps_no_row_from_its_turn(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """Its error would pass for an outage of the database: all rows of the claim would wait for
    it, or be parked although nothing is wrong with them.
    """
    monkeypatch.setattr(context, "FETCH_S", 0.0)
    parcel = parcels("small")
    await database.create_tables(parcel.metadata)
    async with database.engine.begin() as connection:
        await connection.execute(
            insert(parcel), [{"id": number, "label": value * (number == 1)} for number in (1, 2, 3)]
        )
    pipeline = parcel_pipeline(parcel, fetch_delays=(0.05,), lock_timeout=3600, max_attempts=1)
    async with PipelineManager(database.session_factory, [pipeline]) as manager:
        await until(lambda: pipeline.statistics().counters["unreadable"] >= 2)
        [health] = manager.health().pipelines
    assert sorted(item.id for item in pipeline.items) == [2, 3]
    assert (health.parked, health.healthy) == (0, True)


@pytest.mark.parametrize("column", ["size", "own_size"])
async def test_a_row_that_only_newer_code_reads_is_left_to_it(
    database: TemporaryDatabase,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    column: str,
) -> None:
    """ "This replica cannot read it" is a short reset that no attempt is charged for, told once
    per kind; another replica gets it.
    """
    monkeypatch.setattr(context, "FETCH_S", 0.0)
    old, new = parcels("small"), parcels("small", "large")
    await database.create_tables(new.metadata)
    await add(database, *(new(id=number, **{column: "large"}) for number in (1, 2)), new(id=3))
    settings: dict[str, Any] = {"fetch_delays": (0.001,), "max_attempts": 1}
    old_code, new_code = parcel_pipeline(old, **settings), parcel_pipeline(new, **settings)
    async with stepping(database.session_factory, old_code) as steps:
        seen: list[int] = []
        # Until both have come back to it: then it has left them to others, and is not done with
        # them either.
        while min(seen.count(1), seen.count(2)) < 3:
            seen += [item.id for item in await steps.fetch_once()]
            await steps.work_all()
        assert seen.count(3) == 1
        assert counted(steps)["unreadable"] >= 6
    assert [item.id for item in old_code.items] == [3]
    assert sum("cannot be read by this replica" in record.msg for record in caplog.records) == 1
    async with stepping(database.session_factory, new_code) as steps:
        assert sorted(item.id for item in await steps.fetch_once()) == [1, 2]
        await steps.work_all()
    assert {(item.id, item.attempt) for item in new_code.items} == {(1, 1), (2, 1)}
    assert {row.status for row in await read_all(database, new)} == {"done"}


async def test_a_related_row_that_only_newer_code_reads_costs_no_attempt(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that locks what this replica cannot read yet is reset and told, and another replica
    gets both; old replicas would use up its attempts.
    """
    old, new = parcels("small"), parcels("small", "large")
    await database.create_tables(new.metadata)
    await add(database, new(id=1), new(id=2, status="part", size="large"))

    async def lock(item: PipelineItem[Any]) -> Apply:
        [part] = await item.lock_related(type(item.row), type(item.row).status == "part")
        return Apply({"status": part.size})

    settings: dict[str, Any] = {"max_attempts": 1, "retry_delay": 0.001}
    for code in (old, new):
        pipeline = parcel_pipeline(code, **settings)
        pipeline.answer = lock
        async with stepping(database.session_factory, pipeline) as steps:
            while not await steps.fetch_once():
                pass
            await steps.work_all()
            assert counted(steps)["reset"] == (code is old)
        assert {item.attempt for item in pipeline.items} == {1}
    assert (await read_all(database, new))[0].status == "large"
    assert sum("a row of Parcel cannot be read" in r.getMessage() for r in caplog.records) == 1


async def test_a_row_that_is_left_to_others_is_in_no_claim_until_they_had_their_turn(
    database: TemporaryDatabase,
) -> None:
    """A replica would spin on what it cannot read, or keep newer code from it."""
    old, new = parcels("small"), parcels("small", "large")
    await database.create_tables(new.metadata)
    await add(database, new(id=1, size="large"), new(id=2))
    async with stepping(database.session_factory, parcel_pipeline(old)) as steps:
        assert len(await steps.fetch_once()) == 2
        await steps.work_all()
        assert await steps.fetch_once() == []
        async with stepping(database.session_factory, parcel_pipeline(new)) as newer:
            assert [item.id for item in await newer.fetch_once()] == [1]
            await newer.work_all()


async def test_no_claim_resumes_behind_a_place_that_cannot_be_read(
    postgresql_database: TemporaryDatabase,
) -> None:
    """The next claims would look for rows that were never processed, and find none until they
    begin at the head again.
    """
    await add(
        postgresql_database,
        *(Volume(id=uuid.UUID(int=number), last_processed_at=LONG_AGO) for number in (1, 2)),
    )
    await spoil(postgresql_database, "volumes", "last_processed_at", "20000-01-01")
    keys, reached = await claimed_behind(postgresql_database, VOLUMES, None, limit=2)
    assert [key.int for key in keys] == [2, 1]
    assert reached is not None
    assert (reached.place, reached.key.int) == (LONG_AGO, 2)
