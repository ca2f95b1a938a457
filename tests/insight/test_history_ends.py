"""Where a history ends: others go on, and it may begin again."""

from __future__ import annotations

import pytest

from rowlock import PipelineManager, events
from rowlock.insight import Observer
from rowlock.insight.history.entries import TRACE_IDS
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import RunPipeline
from ..pipelines.scenes import until
from .test_history import TABLES, applied, history_of, make_tables, recorder_of

pytestmark = pytest.mark.either_database


async def test_one_history_that_ends_leaves_the_spans_of_others(
    sqlite_database: TemporaryDatabase,
) -> None:
    """Two managers of a process have an observer each; when the first one stopped, entries of the
    second would name no trace any more.
    """
    first, second = recorder_of(sqlite_database), recorder_of(sqlite_database)
    first.start()
    second.start()
    try:
        await first.stop()
        await first.stop()
        TRACE_IDS.remember("token", "a" * 32)
        assert TRACE_IDS.get("token") == "a" * 32
    finally:
        await second.stop()
    # Of nobody who asks for them they would stay for as long as the process.
    assert TRACE_IDS.get("token") is None
    TRACE_IDS.remember("token", "a" * 32)
    assert TRACE_IDS.get("token") is None


@virtual_time
async def test_an_observer_that_is_entered_again_writes(
    virtual_database: TemporaryDatabase,
) -> None:
    """A history that was turned off and on would be empty until the process ends."""
    await make_tables(virtual_database)
    manager = PipelineManager(virtual_database.session_factory, [RunPipeline()])
    observer = Observer(manager, tables=TABLES)
    recorder = observer.history
    assert recorder is not None
    for row_id in (1, 2):
        async with observer:
            events.emit(applied(row_id))
            await until(lambda: not recorder.waiting)
    async with observer:
        (writer,) = recorder._writers.values()
        writer.queue.drop(3)
    async with observer:
        assert recorder.dropped == 3
    written = [(entry.row_id, entry.kind) for entry in await history_of(virtual_database)]
    assert written == [("1", "applied"), ("2", "applied"), ("", "gap")]
