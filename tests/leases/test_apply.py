"""Applying: under the guard, all or nothing, and nothing else."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import delete, text

from rowlock.errors import OutcomeError
from rowlock.leases.apply import RowWrite, Written, apply_locked, lock_for_apply, processed_at
from rowlock.rows.database_time import STAMP_SPREAD, STAMP_STEP
from rowlock.rows.lease_values import due_values, processed_values, unlocked_values
from rowlock.testing import TemporaryDatabase

from ..host import Run, Volume
from .ground import RUNS, VOLUMES, add, apply, change, claimed, row_of, transact

STATUS, DISK = VOLUMES.column("status"), VOLUMES.column("disk_id")
UNLOCKED = unlocked_values(VOLUMES)


async def test_values_and_unlocking_are_one_write(database: TemporaryDatabase) -> None:
    """A row would be seen with its result and its lock, or with neither."""
    await add(database, Volume())
    (item,) = await claimed(database)
    write = RowWrite({STATUS: "active", **UNLOCKED})
    assert (
        await transact(database, lambda c: apply(c, VOLUMES, item, write=write)) is Written.APPLIED
    )
    row = await row_of(database, VOLUMES, item.id)
    assert row.status == "active"
    assert (row.lock_token, row.lock_owner, row.lock_expires_at) == (None, None, None)


async def test_under_another_token_nothing_is_written(database: TemporaryDatabase) -> None:
    """A late result would overwrite what the new holder does, and unlock its row."""
    await add(database, Volume())
    (item,) = await claimed(database)
    token = uuid.uuid4()
    await change(database, VOLUMES, item.id, lock_token=token)
    write = RowWrite({STATUS: "active", **UNLOCKED})
    assert await transact(database, lambda c: apply(c, VOLUMES, item, write=write)) is Written.STALE
    row = await row_of(database, VOLUMES, item.id)
    assert (row.status, row.lock_token, row.lock_owner) == ("submitted", token, "Me")


async def test_under_another_key_nothing_is_written(database: TemporaryDatabase) -> None:
    """With a duplicated token, a result would be written to every row that carries it."""
    await add(database, Volume(), Volume())
    one, other = await claimed(database)
    await change(database, VOLUMES, other.id, lock_token=one.lock_token)
    write = RowWrite({STATUS: "active"})
    assert (
        await transact(database, lambda c: apply(c, VOLUMES, one, write=write)) is Written.APPLIED
    )
    assert (await row_of(database, VOLUMES, other.id)).status == "submitted"


async def test_only_the_named_columns_change(database: TemporaryDatabase) -> None:
    """What a service wrote while the row was worked on would be lost."""
    await add(database, Volume(size_gb=1))
    (item,) = await claimed(database)
    await change(database, VOLUMES, item.id, size_gb=9)
    await transact(database, lambda c: apply(c, VOLUMES, item, write=RowWrite({STATUS: "active"})))
    assert (await row_of(database, VOLUMES, item.id)).size_gb == 9


@pytest.mark.parametrize(
    ("before", "meanwhile", "written"),
    [
        (None, None, Written.APPLIED),
        ("a", "a", Written.APPLIED),
        (None, "b", Written.CHANGED),
        ("a", None, Written.CHANGED),
        ("a", "b", Written.CHANGED),
    ],
)
async def test_a_value_that_changed_meanwhile_stops_the_write(
    database: TemporaryDatabase, before: str | None, meanwhile: str | None, written: Written
) -> None:
    """A stop that a service asked for would be overwritten by a result computed before it."""
    await add(database, Volume(disk_id=before))
    (item,) = await claimed(database)
    await change(database, VOLUMES, item.id, disk_id=meanwhile)
    write = RowWrite(
        {STATUS: "active", **UNLOCKED}, unless_changed={DISK: before}, when_changed=UNLOCKED
    )
    assert await transact(database, lambda c: apply(c, VOLUMES, item, write=write)) is written
    row = await row_of(database, VOLUMES, item.id)
    assert row.status == ("active" if written is Written.APPLIED else "submitted")
    assert (row.disk_id, row.lock_token) == (meanwhile, None)


@pytest.mark.parametrize("waits", [False, True])
async def test_the_processing_time_never_goes_back(
    database_with_clock: TemporaryDatabase, waits: bool
) -> None:
    """A clock that was set back would put the row in front of others that wait for longer, or
    hide what was committed.
    """
    later = database_with_clock.clock.now
    await add(database_with_clock, Volume(last_processed_at=later))
    database_with_clock.clock.advance(60)
    (item,) = await claimed(database_with_clock)
    database_with_clock.clock.set(later - timedelta(minutes=50))
    now, stamps = await transact(
        database_with_clock, lambda c: lock_for_apply(c, VOLUMES, [item], waits=waits)
    )
    again, same = await transact(
        database_with_clock, lambda c: lock_for_apply(c, VOLUMES, [item], waits=waits)
    )
    assert (
        (now, stamps)
        == (again, same)
        == (database_with_clock.clock.now, {item.lock_token: stamps[item.lock_token]})
    )
    assert later + STAMP_STEP <= stamps[item.lock_token] < later + STAMP_STEP + STAMP_SPREAD


async def test_a_stamp_is_the_time_of_its_transaction(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Rows that were written together would be told apart by their time."""
    database = database_with_clock
    await add(database, Volume(last_processed_at=database.clock.now - timedelta(seconds=60)))
    database.clock.advance(60)
    (item,) = await claimed(database)
    database.clock.advance(-60)
    _, stamps = await transact(database, lambda c: lock_for_apply(c, VOLUMES, [item]))
    assert list(stamps.values()) == [database.clock.now]


