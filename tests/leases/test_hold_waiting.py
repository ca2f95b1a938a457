"""How a service waits for rows: quickly at first, then less and less often, and never past its
time.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from rowlock import LockWaitTimeout, hold_rows
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Volume
from ..pipelines.scenes import add
from .holding import is_look, passing


@virtual_time
async def test_it_looks_often_at_first_and_then_less(virtual_database: TemporaryDatabase) -> None:
    """Services that wait would keep the database busy with asking; or one that waits for a
    moment would wait for long.
    """
    [row] = await add(virtual_database, Volume())
    async with hold_rows(virtual_database.session_factory, Volume, [row.id]):
        with passing(virtual_database.engine, is_look) as looks:

            async def wait() -> None:
                async with hold_rows(
                    virtual_database.session_factory, Volume, [row.id], timeout=60
                ):
                    pytest.fail("it is held")

            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0.2)
            assert 3 <= looks.count <= 5
            with pytest.raises(LockWaitTimeout):
                await waiting
            assert 120 <= looks.count <= 160, "twice a second, give or take a fifth"


@pytest.mark.parametrize("lock_timeout", [0.1, timedelta(seconds=0.1), 3600])
@virtual_time
async def test_how_long_the_lease_lasts_is_the_services_to_say(
    virtual_database: TemporaryDatabase, lock_timeout: timedelta | float
) -> None:
    """A service that dies would keep its rows for longer than it said, or lose them at once."""
    [row] = await add(virtual_database, Volume())
    wanted = (
        lock_timeout if isinstance(lock_timeout, timedelta) else timedelta(seconds=lock_timeout)
    )
    async with hold_rows(
        virtual_database.session_factory, Volume, [row.id], lock_timeout=lock_timeout
    ) as held:
        assert held.remaining == pytest.approx(wanted * 0.9, abs=timedelta(microseconds=10))
        [kept] = held.rows
        assert kept.lock_expires_at - virtual_database.clock.now == wanted
