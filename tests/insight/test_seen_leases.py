"""Actions that are done only while a row's lease is the one that a person was shown."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.util import await_only

from rowlock.insight import Insight, LeaseChanged, RowNotFound, SeenLease
from rowlock.rows.database_time import database_time_after
from rowlock.testing import Failpoints, TemporaryDatabase

from .shop import DEAD_TOKEN, TOKEN, Base, Volume, VolumePipeline

BY: Final = {"by": "alice", "reason": "provider down"}
VERBS: Final = ("park", "unpark", "make_due", "release")
BOUNDARIES_MAX: Final = 12
"""More than an action has."""


async def leased(engine: AsyncEngine, token: object, **values: Any) -> None:
    """Write volume 17 with a lease of `token`."""
    async with engine.begin() as connection:
        await connection.execute(
            update(Volume).values(
                lock_owner="VolumePipeline",
                lock_token=token,
                lock_expires_at=database_time_after(timedelta(hours=1)),
                **values,
            )
        )


async def columns(database: TemporaryDatabase) -> Any:
    async with database.engine.connect() as connection:
        asked = select(
            Volume.parked_at, Volume.due_at, Volume.attempts, Volume.last_error, Volume.lock_token
        )
        return (await connection.execute(asked)).one()


async def prepared(database: TemporaryDatabase, verb: str) -> Any:
    """Make volume 17, parked if it is to be put back, and return it."""
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add(Volume(id=17, attempts=3))
    is_parked = {"parked_at": database_time_after(timedelta(0))} if verb == "unpark" else {}
    await leased(database.engine, TOKEN, **is_parked)
    return await columns(database)


@pytest.mark.parametrize("verb", VERBS)
async def test_an_action_on_another_lease_writes_nothing(
    database: TemporaryDatabase, verb: str
) -> None:
    """A person who looked at one holder would act on the next one."""
    before = await prepared(database, verb)
    insight = Insight(database.session_factory, [VolumePipeline()])
    force: dict[str, Any] = {"force": True} if verb == "release" else {}
    act = getattr(insight, verb)
    for seen in (SeenLease("VolumePipeline", str(DEAD_TOKEN)), SeenLease(None, None)):
        with pytest.raises(LeaseChanged, match="VolumePipeline has it now"):
            await act(Volume, 17, seen=seen, **force, **BY)
    assert await columns(database) == before
    with pytest.raises(RowNotFound):
        await act(Volume, 18, seen=SeenLease(None, None), **force, **BY)
    await act(Volume, 17, seen=SeenLease("VolumePipeline", str(TOKEN)), **force, **BY)
    assert await columns(database) != before


@pytest.mark.parametrize("verb", VERBS)
async def test_a_claim_between_any_two_statements_is_noticed(
    sqlite_database: TemporaryDatabase, verb: str
) -> None:
    """Between the comparison and the write another holder would take the row, and be acted on."""
    await prepared(sqlite_database, verb)
    engine = sqlite_database.create_engine()
    insight = Insight(async_sessionmaker(engine), [VolumePipeline()])
    force: dict[str, Any] = {"force": True} if verb == "release" else {}
    others = create_async_engine(sqlite_database.url, connect_args={"timeout": 0})

    def claim(_boundary: object) -> None:
        # The action may have the write lock; then there is no such claim.
        with suppress(OperationalError):
            await_only(leased(others, DEAD_TOKEN))

    seen, outcomes = SeenLease("VolumePipeline", str(TOKEN)), []
    for number in range(BOUNDARIES_MAX):
        parked = {"parked_at": database_time_after(timedelta(0))} if verb == "unpark" else {}
        await leased(sqlite_database.engine, TOKEN, **parked)
        with Failpoints(engine, at=number, act=claim) as points:
            before = await columns(sqlite_database)
            try:
                await getattr(insight, verb)(Volume, 17, seen=seen, **force, **BY)
            except LeaseChanged:
                after = await columns(sqlite_database)
                assert after.lock_token == DEAD_TOKEN
                assert after[:4] == before[:4]
                outcomes.append("refused")
            else:
                outcomes.append("done")
        if points.reached is None:
            break
    await others.dispose()
    assert "refused" in outcomes
    assert outcomes[-1] == "done"
