"""Releasing rows, and clearing expired leases."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

import pytest

from rowlock.leases import release as release_module
from rowlock.leases.release import mend_stamps, release, sweep
from rowlock.testing import TemporaryDatabase

from ..host import Volume
from .ground import LOCK_TIMEOUT, VOLUMES, add, change, claimed, row_of, transact

LONG = LOCK_TIMEOUT * 10


async def test_a_released_row_is_as_if_it_had_never_been_claimed(
    database: TemporaryDatabase,
) -> None:
    """A row that a stopping replica did not start would wait for its lease, or go to the back of
    the order.
    """
    await add(database, Volume())
    (item,) = await claimed(database)
    assert await transact(database, lambda c: release(c, VOLUMES, [item])) == {item.id}
    row = await row_of(database, VOLUMES, item.id)
    assert (row.lock_token, row.lock_owner, row.lock_expires_at, row.last_processed_at) == (
        None,
        None,
        None,
        None,
    )
    (again,) = await claimed(database)
    assert not again.prev_lock_expired


async def test_only_ones_own_rows_are_released(database: TemporaryDatabase) -> None:
    """A stopping replica would unlock the rows of those who took over from it."""
    await add(database, Volume(), Volume())
    lost, mine = await claimed(database)
    token = uuid.uuid4()
    await change(database, VOLUMES, lost.id, lock_token=token)
    assert await transact(database, lambda c: release(c, VOLUMES, [lost, mine])) == {mine.id}
    assert (await row_of(database, VOLUMES, lost.id)).lock_token == token


def _left_behind(now: datetime, age: timedelta) -> Volume:
    return Volume(lock_token=uuid.uuid4(), lock_owner="Gone", lock_expires_at=now - age)


def _reset(now: datetime, age: timedelta) -> Volume:
    return Volume(lock_owner="Gone", last_processed_at=now - age)


async def test_what_was_left_behind_long_ago_is_cleared(
    database_with_clock: TemporaryDatabase,
) -> None:
    """The name of an owner that never comes would keep all other pipelines away."""
    now, second = database_with_clock.clock.now, timedelta(seconds=1)
    rows = [_left_behind(now, LONG + second), _reset(now, LONG + second)]
    await add(database_with_clock, *rows)
    assert await transact(database_with_clock, lambda c: sweep(c, VOLUMES, older_than=LONG)) == 2
    assert len(await claimed(database_with_clock)) == 2


async def test_a_stamp_that_no_clock_wrote_is_mended(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A row whose last time lies in another century would have no turn before that, and one that
    was reset be nobody's.
    """
    database = database_with_clock
    now, hour = database.clock.now, timedelta(hours=1)
    century, soon, held = (
        Volume(last_processed_at=now + 876_000 * hour),
        Volume(last_processed_at=now + hour),
        Volume(
            last_processed_at=now + 2 * hour,
            lock_token=uuid.uuid4(),
            lock_expires_at=now + LOCK_TIMEOUT,
        ),
    )
    reset = Volume(lock_owner="Gone", last_processed_at=now + 2 * LONG)
    await add(database, century, soon, held, reset)
    assert await transact(database, lambda c: sweep(c, VOLUMES, older_than=LONG)) == 1
    assert (await row_of(database, VOLUMES, reset.id)).lock_owner is None
    assert await transact(database, lambda c: mend_stamps(c, VOLUMES)) == 1
    last = [
        (await row_of(database, VOLUMES, row.id)).last_processed_at for row in (century, soon, held)
    ]
    assert last == [now, now + hour, now + 2 * hour]


async def test_what_may_still_be_wanted_is_left(database_with_clock: TemporaryDatabase) -> None:
    """A live lease, a lease whose own pipeline is about to take it, or a fresh intent would be
    wiped out.
    """
    now = database_with_clock.clock.now
    live = Volume(lock_token=uuid.uuid4(), lock_owner="Me", lock_expires_at=now + LOCK_TIMEOUT)
    long_running = Volume(
        lock_token=uuid.uuid4(),
        lock_owner="Me",
        lock_expires_at=now + LOCK_TIMEOUT,
        last_processed_at=now - 2 * LONG,
    )
    rows = [
        live,
        long_running,
        _left_behind(now, LONG - timedelta(seconds=1)),
        _reset(now, timedelta(seconds=1)),
    ]
    await add(database_with_clock, *rows)
    assert await transact(database_with_clock, lambda c: sweep(c, VOLUMES, older_than=LONG)) == 0


async def test_a_sweep_is_bounded(
    database_with_clock: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sweep after a great crash would hold its transaction open over the whole table."""
    database = database_with_clock
    monkeypatch.setattr(release_module, "SWEPT_ROWS_MAX", 2)
    await add(database, *(_left_behind(database.clock.now, 2 * LONG) for _ in range(3)))
    assert await transact(database, lambda c: sweep(c, VOLUMES, older_than=LONG)) == 2
    assert await transact(database, lambda c: sweep(c, VOLUMES, older_than=LONG)) == 1
