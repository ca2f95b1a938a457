"""Rows that somebody changes by hand under their holder: only that row is affected."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import delete, text, update

from rowlock import Apply, Park, Reset, Retry, events
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from ..pipelines.scenes import add, change, counted, is_free, read, read_all

OUTCOMES = [Apply({"status": "done"}), Retry(error="no"), Reset(), Park("enough"), ValueError("no")]
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
FAR_OFF = datetime(9998, 1, 1, tzinfo=UTC)


async def delete_run(database: TemporaryDatabase, key: int) -> None:
    async with database.session_factory.begin() as session:
        await session.execute(delete(Run).where(Run.id == key))


async def move_run(database: TemporaryDatabase, key: int) -> None:
    async with database.session_factory.begin() as session:
        await session.execute(update(Run).where(Run.id == key).values(id=key + 100))


@pytest.mark.parametrize("answer", OUTCOMES, ids=lambda answer: type(answer).__name__)
@pytest.mark.parametrize("act", [delete_run, move_run])
async def test_a_row_that_is_gone_takes_nothing_with_it(
    database: TemporaryDatabase, act: Callable[..., Any], answer: Any
) -> None:
    """An outcome for a row that is not there any more would be an error, or spoil the outcomes
    beside it.
    """
    await add(database, *(Run(id=number) for number in (1, 2, 3)))

    async def process(item: Any) -> Any:
        if item.id != 2:
            return Apply({"status": "done"})
        await act(database, 2)
        return answer

    pipeline = RunPipeline(answer=lambda item: answer_or_raise(process(item)))
    with heard_events() as heard:
        async with stepping(database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            await steps.work_all()
            assert steps.run.statistics().tracked == 0
            assert (counted(steps)["applied"], counted(steps)["stale"]) == (2, 1)
    assert [(event.row_id, event.reason) for event in heard.of(events.ItemStale)] == [(2, "stale")]
    rows = {row.id: row for row in await read_all(database, Run)}
    assert {key: row.status for key, row in rows.items() if key < 100} == {1: "done", 3: "done"}
    assert all(
        row.status == "queued" and row.last_error is None for key, row in rows.items() if key > 100
    )


async def answer_or_raise(answering: Any) -> Any:
    answer = await answering
    if isinstance(answer, BaseException):
        raise answer
    return answer


async def test_a_row_whose_key_was_changed_is_found_again(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A row that was renamed under its holder would keep the dead token for ever."""
    await add(database_with_clock, Run(id=1))
    async with stepping(database_with_clock.session_factory, RunPipeline()) as steps:
        await steps.fetch_once()
        await move_run(database_with_clock, 1)
        await steps.work_all()
        assert await steps.fetch_once() == []
        database_with_clock.clock.advance(31)
        [item] = await steps.fetch_once()
        assert (item.id, item.prev_lock_expired) == (101, True)
        await steps.work_all()
    [row] = await read_all(database_with_clock, Run)
    assert (row.status, is_free(row)) == ("done", True)


async def test_a_row_that_is_gone_from_the_queue_is_not_begun(database: TemporaryDatabase) -> None:
    """`process` would be called for a row that is not there."""
    await add(database, Run(id=1), Run(id=2))
    pipeline = RunPipeline()
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await delete_run(database, 1)
        await steps.work_all()
        assert counted(steps)["stale"] == 1
    assert [item.id for item in pipeline.items] == [2]


async def test_the_renewal_of_a_row_that_is_gone_loses_that_one_only(
    database: TemporaryDatabase,
) -> None:
    """A row that was deleted would cost the leases of those that are renewed with it."""
    await add(database, *(Run(id=number) for number in (1, 2, 3)))
    async with stepping(database.session_factory, RunPipeline(**_always_due())) as steps:
        await steps.fetch_once()
        await delete_run(database, 2)
        assert await steps.beat_once() == 2
        assert [item.id for item in steps.queued] == [1, 3]
        assert counted(steps)["leases_lost"] == 1


