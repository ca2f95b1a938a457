"""A replica loses its connection at boundaries of its statements, the answers to its COMMITs
included, and lives on; at which ones is as in ``test_death.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock.testing import Failpoints, TemporaryDatabase

from ..leases.transactions import checked_out
from ..simulator.judge.checker import check
from .stories import STORIES, Scene
from .survivors import finish, history, judge, make_tables, set_scene, wait_for_the_server
from .test_death import BOUNDARIES_MAX, BOUNDARIES_MIN, EVERY, tried


@pytest.mark.databases_in_turn
@pytest.mark.parametrize("name", STORIES)
async def test_an_error_at_boundaries(
    database_with_clock: TemporaryDatabase, tmp_path: Path, name: str
) -> None:
    """A connection that was lost in the wrong moment would cost a row, settle it twice, or leave
    a connection in use.
    """
    database, story = database_with_clock, STORIES[name]
    await make_tables(database)
    answers_lost = 0
    for at in tried(name, database, act="lose"):
        await set_scene(database, story)
        engine = database.create_engine()
        with Failpoints(engine, at=at, distinct=True, armed=False) as points:
            try:
                sessions = async_sessionmaker(engine, expire_on_commit=False)
                await story.play(Scene(sessions, points, tmp_path))
            except ConnectionResetError:
                assert points.reached, "somebody else has cut the connection"
        assert checked_out(engine) == 0
        await engine.dispose()
        if not story.may_leave_leases:
            left = check(await history(database), stopped=True)
            assert left == [], f"after {points.reached}"
        await wait_for_the_server(database)
        await finish(database, story)
        await judge(database, story)
        if points.reached is not None:
            answers_lost += points.reached.is_lost_answer
        # On a slow machine a play may have had fewer statements than the next one has.
        elif answers_lost or EVERY > 1:
            break
    assert BOUNDARIES_MIN <= at < BOUNDARIES_MAX - EVERY
    assert answers_lost > 0 or EVERY > 1
