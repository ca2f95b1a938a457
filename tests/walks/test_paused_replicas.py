"""A pause over real processes: once it is committed nothing is claimed, whoever dies or starts."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from rowlock import database_now
from rowlock.insight import Insight
from rowlock.testing import TemporaryDatabase

from ..host import wait_s_max
from ..insight.test_actions import Said
from ..simulator.judge.history import install_historian, read_history
from .processes import locked, post_letters, replicas
from .replica import TABLES, Base, Letter, LetterPipeline, settled

pytestmark = pytest.mark.either_database

LETTERS = 200
PAUSED_S = 1.5
"""How long it is watched: a replica fetches several times a second."""


async def now_in(database: TemporaryDatabase) -> datetime:
    async with database.engine.connect() as connection:
        now = await connection.scalar(select(database_now()))
    assert now is not None
    return now


async def test_nothing_is_claimed_behind_a_pause(database: TemporaryDatabase) -> None:
    """A replica that did not hear of it, that came to life again, or that took over from a dead
    one, would go on with what a person has stopped.
    """
    await database.create_tables(Base.metadata)
    async with database.engine.begin() as connection:
        await install_historian(connection, [Letter])
    actions = Insight(database.session_factory, [LetterPipeline()], tables=TABLES)
    who: Said = {"by": "alice", "reason": "provider down"}
    async with replicas(database, 2, count=LETTERS) as (victim, other):
        await post_letters(database, LETTERS)
        await victim.wait_for_lines(20)
        await actions.pause("LetterPipeline", **who)
        paused_at = await now_in(database)
        os.kill(victim.pid, signal.SIGKILL)
        async with replicas(database, 1, count=LETTERS) as (heir,):
            await heir.wait_for("Ready")
            watched_until = await now_in(database) + timedelta(seconds=PAUSED_S)
            async with asyncio.timeout(wait_s_max()):
                while await now_in(database) < watched_until:  # noqa: ASYNC110 - it is the database's time
                    await asyncio.sleep(0.05)
            assert await settled(database.session_factory) < LETTERS
            lasts = timedelta(seconds=1)
            done = await actions.pause("LetterPipeline", until=lasts, replace=True, **who)
            for replica in (heir, other):
                await replica.wait_for("Done")
    assert done.until is not None
    async with database.engine.connect() as connection:
        changes = await read_history(connection)
    claims = [
        change.statement_at
        for change in changes
        if change.after is not None
        and change.after.lock_token is not None
        and (change.before is None or change.before.lock_token != change.after.lock_token)
    ]
    assert [at for at in claims if paused_at < at < done.until] == []
    assert min(claims) < paused_at
    assert max(claims) >= done.until
    outcomes = [
        change.key
        for change in changes
        if change.before is not None
        and change.after is not None
        and change.before.last_processed_at != change.after.last_processed_at
    ]
    assert sorted(outcomes, key=int) == [str(number) for number in range(1, LETTERS + 1)]
    assert await locked(database) == 0