@pytest.mark.parametrize("last", ["9999-12-31 23:59:59.999999", "2031-05-17 13:30:00.000000"])
async def test_a_stamp_that_no_clock_wrote_is_written_anew(
    database_with_clock: TemporaryDatabase, last: str
) -> None:
    """A time that somebody wrote by hand would keep the row from its turn for years, whatever
    becomes of it.
    """
    await add(database_with_clock, Volume())
    (item,) = await claimed(database_with_clock)
    await change(
        database_with_clock,
        VOLUMES,
        item.id,
        last_processed_at=datetime.fromisoformat(last).replace(tzinfo=UTC),
    )
    _, stamps = await transact(database_with_clock, lambda c: lock_for_apply(c, VOLUMES, [item]))
    assert list(stamps.values()) == [database_with_clock.clock.now]


async def test_a_stamp_that_is_no_time_is_written_anew(sqlite_database: TemporaryDatabase) -> None:
    """One row with a word where its time should be would fail every batch that it is in."""
    await add(sqlite_database, Volume())
    (item,) = await claimed(sqlite_database)
    for written in ("zzz", "2031-99-99", "", "12:00"):
        async with sqlite_database.session_factory.begin() as session:
            await session.execute(
                text("UPDATE volumes SET last_processed_at = :written"), {"written": written}
            )
        now, stamps = await transact(sqlite_database, lambda c: lock_for_apply(c, VOLUMES, [item]))
        assert list(stamps.values()) == [now]


async def test_a_due_time_that_a_service_set_stands(database_with_clock: TemporaryDatabase) -> None:
    """A request that came while an attempt ran would wait for the minimum interval."""
    database = database_with_clock
    now = database.clock.now
    await add(database, Run(id=1, due_at=now), Run(id=2, due_at=now))
    items = {item.id: item for item in await claimed(database, RUNS)}
    requested = now + timedelta(seconds=1)
    await change(database, RUNS, 1, due_at=requested)
    later = now + timedelta(seconds=15)
    for item in items.values():
        write = RowWrite(due_values(RUNS, later, as_read=now))
        assert (
            await transact(database, lambda c, i=item, w=write: apply(c, RUNS, i, write=w), RUNS)
            is Written.APPLIED
        )
    assert (await row_of(database, RUNS, 1)).due_at == requested
    assert (await row_of(database, RUNS, 2)).due_at == later


