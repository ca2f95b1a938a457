"""Questions leave the host's pool to the work, however many are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import event

from rowlock.errors import TransactionTimeout
from rowlock.insight import InsightLimits
from rowlock.insight.asking import QUESTIONS_AT_ONCE_MAX
from rowlock.testing import TemporaryDatabase

from .shop import Scene, Volume, furnish, insight_of

ASKED = 4 * QUESTIONS_AT_ONCE_MAX


@contextmanager
def connections_of(database: TemporaryDatabase) -> Iterator[list[int]]:
    """Give how many connections were in use, each time that one was taken."""
    used, now = [], 0

    def taken(*_: object) -> None:
        nonlocal now
        now += 1
        used.append(now)

    def returned(*_: object) -> None:
        nonlocal now
        now -= 1

    pool = database.engine.sync_engine.pool
    event.listen(pool, "checkout", taken)
    event.listen(pool, "checkin", returned)
    yield used
    event.remove(pool, "checkout", taken)
    event.remove(pool, "checkin", returned)


async def test_questions_leave_connections_to_the_work(database: TemporaryDatabase) -> None:
    """Viewers of a slow table would have the whole pool, and outcomes would wait for them."""
    await furnish(database, Scene())
    insight = insight_of(database)
    with connections_of(database) as used:
        asked = [asyncio.create_task(insight.explain(Volume, 17)) for _ in range(ASKED)]
        await asyncio.gather(*asked)
        assert max(used) <= QUESTIONS_AT_ONCE_MAX
        gone = [asyncio.create_task(insight.explain(Volume, 17)) for _ in range(ASKED)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        ends = await asyncio.gather(*gone, return_exceptions=True)
        assert {type(end) for end in ends} == {asyncio.CancelledError}
        # Who went away has left its place.
        assert (await insight.explain(Volume, 17)).is_there


async def test_a_place_is_waited_for_so_long_and_no_longer(
    sqlite_database: TemporaryDatabase,
) -> None:
    """Behind questions that hang, each further one would hang, too."""
    await furnish(sqlite_database, Scene())
    insight = insight_of(sqlite_database, limits=InsightLimits(timeout=timedelta(seconds=0.01)))
    hours, engine = timedelta(hours=1), sqlite_database.engine.sync_engine
    async with asyncio.timeout(60):
        places = [insight._places.taken(engine, within=hours) for _ in range(QUESTIONS_AT_ONCE_MAX)]
        for place in places:
            await place.__aenter__()
        with pytest.raises(TransactionTimeout, match="to answer a question did not end"):
            await insight.explain(Volume, 17)
        for place in places:
            await place.__aexit__(None, None, None)
