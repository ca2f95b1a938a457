"""Tests of workers: what each outcome leaves, and one that is not written."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from rowlock import Apply, Outcome, Park, PipelineItem, RelatedLockUnavailable, Reset, Retry, events
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import RecordingPipeline, Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import add, change, counted, faults_of, hang, is_free, is_outcome, read, turns
from .told import Line, told

pytestmark = pytest.mark.either_database

# ---------------------------------------------------------------- results that could not be applied


async def test_on_stale_gets_the_outcome_of_a_stale_result(database: TemporaryDatabase) -> None:
    """A disk that was created for nothing would stay for ever."""
    [row] = await add(database, Volume())

    async def lose(item: PipelineItem[Any]) -> Outcome:
        await change(database, row, lock_token=uuid.uuid4())
        return Apply({"status": "active", "disk_id": "d"}, hint="Volume")

    pipeline = VolumePipeline(answer=lose)
    with heard_events() as heard:
        async with stepping(database.session_factory, pipeline) as steps:
            woken: list[int] = []
            steps.run.context.hinter.attach("Volume", lambda: woken.append(1))
            await steps.fetch_once()
            await steps.work_once()
            assert counted(steps)["stale"] == 1
            assert woken == []
    [(item, outcome)] = pipeline.stale
    assert item is pipeline.items[0]
    assert isinstance(outcome, Apply)
    assert outcome.values == {"status": "active", "disk_id": "d"}
    assert heard.of(events.ItemApplied) == []
    assert [event.reason for event in heard.of(events.ItemStale)] == ["stale"]
    after = await read(database, row)
    assert (after.status, after.disk_id, after.last_processed_at) == ("submitted", None, None)


async def test_on_stale_gets_the_outcome_that_the_database_refused(
    database: TemporaryDatabase,
) -> None:
    """What was made for a row that could not take it would be forgotten."""
    [row] = await add(database, Run())
    refused = Apply({"status": None})
    pipeline = RunPipeline(answer=refused)
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
        assert counted(steps)["retried"] == 1
        assert counted(steps)["applied"] == 0
    assert [outcome for _, outcome in pipeline.stale] == [refused]
    after = await read(database, row)
    assert (after.status, after.attempts, is_free(after)) == ("queued", 1, True)
    assert "IntegrityError" in (after.last_error or "")


class ClumsyPipeline(RecordingPipeline):
    model = Volume
    error: BaseException = ValueError("no broom")

    def ready(self) -> Any:
        return Volume.status == "submitted"

    async def on_stale(self, item: PipelineItem[Any], outcome: Outcome) -> None:  # type: ignore[override]
        super().on_stale(item, outcome)
        if isinstance(self.error, TimeoutError):
            await hang()
        raise self.error


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ValueError("no"), "ValueError('no')"),
        (asyncio.CancelledError(), "ProcessCancelledError("),
        (TimeoutError("hangs"), "TimeoutError('process took longer than process_timeout')"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_clean_up_that_fails_harms_nothing(
    virtual_database: TemporaryDatabase,
    error: BaseException,
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The worker would die of the host's cleaning up."""

    @virtual_time
    async def play() -> list[Volume]:
        rows = await add(virtual_database, Volume(), Volume())

        async def answer(item: PipelineItem[Any]) -> Outcome:
            await change(
                virtual_database, next(row for row in rows if row.id == item.id), lock_token=None
            )
            return Apply()

        pipeline = ClumsyPipeline(answer=answer, process_timeout=5)
        pipeline.error = error
        async with stepping(virtual_database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            assert await steps.work_all() == 2
        assert len(pipeline.stale) == 2
        return rows

    rows, lines = play(), told(caplog, "on_stale failed")
    assert {line.text.partition("ClumsyPipeline: ")[2] for line in lines} == {
        f"on_stale failed for row {row.id}" for row in rows
    }
    assert {line.extra["row_id"] for line in lines} == {row.id for row in rows}
    assert {line.extra["pipeline"] for line in lines} == {"ClumsyPipeline"}
    assert (lines[0].error or "").startswith(why)


# ---------------------------------------------------------------- the database fails


def test_a_failure_that_cannot_be_written_leaves_the_row_to_its_lease(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker would die with the database, or the row never be free again."""

    @virtual_time
    async def play() -> None:
        [row] = await add(virtual_database, Run())
        pipeline = RunPipeline(answer=ValueError("no disk"))
        async with stepping(virtual_database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            with faults_of(virtual_database.engine) as faults:
                faults.fail(ValueError("the driver is broken"), when=is_outcome)
                await steps.work_once()
            assert steps.run.statistics().tracked == 0
            assert counted(steps)["retried"] == 0
        assert (await read(virtual_database, row)).lock_owner == "RunPipeline"
        await asyncio.sleep(31)
        async with stepping(virtual_database.session_factory, RunPipeline()) as steps:
            [item] = await steps.fetch_once()
            assert (item.attempt, item.prev_lock_expired) == (2, True)

    play()
    text = (
        "RunPipeline: the failure of row 1 could not be written; it is free when its lease expires"
    )
    extra = {"pipeline": "RunPipeline", "row_id": 1}
    assert told(caplog, "could not be written") == [
        Line(text, extra, "ValueError('the driver is broken')")
    ]


# ---------------------------------------------------------------- outcomes


@pytest.mark.parametrize(
    ("answer", "outcome", "counter"),
    [
        (lambda item: None, "Apply", "applied"),
        (Apply(), "Apply", "applied"),
        (Apply({"status": "done"}), "Apply", "applied"),
        (Retry(error="no disk"), "Retry", "retried"),
        (Reset(), "Reset", "reset"),
        (Park("enough"), "Park", "parked"),
        (RelatedLockUnavailable(model="Disk", wanted=2, available=1), "Reset", "reset"),
    ],
)
@virtual_time
async def test_each_outcome_is_written_and_counted(
    virtual_database: TemporaryDatabase, answer: Any, outcome: str, counter: str
) -> None:
    """A row would stay locked, or the figures tell of something else."""
    [row] = await add(virtual_database, Run())
    with heard_events() as heard:
        async with stepping(virtual_database.session_factory, RunPipeline(answer=answer)) as steps:
            [item] = await steps.fetch_once()
            await steps.work_once()
            assert counted(steps)[counter] == counted(steps)["started"] == 1
            assert steps.run.statistics().tracked == 0
    after = await read(virtual_database, row)
    assert after.lock_token is None
    assert after.last_processed_at is not None
    told = [
        (event.row_id, event.lock_token, event.outcome) for event in heard.of(events.ItemApplied)
    ]
    assert told == [(row.id, item.lock_token, outcome)]
    assert [event.attempt for event in heard.of(events.ItemStarted)] == [1]


# ---------------------------------------------------------------- the row


async def test_no_session_is_open_while_the_host_works(database: TemporaryDatabase) -> None:
    """A slow call to a cloud would hold a connection, and a pool of ten would be ten workers'
    limit.
    """
    checked_out: list[int] = []
    pool: Any = database.engine.pool
    [row] = await add(database, Volume())

    async def look(item: PipelineItem[Any]) -> Outcome:
        checked_out.append(pool.checkedout())
        await turns()
        checked_out.append(pool.checkedout())
        return Apply({"status": "active"})

    async with stepping(database.session_factory, VolumePipeline(answer=look)) as steps:
        await steps.fetch_once()
        await steps.work_once()
    assert checked_out == [0, 0]
    assert (await read(database, row)).status == "active"
