"""Tests of what a failed attempt is turned into: a retry that carries its error, a line of the
log, and an event.
"""

from __future__ import annotations

import pytest

from rowlock import events
from rowlock.pipelines.decisions import record_failure
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import VolumePipeline, heard_events
from .scenes import ticket
from .told import Line, told


@virtual_time
async def test_a_failure_is_told_and_becomes_a_retry(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """An attempt would fail and nobody know of which row, of which claim, and why."""
    item, error = ticket(), ValueError("no disk")
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        with heard_events() as heard:
            outcome = record_failure(steps.run.context, item, error)
    assert (outcome.error, outcome.after, outcome.values) == (error, None, {})
    assert heard.all == [
        events.ItemFailed("VolumePipeline", item.id, item.lock_token, "ValueError: no disk")
    ]
    assert told(caplog, "failed") == [
        Line(
            f"VolumePipeline: processing row {item.id} failed",
            {"pipeline": "VolumePipeline", "row_id": item.id},
            repr(error),
        )
    ]
