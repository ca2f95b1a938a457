"""A replica of a flow dies, freezes past its leases or loses its connection, before and after each
statement of each kind of transaction; another one goes on, and each event counts once.

A few boundaries at which it dies by default; all of them, and all acts, with
``ROWLOCK_STREAMS_BOUNDARIES=all``, which adds a line for each story to the file that
``ROWLOCK_STREAMS_MATRIX`` names.
"""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

import pytest

from rowlock.testing import TemporaryDatabase

from ...failpoints.survivors import Nursery, shared_clock
from .host import Base
from .matrix import ACTS, BOUNDARIES_MAX, Matrix, Tried
from .stories import STORIES

FIRST_MAX = 9
"""Each story has so many boundaries at least."""
SAMPLED = 2
"""So many boundaries are tried of each story by each act, unless all are."""
IS_WHOLE = os.environ.get("ROWLOCK_STREAMS_BOUNDARIES") == "all"


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("act", ACTS if IS_WHOLE else ACTS[:1])
async def test_each_event_counts_once(
    database_with_clock: TemporaryDatabase, nursery: Nursery, tmp_path: Path, name: str, act: str
) -> None:
    """An event would be lost or counted twice, or a shard be nobody's, wherever it is that a
    replica is lost.
    """
    database = database_with_clock
    await database.create_tables(Base.metadata)
    with shared_clock(database, tmp_path / "clock") as clock:
        matrix = Matrix(database, nursery, clock)
        tried = await matrix.sweep(
            STORIES[name], act, range(BOUNDARIES_MAX) if IS_WHOLE else sampled(f"{name} {act}")
        )
    assert tried.boundaries > 0
    if IS_WHOLE:
        note(f"{name} | {database.dialect_name} | {act}", tried)
        assert tried.boundaries >= FIRST_MAX
        assert tried.overtaken > 0 or act != "freeze"
        assert tried.answers_lost > 0 or act != "lose"


def sampled(what: str) -> list[int]:
    """Return a few boundaries, others for each story and act, the first of which there is."""
    first = crc32(what.encode()) % FIRST_MAX
    return [first + n * FIRST_MAX for n in range(SAMPLED)]


def note(what: str, tried: Tried) -> None:
    """Add a line to the table of what was tried."""
    path = os.environ.get("ROWLOCK_STREAMS_MATRIX")
    if path:
        line = f"| {what} | {tried.boundaries} | {tried.overtaken} | {tried.answers_lost} | equal |"
        with Path(path).open("a") as file:
            file.write(line + "\n")