def _always_due() -> dict[str, Any]:
    # So that every beat renews: what is left of a lease is always less than the trigger.
    return {"lock_timeout": 30, "heartbeat_trigger": 29.999, "lease_margin": 1}


# ---------------------------------------------------------------- lock columns

STALE, WRITTEN = "stale", "written"
BY_HAND: list[tuple[str, dict[str, Any], str]] = [
    ("token null", {"lock_token": None}, STALE),
    ("token of another", {"lock_token": uuid.uuid4()}, STALE),
    ("all null", {"lock_token": None, "lock_owner": None, "lock_expires_at": None}, STALE),
    ("owner null", {"lock_owner": None}, WRITTEN),
    ("owner of another", {"lock_owner": "Somebody"}, WRITTEN),
    ("expiry null", {"lock_expires_at": None}, WRITTEN),
    ("expiry past", {"lock_expires_at": LONG_AGO}, WRITTEN),
    ("expiry far off", {"lock_expires_at": FAR_OFF}, WRITTEN),
]


@pytest.mark.parametrize(
    ("values", "expected"), [case[1:] for case in BY_HAND], ids=[case[0] for case in BY_HAND]
)
@pytest.mark.parametrize("model", [Volume, Run], ids=lambda model: model.__name__)
async def test_the_token_alone_says_whose_row_it_is(
    database: TemporaryDatabase, model: Any, values: dict[str, Any], expected: str
) -> None:
    """A result would be dropped although nobody else has the row, or be written although
    somebody has.
    """
    one, other = await add(database, model(), model())
    pipeline_class = VolumePipeline if model is Volume else RunPipeline
    first = one.status

    async def overwrite(item: Any) -> Apply:
        if item.id == one.id:
            await change(database, one, **values)
        return Apply({"status": "changed"})

    pipeline = pipeline_class(answer=overwrite)
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_all()
    after = await read(database, one)
    if expected is WRITTEN:
        assert (after.status, is_free(after)) == ("changed", True)
    else:
        untouched = {name: getattr(after, name) for name in values}
        assert (after.status, untouched) == (first, values)
        assert [item.id for item, _ in pipeline.stale] == [one.id]
    neighbour = await read(database, other)
    assert (neighbour.status, is_free(neighbour)) == ("changed", True)


@pytest.mark.parametrize("expires_at", [None, LONG_AGO], ids=["null", "past"])
async def test_a_lease_that_was_ended_by_hand_is_lost_at_the_next_beat(
    database: TemporaryDatabase, expires_at: datetime | None
) -> None:
    """A holder would go on, and renew the lease, although others may take the row."""
    volume, other = await add(database, Volume(), Volume())
    async with stepping(database.session_factory, VolumePipeline(**_always_due())) as steps:
        await steps.fetch_once()
        await change(database, volume, lock_expires_at=expires_at)
        assert await steps.beat_once() == 1
        assert [item.id for item in steps.queued] == [other.id]
    assert (await read(database, volume)).lock_expires_at == expires_at


LEFT_BY_HAND: list[tuple[str, dict[str, Any]]] = [
    ("a token alone", {"lock_token": uuid.uuid4()}),
    ("a token and an expiry", {"lock_token": uuid.uuid4(), "lock_expires_at": LONG_AGO}),
    ("an expiry alone", {"lock_expires_at": LONG_AGO}),
    ("the pipeline's own name", {"lock_owner": "VolumePipeline"}),
    ("another's name", {"lock_owner": "Gone"}),
    ("another's name and expiry", {"lock_owner": "Gone", "lock_expires_at": LONG_AGO}),
    ("another's name and token", {"lock_owner": "Gone", "lock_token": uuid.uuid4()}),
    (
        "all of another",
        {"lock_owner": "Gone", "lock_token": uuid.uuid4(), "lock_expires_at": LONG_AGO},
    ),
]


