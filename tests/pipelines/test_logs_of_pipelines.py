"""Logs that are read by others: rows keep their values to themselves, and counts are told."""

from __future__ import annotations

import pytest

from rowlock import Apply, PipelineManager, events
from rowlock.pipelines.planner import record_failure
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import add, read, ticket, until
from .told import NOT_SHOWN, Line, told

pytestmark = pytest.mark.either_database(but=["test_a_refused_outcome_keeps_its_values"])

SECRET = "s3cr3t-value"


async def test_a_refused_outcome_keeps_its_values(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """`last_error`, events and the log are read by more people than the row is."""
    [row] = await add(database, Run(id=1))
    with heard_events() as heard:
        async with stepping(
            database.session_factory, RunPipeline(answer=Apply({"status": None, "result": SECRET}))
        ) as steps:
            await steps.fetch_once()
            await steps.work_once()
    after = await read(database, row)
    assert "IntegrityError" in (after.last_error or "")
    [failed] = heard.of(events.ItemFailed)
    assert "IntegrityError" in caplog.text
    for told_to_others in (after.last_error, failed.error, caplog.text):
        assert SECRET not in (told_to_others or "")


@virtual_time
async def test_a_drain_tells_what_was_counted(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A replica that ends within the minute would keep for itself how often it failed."""
    await add(virtual_database, *(Volume() for _ in range(5)))
    pipeline = VolumePipeline(answer=ValueError("no disk"))
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: len(heard.of(events.ItemFailed)) >= 5)
    failed = len(heard.of(events.ItemFailed))
    messages = [message for message in caplog.messages if "failed" in message]
    assert messages[1].startswith(NOT_SHOWN % {"count": failed - 1})
    assert len(messages) == 2


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
