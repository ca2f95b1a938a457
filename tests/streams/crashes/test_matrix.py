"""A replica of a flow dies, freezes past its leases or loses its connection, before and after each
statement of each kind of transaction; another one goes on, and each event counts once.

By default it dies in the middle of each second one on SQLite, and of the others on PostgreSQL. With
``ROWLOCK_STREAMS_BOUNDARIES=each``, all acts are tried at each different statement, where it is met
first; with a number, at so many of these; with ``all``, at each statement each time. All three add
a line for each story to the file that ``ROWLOCK_STREAMS_MATRIX`` names, of which ``python -m
tests.streams.crashes.page FILE`` makes the table of the docs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rowlock.testing import TemporaryDatabase

from ...failpoints.survivors import Nursery, shared_clock
from .host import Base
from .matrix import ACTS, BOUNDARIES_MAX, Matrix, Tried
from .stories import STORIES

SURVEYS_MAX = 3
"""So often at most a story is surveyed whose COMMITs all had other numbers in the run."""
BOUNDARIES = os.environ.get("ROWLOCK_STREAMS_BOUNDARIES", "few")


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("act", ACTS[:1] if BOUNDARIES == "few" else ACTS)
async def test_each_event_counts_once(
    database_with_clock: TemporaryDatabase, nursery: Nursery, tmp_path: Path, name: str, act: str
) -> None:
    """An event would be lost or counted twice, or a shard be nobody's, wherever it is that a
    replica is lost.
    """
    database, is_second = database_with_clock, list(STORIES).index(name) % 2
    if BOUNDARIES == "few" and is_second != (database.dialect_name == "postgresql"):
        pytest.skip("on the other database")
    await database.create_tables(Base.metadata)
    with shared_clock(database, tmp_path / "clock") as clock:
        matrix, story = Matrix(database, nursery, clock), STORIES[name]
        if BOUNDARIES == "few":
            assert await matrix.kill_before(story), f"there is no {story.dies_before}"
        else:
            with noted(f"{name} | {act} | {database.dialect_name}") as tried:
                if BOUNDARIES == "all":
                    await matrix.sweep(story, act, range(BOUNDARIES_MAX), tried=tried)
                else:
                    for _ in range(SURVEYS_MAX):
                        each = spread(await matrix.survey(story))
                        await matrix.sweep(story, act, each, ends=False, tried=tried)
                        # What two shards do at the same time has other numbers in another run.
                        if act != "lose" or tried.answers_lost or BOUNDARIES.isdigit():
                            break
            assert tried.boundaries > 0
            if not BOUNDARIES.isdigit():
                assert tried.overtaken > 0 or act != "freeze"
                assert tried.answers_lost > 0 or act != "lose"


def spread(each: list[int]) -> list[int]:
    """Return as many of these boundaries as are wanted, from the first one to the last."""
    wanted = len(each) if BOUNDARIES == "each" else min(int(BOUNDARIES), len(each))
    return [each[n * (len(each) - 1) // max(wanted - 1, 1)] for n in range(wanted)]


@contextmanager
def noted(what: str) -> Iterator[Tried]:
    """Add a line to the file of what was tried, whatever came of it."""
    path, tried, result = os.environ.get("ROWLOCK_STREAMS_MATRIX", os.devnull), Tried(), "equal"
    try:
        yield tried
    except Exception as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        result = " ".join(f"{type(error).__name__}: {error} {notes}".split())
        raise
    finally:
        numbers = f"{tried.boundaries} | {tried.overtaken} | {tried.answers_lost}"
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{what} | {numbers} | {result}\n")
