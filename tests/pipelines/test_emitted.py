"""Which events are built: those that somebody hears."""

from __future__ import annotations

import pytest

from rowlock import PipelineManager, events, subscribe
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Volume, VolumePipeline
from .scenes import add, until

OF_EACH_ROW = {events.ItemStarted, events.ItemApplied}
OF_MANY_ROWS = {events.FetchEnded, events.OutcomesWritten}


@virtual_time
async def test_what_nobody_wants_is_not_built(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wants to hear of a rare event would pay for those of each row."""
    built: list[type[events.Event]] = []
    monkeypatch.setattr(events, "emit", lambda event: built.append(type(event)))
    for wanted in (OF_EACH_ROW, OF_MANY_ROWS):
        built.clear()
        end = subscribe(print, *wanted)
        try:
            await add(virtual_database, Volume())
            pipeline = VolumePipeline()
            async with PipelineManager(virtual_database.session_factory, [pipeline]):
                await until(lambda one=pipeline: one.statistics().counters["applied"])
        finally:
            end()
        assert {*built} & (OF_EACH_ROW | OF_MANY_ROWS) == wanted
