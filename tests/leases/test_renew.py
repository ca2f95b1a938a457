"""Renewal: only one's own lease, only while it lasts, and nobody waits for anybody."""

from __future__ import annotations

import uuid
from datetime import timedelta

from rowlock.leases.renew import renew, tokens_still_held
from rowlock.testing import TemporaryDatabase

from ..host import Volume
from .ground import LOCK_TIMEOUT, VOLUMES, add, change, claimed, row_of, transact


async def test_a_lease_is_extended_from_now(database_with_clock: TemporaryDatabase) -> None:
    """Work that takes longer than a lease would lose its row."""
    await add(database_with_clock, Volume())
    (item,) = await claimed(database_with_clock)
    database_with_clock.clock.advance(20)
    confirmed = await transact(
        database_with_clock, lambda c: renew(c, VOLUMES, [item], lock_timeout=LOCK_TIMEOUT)
    )
    assert confirmed == {item.lock_token: database_with_clock.clock.now + LOCK_TIMEOUT}
    assert (
        await row_of(database_with_clock, VOLUMES, item.id)
    ).lock_expires_at == database_with_clock.clock.now + LOCK_TIMEOUT


async def test_each_renewal_has_its_own_length(database_with_clock: TemporaryDatabase) -> None:
    """Of two pipelines over one table, one would renew for as long as the other, by the
    statement that was kept for it.
    """
    await add(database_with_clock, Volume())
    (item,) = await claimed(database_with_clock)
    for lock_timeout in (timedelta(seconds=41), timedelta(seconds=42), timedelta(seconds=41)):
        confirmed = await transact(
            database_with_clock, lambda c, t=lock_timeout: renew(c, VOLUMES, [item], lock_timeout=t)
        )
        assert confirmed == {item.lock_token: database_with_clock.clock.now + lock_timeout}


async def test_the_lease_of_another_is_not_extended(database: TemporaryDatabase) -> None:
    """A late heartbeat would keep a row away from its new holder's heirs."""
    await add(database, Volume(), Volume())
    mine, lost = await claimed(database)
    await change(database, VOLUMES, lost.id, lock_token=uuid.uuid4())
    before = (await row_of(database, VOLUMES, lost.id)).lock_expires_at
    confirmed = await transact(
        database, lambda c: renew(c, VOLUMES, [mine, lost], lock_timeout=LOCK_TIMEOUT * 2)
    )
    assert set(confirmed) == {mine.lock_token}
    assert (await row_of(database, VOLUMES, lost.id)).lock_expires_at == before


async def test_a_token_of_another_row_does_not_count(database: TemporaryDatabase) -> None:
    """A duplicated token would extend leases of rows that are not ours."""
    await add(database, Volume(), Volume())
    one, other = await claimed(database)
    swapped = one.lock_token
    other.lock_token = swapped
    confirmed = await transact(
        database, lambda c: renew(c, VOLUMES, [other], lock_timeout=LOCK_TIMEOUT)
    )
    assert confirmed == {}


async def test_an_expired_lease_is_not_revived(database_with_clock: TemporaryDatabase) -> None:
    """A holder that slept would get its row back, though others were free to take it meanwhile."""
    database = database_with_clock
    await add(database, Volume())
    (item,) = await claimed(database)
    database.clock.advance(LOCK_TIMEOUT)
    assert (
        await transact(database, lambda c: renew(c, VOLUMES, [item], lock_timeout=LOCK_TIMEOUT))
        == {}
    )
    assert (await row_of(database, VOLUMES, item.id)).lock_expires_at == database.clock.now


async def test_five_hundred_leases_are_one_statement(database: TemporaryDatabase) -> None:
    """A busy replica would run into the limits of the database's parser."""
    await add(database, *(Volume() for _ in range(500)))
    items = await claimed(database, limit=500)
    confirmed = await transact(
        database, lambda c: renew(c, VOLUMES, items, lock_timeout=LOCK_TIMEOUT)
    )
    assert len(confirmed) == 500


async def test_held_means_mine_and_not_over(database_with_clock: TemporaryDatabase) -> None:
    """A holder would not hear that its row was taken, or that its lease is over."""
    database = database_with_clock
    await add(database, Volume(), Volume())
    mine, lost = await claimed(database)
    await change(database, VOLUMES, lost.id, lock_token=uuid.uuid4())
    held = await transact(database, lambda c: tokens_still_held(c, VOLUMES, [mine, lost]))
    assert held == {mine.lock_token}
    database.clock.advance(LOCK_TIMEOUT + timedelta(seconds=1))
    assert (
        await transact(database, lambda c: tokens_still_held(c, VOLUMES, [mine, lost]))
        == frozenset()
    )
