"""A person releases a row while its holder is anywhere between two statements."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.util import await_only

from rowlock import TransactionTimeout
from rowlock.insight import Insight, LeaseChanged
from rowlock.insight import actions as actions_module
from rowlock.testing import Failpoints, TemporaryDatabase, stepping

from ..host import Base, Run, RunPipeline
from ..lengths import at_length
from ..pipelines.scenes import is_free, read
from ..simulator.judge.checker import check
from ..simulator.judge.history import install_historian, read_history
from .test_actions import BY, seen_on

BOUNDARIES_MAX = 60
"""More than a claim and an outcome have."""


async def raced(database: TemporaryDatabase, number: int) -> tuple[bool, str]:
    """Release run `number` at so many boundaries into its attempt; return whether there was such
    a boundary, and what came of the release.
    """
    run = Run(id=number)
    async with database.session_factory.begin() as session:
        session.add(run)
    engine = database.create_engine()
    actions = Insight(database.session_factory, [RunPipeline()])
    came: list[str] = []

    async def release() -> None:
        seen = await seen_on(database, run)
        try:
            await actions.release(Run, number, seen=seen, force=True, **BY)
        except (LeaseChanged, TransactionTimeout, DBAPIError) as refused:
            came.append(type(refused).__name__)
        else:
            came.append("released" if seen.token else "was free")

    def act(_boundary: object) -> None:
        await_only(asyncio.get_running_loop().create_task(release()))

    sessions = async_sessionmaker(engine, expire_on_commit=False)
    pipeline = RunPipeline()
    async with stepping(sessions, pipeline) as steps:
        with Failpoints(engine, at=number - 1, act=act) as points:
            await steps.fetch_once()
            await steps.work_all()
        # Whatever was released is claimed again, by whoever comes next.
        while (await read(database, run)).status == "queued":
            await steps.fetch_once()
            await steps.work_all()
    assert is_free(await read(database, run))
    return points.reached is not None, "".join(came)


async def test_release_races_a_claim_and_its_outcome_anywhere(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outcome that a person has taken the lease from would be written after all, or a row be
    worked on twice under one lease, or never again.
    """
    # On SQLite the holder may have the write lock, and waits for the person here.
    monkeypatch.setattr(actions_module, "ACTION_TIMEOUT", timedelta(seconds=0.2))
    await database.create_tables(Base.metadata)
    async with database.engine.begin() as connection:
        await install_historian(connection, [Run])
    outcomes: list[str] = []
    for number in count(1, at_length(2, 1)):
        assert number < BOUNDARIES_MAX
        is_reached, came = await raced(database, number)
        if not is_reached:
            break
        outcomes.append(came)
    assert "released" in outcomes
    async with database.engine.connect() as connection:
        history = await read_history(connection)
    assert_well(history)


def assert_well(history: list[Any]) -> None:
    """Each row has one outcome, and no promise was broken."""
    assert [str(violation) for violation in check(history)] == []
    settled = [
        change.key
        for change in history
        if change.before is not None
        and change.after is not None
        and change.before.last_processed_at != change.after.last_processed_at
    ]
    assert len(settled) == len(set(settled)) > 0
