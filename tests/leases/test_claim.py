"""The claim: who gets a row, for how long, and who does not."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import select

from rowlock import get_locker
from rowlock.leases import claim as claim_module
from rowlock.testing import TemporaryDatabase

from ..host import Run, Volume
from .ground import LOCK_TIMEOUT, MARGIN, RUNS, VOLUMES, add, change, claimed, row_of


async def test_no_more_than_the_limit_is_leased(database: TemporaryDatabase) -> None:
    """Rows would be leased for which there is no place in the queue."""
    await add(database, *(Volume() for _ in range(7)))
    assert len(await claimed(database, limit=3)) == 3
    async with database.session_factory() as session:
        tokens = (await session.scalars(select(Volume.lock_token))).all()
    assert sum(token is not None for token in tokens) == 3


async def test_without_a_schedule_every_attempt_is_the_first(database: TemporaryDatabase) -> None:
    """A host that gives up after so many attempts would give up too early, though nobody counts
    them.
    """
    await add(database, Volume())
    assert [item.attempt for item in await claimed(database)] == [1]


@pytest.mark.parametrize("passed", [timedelta(0), LOCK_TIMEOUT - timedelta(milliseconds=1)])
async def test_a_live_lease_is_never_stolen(
    database_with_clock: TemporaryDatabase, passed: timedelta
) -> None:
    """A row would be taken from a holder that still works on it."""
    await add(database_with_clock, Volume())
    await claimed(database_with_clock)
    database_with_clock.clock.advance(passed)
    assert await claimed(database_with_clock) == []


@pytest.mark.parametrize("owner", ["Me", "Somebody"])
async def test_a_lease_that_has_ended_keeps_nobody_away(
    database_with_clock: TemporaryDatabase, owner: str
) -> None:
    """A row would wait for a pipeline that died with it, though another pipeline of its model
    wants it.
    """
    await add(database_with_clock, Volume())
    await claimed(database_with_clock, owner="Me")
    database_with_clock.clock.advance(LOCK_TIMEOUT - timedelta(milliseconds=1))
    assert await claimed(database_with_clock, owner=owner) == []
    database_with_clock.clock.advance(timedelta(milliseconds=1))
    (item,) = await claimed(database_with_clock, owner=owner)
    assert item.prev_lock_expired


async def test_a_death_costs_the_pipeline_that_died_and_no_other(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A row that one pipeline never finishes would be given up by its sibling, which had not
    even tried.
    """
    await add(database_with_clock, Run(id=1, due_at=database_with_clock.clock.now))
    attempts = []
    for owner in ("Me", "Somebody", "Somebody", "Me"):
        (item,) = await claimed(database_with_clock, RUNS, owner=owner)
        attempts.append((item.attempt, item.prev_lock_expired))
        database_with_clock.clock.advance(LOCK_TIMEOUT)
    assert attempts == [(1, False), (1, True), (2, True), (2, True)]


@pytest.mark.parametrize("holder", ["Somebody:7", "billing:1a2b3c4d"])
async def test_who_held_a_row_for_another_did_not_work_on_it(
    database_with_clock: TemporaryDatabase, holder: str
) -> None:
    """The heir would look for side effects that cannot exist, and free what is none of its
    business.
    """
    database = database_with_clock
    await add(
        database,
        Volume(lock_token=uuid.uuid4(), lock_owner=holder, lock_expires_at=database.clock.now),
    )
    (item,) = await claimed(database)
    assert not item.prev_lock_expired


async def test_a_dead_holder_has_cost_an_attempt(database_with_clock: TemporaryDatabase) -> None:
    """A row that kills its process would be tried for ever, since nobody is left to count."""
    await add(database_with_clock, Run(id=1, due_at=database_with_clock.clock.now))
    (first,) = await claimed(database_with_clock, RUNS)
    database_with_clock.clock.advance(LOCK_TIMEOUT)
    (second,) = await claimed(database_with_clock, RUNS)
    assert (first.attempt, second.attempt) == (1, 2)
    assert (await row_of(database_with_clock, RUNS, 1)).attempts == 1


async def test_keys_in_the_lockset_are_skipped(sqlite_database: TemporaryDatabase) -> None:
    """A row that a service of this process holds would be worked on at the same time."""
    busy, free = Volume(), Volume()
    await add(sqlite_database, busy, free)
    async with get_locker("sqlite").lock_ctx("volumes", [busy.id]):
        assert [item.id for item in await claimed(sqlite_database)] == [free.id]
    assert [item.id for item in await claimed(sqlite_database)] == [busy.id]


async def test_trust_is_counted_from_before_the_claim_was_sent(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow answer would stretch the holder's trust beyond the lease."""
    await add(database, Volume())
    asked = iter([100.0, 200.0])
    monkeypatch.setattr(claim_module, "monotonic", lambda: next(asked))
    (item,) = await claimed(database)
    assert item.trusted_until == 100.0 + (LOCK_TIMEOUT - MARGIN).total_seconds()


async def test_a_token_taken_back_by_hand_frees_the_row(database: TemporaryDatabase) -> None:
    """An administrator who clears the lock columns would not free the row."""
    await add(database, Volume())
    (item,) = await claimed(database)
    await change(database, VOLUMES, item.id, lock_token=None, lock_owner=None, lock_expires_at=None)
    assert [again.id for again in await claimed(database)] == [item.id]
