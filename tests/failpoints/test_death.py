"""A replica dies, or freezes past its lease, at a boundary of a statement; another one finishes its
story, once.

Each sixth boundary is tried, others for each act, and each story on one database for each act; all
of them on both in ``nox -s long``.
"""

from __future__ import annotations

import signal
from pathlib import Path
from zlib import crc32

import pytest

from rowlock.testing import TemporaryDatabase

from ..lengths import at_length
from .stories import STORIES
from .survivors import (
    Nursery,
    finish,
    history,
    judge,
    make_tables,
    may_be_written,
    set_scene,
    shared_clock,
    wait_for_the_server,
)

BOUNDARIES_MIN = 4
"""Fewer than that in any story, and the failpoints were not where they should be."""
BOUNDARIES_MAX = 200
EVERY = at_length(6, 1)


def tried(name: str, database: TemporaryDatabase, *, act: str) -> range:
    """Return the boundaries at which something happens; behind the last one nothing does."""
    acts = ("die", "freeze", "lose")
    first = crc32(name.encode()) + acts.index(act) + 3 * (database.dialect_name == "sqlite")
    return range(first % EVERY, BOUNDARIES_MAX, EVERY)


@pytest.mark.databases_in_turn
@pytest.mark.parametrize("name", STORIES)
async def test_killed_at_boundaries(
    database_with_clock: TemporaryDatabase, nursery: Nursery, clock_file: Path, name: str
) -> None:
    """kill -9 right before or after some statement would lose a row, settle it twice, or leave
    it locked.
    """
    database, story = database_with_clock, STORIES[name]
    await make_tables(database)
    with shared_clock(database, clock_file):
        for at in tried(name, database, act="die"):
            await set_scene(database, story)
            code = nursery.replica(story, database, at=at, act="die", clock=clock_file)
            assert code in {0, -signal.SIGKILL}, f"at boundary {at} the replica ended with {code}"
            await wait_for_the_server(database)
            await finish(database, story)
            await judge(database, story)
            if code == 0:
                break
    assert BOUNDARIES_MIN <= at < BOUNDARIES_MAX - EVERY


@pytest.mark.databases_in_turn(first=1)
@pytest.mark.parametrize("name", STORIES)
async def test_frozen_at_boundaries(
    database_with_clock: TemporaryDatabase, nursery: Nursery, clock_file: Path, name: str
) -> None:
    """A replica that was frozen past its lease would overwrite what its heir has written."""
    database, story = database_with_clock, STORIES[name]
    await make_tables(database)
    assert database.clock is not None
    overtaken = 0
    with shared_clock(database, clock_file):
        for at in tried(name, database, act="freeze"):
            await set_scene(database, story)
            code = nursery.replica(story, database, at=at, act="freeze", clock=clock_file)
            is_frozen = code is None
            if is_frozen and await may_be_written(database):
                await finish(database, story)
                database.clock.advance(1)  # so that two times are told apart
                before, overtaken = await history(database), overtaken + 1
                assert nursery.thaw() == 0
                assert await history(database) == before, (
                    f"thawed at boundary {at}, it wrote something"
                )
            else:
                # In the middle of a transaction everybody waits for it; then it must be as if it
                # had been slow.
                assert not is_frozen or nursery.thaw() == 0
                await wait_for_the_server(database)
                await finish(database, story)
            await judge(database, story)
            if not is_frozen:
                assert code == 0
                break
    assert BOUNDARIES_MIN <= at < BOUNDARIES_MAX - EVERY
    assert overtaken > 1 or EVERY > 1