@pytest.mark.parametrize(
    "values", [case[1] for case in LEFT_BY_HAND], ids=[case[0] for case in LEFT_BY_HAND]
)
@pytest.mark.parametrize("processed", [False, True])
async def test_no_leftover_keeps_a_row_for_ever(
    database: TemporaryDatabase, values: dict[str, Any], processed: bool
) -> None:
    """Half a lock, as hands or a restored backup leave it, would keep the row from everybody
    without an end.
    """
    last = LONG_AGO if processed else None
    [volume] = await add(database, Volume(**values, last_processed_at=last))
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        if not await steps.fetch_once():
            assert await steps.sweep_once() == 1
            await steps.fetch_once()
        await steps.work_all()
    after = await read(database, volume)
    assert (after.status, is_free(after)) == ("active", True)


@pytest.mark.parametrize(
    "values",
    [case[1] for case in LEFT_BY_HAND if "lock_owner" in case[1]],
    ids=[c[0] for c in LEFT_BY_HAND if "lock_owner" in c[1]],
)
@pytest.mark.parametrize("processed", [False, True])
async def test_no_leftover_stays_on_a_row_that_nobody_wants(
    database: TemporaryDatabase, values: dict[str, Any], processed: bool
) -> None:
    """A row that is not ready is claimed by nobody: what hands left there would say for ever
    that somebody works on it.
    """
    last = LONG_AGO if processed else None
    [volume] = await add(database, Volume(**values, status="active", last_processed_at=last))
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        assert await steps.fetch_once() == []
        assert await steps.sweep_once() == 1
    assert is_free(await read(database, volume))


async def test_a_token_on_two_rows_writes_to_one(database: TemporaryDatabase) -> None:
    """A row that was copied with its lock columns would be written, renewed or freed by the
    holder of the other one.
    """
    original, copy, other = await add(database, Volume(), Volume(status="copied"), Volume())
    async with stepping(database.session_factory, VolumePipeline(**_always_due())) as steps:
        items = {item.id: item for item in await steps.fetch_once()}
        lease = {
            name: getattr(items[original.id], name)
            for name in ("lock_token", "lock_owner", "lock_expires_at")
        }
        await change(database, copy, **lease)
        assert await steps.beat_once() == 2
        await steps.work_all()
    after = await read(database, copy)
    assert {name: getattr(after, name) for name in lease} == lease
    assert (after.status, after.last_processed_at) == ("copied", None)
    for row in (original, other):
        assert ((await read(database, row)).status, is_free(await read(database, row))) == (
            "active",
            True,
        )


async def test_both_rows_of_a_token_are_given_back_by_key(database: TemporaryDatabase) -> None:
    """A shutdown would free a row that another holder works on, because it has the same token."""
    original, copy = await add(database, Volume(), Volume(status="copied"))
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        await change(
            database, copy, lock_token=item.lock_token, lock_expires_at=item.lock_expires_at
        )
    assert is_free(await read(database, original))
    assert (await read(database, copy)).lock_token == item.lock_token


# ---------------------------------------------------------------- times


async def test_a_time_without_a_zone_is_refused_and_costs_its_own_row_only(
    database: TemporaryDatabase,
) -> None:
    """A naive time would be taken for local time, or take the outcomes beside it along."""
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - what hosts bind by mistake
    one, other = await add(database, Run(id=1), Run(id=2))

    def answer(item: Any) -> Apply:
        return Apply({"status": "done"} | ({"updated_at": naive} if item.id == 1 else {}))

    async with stepping(database.session_factory, RunPipeline(answer=answer)) as steps:
        await steps.fetch_once()
        await steps.work_all()
    failed = await read(database, one)
    assert (failed.status, failed.attempts, is_free(failed)) == ("queued", 1, True)
    assert "has no time zone" in failed.last_error
    assert (await read(database, other)).status == "done"