async def test_a_batch_writes_each_row_its_own(database: TemporaryDatabase) -> None:
    """Rows that share a round trip would share their values, or one shape would be written for
    another.
    """
    await add(database, *(Volume(size_gb=size) for size in range(6)))
    items = await claimed(database)
    writes = [
        (
            item,
            (
                RowWrite({STATUS: f"s{n}", **UNLOCKED})
                if n % 2
                else RowWrite({DISK: f"d{n}", **UNLOCKED})
            ),
        )
        for n, item in enumerate(items)
    ]

    async def work(connection):  # noqa: ANN001, ANN202
        _, locked = await lock_for_apply(connection, VOLUMES, items)
        assert set(locked) == {item.lock_token for item in items}
        return await apply_locked(connection, VOLUMES, writes)

    assert await transact(database, work) == [Written.APPLIED] * 6
    for n, item in enumerate(items):
        row = await row_of(database, VOLUMES, item.id)
        assert (row.status, row.disk_id) == ((f"s{n}", None) if n % 2 else ("submitted", f"d{n}"))
        assert row.lock_token is None


async def test_a_stale_row_is_left_out_of_a_batch(database: TemporaryDatabase) -> None:
    """Within a batch, the guard would be weaker than alone."""
    await add(database, Volume(), Volume())
    stale, mine = await claimed(database)
    await change(database, VOLUMES, stale.id, lock_token=uuid.uuid4())
    _, locked = await transact(database, lambda c: lock_for_apply(c, VOLUMES, [stale, mine]))
    assert set(locked) == {mine.lock_token}
    assert (await transact(database, lambda c: lock_for_apply(c, VOLUMES, [stale])))[0] is None


async def test_a_batch_writes_nothing_to_a_row_that_was_not_locked(
    database: TemporaryDatabase,
) -> None:
    """The statement of a batch would do without the guard, and one slip in its planning would
    overwrite a row.
    """
    await add(database, Volume())
    (item,) = await claimed(database)
    await change(database, VOLUMES, item.id, lock_token=uuid.uuid4())
    writes = [(item, RowWrite({STATUS: "active"}))]
    with pytest.raises(OutcomeError, match="was not written"):
        await transact(database, lambda c: apply_locked(c, VOLUMES, writes))
    assert (await row_of(database, VOLUMES, item.id)).status == "submitted"


async def test_the_row_knows_which_transaction_processed_it(
    database_with_clock: TemporaryDatabase,
) -> None:
    """After a COMMIT whose answer was lost, nobody could tell whether it happened."""
    now = database_with_clock.clock.now
    await add(database_with_clock, Volume())
    (item,) = await claimed(database_with_clock)
    await transact(
        database_with_clock,
        lambda c: apply(
            c, VOLUMES, item, write=RowWrite({**UNLOCKED, **processed_values(VOLUMES, now)})
        ),
    )
    other = frozenset({now + timedelta(seconds=1)})
    assert await transact(
        database_with_clock, lambda c: processed_at(c, VOLUMES, [item], stamps=other | {now})
    ) == {item.id: Written.APPLIED}
    assert await transact(
        database_with_clock, lambda c: processed_at(c, VOLUMES, [item], stamps=other)
    ) == {item.id: Written.STALE}
    before = frozenset({now - timedelta(seconds=1), now + timedelta(seconds=1)})
    assert await transact(
        database_with_clock, lambda c: processed_at(c, VOLUMES, [item], stamps=before)
    ) == {item.id: Written.UNKNOWN}
    await transact(database_with_clock, lambda c: c.execute(delete(Volume)))
    assert await transact(
        database_with_clock, lambda c: processed_at(c, VOLUMES, [item], stamps=other)
    ) == {item.id: Written.UNKNOWN}
