"""Known queries over known rows, each recounted by SQL that knows nothing of the wing: with 1 and 4
shards (at length 1, 2 and 16), and states that are written with each step or with each third.

Half of the queries run with 1 shard on SQLite, and the others with 4 shards on PostgreSQL; at
length each query runs in each layout on one of the databases, and on both of them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rowlock.streams import Checkpoint, Streams
from rowlock.testing import TemporaryDatabase
from rowlock.testing.streams import run_flow

from ...lengths import at_length
from .nexmark import TUMBLE_MS, Base
from .queries import activity, hot_items, local_items
from .reference import chunks
from .taxi import zone_hours
from .words import word_counts

EVENTS = 600
SETTINGS: dict[str, Any] = {"step_rows_max": at_length(200, 100), "poll_interval": 0.05}
DECLARED = (local_items, hot_items, activity, zone_hours, word_counts)
LAYOUTS = at_length({1: 3, 4: 1}, {1: 3, 2: 1, 16: 3})
"""After how many steps states are written, by the number of shards."""


@pytest.mark.parametrize("shards", LAYOUTS)
async def test_answers_are_those_of_a_recount(
    database_with_clock: TemporaryDatabase, database_name: str, shards: int
) -> None:
    """A query would have results too many, too few or others, in one of the layouts."""
    number = list(LAYOUTS).index(shards)
    if at_length(usual=number != (database_name == "postgresql"), long=False):
        pytest.skip("on the other database")
    database, sessions = database_with_clock, database_with_clock.session_factory
    streams = Streams(Base)
    await database.create_tables(Base.metadata)
    options = {**SETTINGS, "shards": shards, "checkpoint": Checkpoint(steps=LAYOUTS[shards])}
    first = (number + at_length(usual=False, long=database_name == "sqlite")) % 2
    references = [declare(streams, **options) for declare in DECLARED[first::2]]
    supplies = {one.supply.name: one.supply for one in references}.values()
    parts = [(one, chunks(list(one.events(EVENTS)), EVENTS // 10)) for one in supplies]
    for begin in (0, 5):
        for nth in range(begin, begin + 5):
            for supply, some in parts:
                await supply.add(sessions, some[nth], nth)
        for reference in references:
            await run_flow(sessions, reference.flow)
        # Windows by the time of the steps are closed by it, and by no event.
        database.clock.advance(timedelta(milliseconds=TUMBLE_MS))
    for reference in references:
        if reference.has_timers:
            await run_flow(sessions, reference.flow)
        missing, surplus, count = await reference.difference(sessions)
        assert not missing, reference
        assert not surplus, reference
        assert count > 1, reference