@pytest.mark.parametrize(
    "written", ["2020-01-01 00:00:00", "2020-01-01T00:00:00", "2020-01-01 00:00:00+00:00"]
)
@pytest.mark.parametrize("column", ["lock_expires_at", "last_processed_at", "due_at"])
async def test_times_that_others_write_without_a_zone_are_read_as_utc(
    database: TemporaryDatabase, column: str, written: str
) -> None:
    """A row that an SQL script has written would never be worked on."""
    [run] = await add(database, Run())
    async with database.engine.begin() as connection:
        if database.dialect_name == "postgresql":
            await connection.execute(text("SET LOCAL timezone = 'UTC'"))
        await connection.execute(text(f"UPDATE runs SET {column} = '{written}'"))
    async with stepping(database.session_factory, RunPipeline()) as steps:
        await steps.fetch_once()
        await steps.work_all()
    after = await read(database, run)
    assert (after.status, is_free(after)) == ("done", True)


async def statuses_beside(database: TemporaryDatabase, spoilt: str) -> list[str]:
    """Spoil a row by hand, work on it and on another one, and return what became of both."""
    await add(database, Run(id=1), Run(id=2))
    async with database.engine.begin() as connection:
        await connection.execute(
            text(f"UPDATE runs SET {spoilt}, lock_owner = 'RunPipeline' WHERE id = 1")
        )
    async with stepping(database.session_factory, RunPipeline()) as steps:
        await steps.fetch_once()
        await steps.work_all()
    async with database.engine.connect() as connection:
        return list(await connection.scalars(text("SELECT status FROM runs ORDER BY id")))


NO_TIMES = ["", "0", "1700000000", "1700000000.5", "no time", "9999-99-99"]


@pytest.mark.parametrize("written", NO_TIMES)
@pytest.mark.parametrize(
    "column", ["lock_expires_at", "lock_token", "last_processed_at", "due_at", "attempts"]
)
async def test_what_is_no_value_of_its_column_costs_its_own_row_only(
    sqlite_database: TemporaryDatabase, column: str, written: str
) -> None:
    """SQLite keeps whatever a script writes: one such row would fail every claim, and stop the
    pipeline for all rows.
    """
    spoilt_row, other_row = await statuses_beside(sqlite_database, f"{column} = '{written}'")
    assert spoilt_row in {"queued", "done"}
    assert other_row == "done"


@pytest.mark.parametrize("column", ["lock_expires_at", "last_processed_at", "due_at"])
@pytest.mark.parametrize("written", ["infinity", "-infinity"])
async def test_infinite_times_cost_their_own_row_only(
    postgresql_database: TemporaryDatabase, column: str, written: str
) -> None:
    """A time that Python cannot hold would fail every claim, and stop the pipeline for all rows."""
    waits = (column, written) in {("lock_expires_at", "infinity"), ("due_at", "infinity")}
    # psycopg refuses to read them: the row is parked.
    is_parked = column != "lock_expires_at" and postgresql_database.driver == "psycopg"
    spoilt = f"{column} = '{written}'"
    assert await statuses_beside(postgresql_database, spoilt) == [
        "queued" if waits or is_parked else "done",
        "done",
    ]


@pytest.mark.parametrize("kept", ["NEW.status = 'done'", "NEW.lock_token IS NULL"])
async def test_a_row_that_a_trigger_keeps_is_not_taken_for_written(
    database: TemporaryDatabase, kept: str
) -> None:
    """Its outcome would count as applied while the row stays leased, and is worked on again."""
    spoilt, _ = await add(database, Run(id=1), Run(id=2))
    when = f"CREATE TRIGGER keep BEFORE UPDATE ON runs FOR EACH ROW WHEN (NEW.id = 1 AND {kept})"
    async with database.engine.begin() as connection:
        if database.dialect_name == "sqlite":
            await connection.execute(text(f"{when} BEGIN SELECT RAISE(IGNORE); END"))
        else:
            keep = "FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
            await connection.execute(text(f"CREATE {keep}"))
            await connection.execute(text(f"{when} EXECUTE FUNCTION keep()"))
    async with stepping(database.session_factory, RunPipeline()) as steps:
        assert len(await steps.fetch_once()) == 2
        await steps.work_all()
        assert counted(steps)["applied"] == 1
    assert "lock" in kept or "written: a trigger" in str((await read(database, spoilt)).last_error)
