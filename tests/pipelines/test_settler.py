"""The settler: workers go on while outcomes are written, what waits is bounded."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from rowlock import Apply, PipelineManager, events
from rowlock.pipelines import settler as settler_module
from rowlock.pipelines.attempt import Ended
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import (
    TidyPipeline,
    add,
    change,
    counted,
    faults_of,
    is_free,
    is_outcome,
    read_all,
    turns,
    until,
)
from .told import Line, told

pytestmark = pytest.mark.either_database

DONE = Apply({"status": "active"})


def hold_outcomes(pipeline: VolumePipeline, until_set: asyncio.Event) -> None:
    """Let no outcome go to the database before the event; on SQLite a statement that hangs would
    hold up everybody.
    """
    context: Any = pipeline.run.context
    transact = context.transact

    async def slowly(work: Any, *, purpose: str, **how: bool) -> Any:
        if purpose == "write outcomes":
            await until_set.wait()
        return await transact(work, purpose=purpose, **how)

    context.transact = slowly


@virtual_time
async def test_a_worker_goes_on_while_its_outcome_is_written(
    virtual_database: TemporaryDatabase,
) -> None:
    """Every row would cost a worker the time of a COMMIT."""
    await add(virtual_database, *(Volume() for _ in range(3)))
    pipeline = VolumePipeline(answer=DONE, workers_num=1, queue_upper_limit_factor=3)
    waiting = asyncio.Event()
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        hold_outcomes(pipeline, waiting)
        await until(lambda: len(pipeline.items) == 3)
        assert pipeline.statistics().counters["applied"] == 0
        assert pipeline.statistics().running == 0
        waiting.set()
        await until(lambda: pipeline.statistics().counters["applied"] == 3)


@virtual_time
async def test_what_waits_to_be_settled_is_bounded(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is slow would be drowned in outcomes, and memory with it."""

    monkeypatch.setattr(settler_module, "PENDING_MAX", 2)
    pipeline = TidyPipeline(
        answer=DONE, workers_num=1, queue_upper_limit_factor=6, queue_lower_limit_factor=1
    )
    await add(virtual_database, *(Volume() for _ in range(6)))
    waiting = asyncio.Event()
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        hold_outcomes(pipeline, waiting)
        await asyncio.sleep(5)
        assert len(pipeline.items) == 2
        assert len(pipeline.run.settler) == 2
        waiting.set()
        await until(lambda: pipeline.statistics().counters["applied"] == 6)


@virtual_time
async def test_an_item_is_tracked_until_its_outcome_is_settled(
    virtual_database: TemporaryDatabase,
) -> None:
    """Its lease would end while its outcome waits for its turn."""
    await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline(answer=DONE)) as steps:
        [item] = await steps.fetch_once()
        with faults_of(virtual_database.engine) as faults:
            faults.hang(when=is_outcome)
            working = asyncio.create_task(steps.work_once())
            await until(lambda: faults.count(is_outcome))
            assert steps.run.statistics().tracked == 1
            faults.heal()
            await working
        assert steps.run.statistics().tracked == 0
        assert item.is_settling


@virtual_time
async def test_a_drain_waits_for_outcomes_that_are_being_written(
    virtual_database: TemporaryDatabase,
) -> None:
    """The last results before a shutdown would be lost, and their work be done again."""
    await add(virtual_database, Volume())
    pipeline = VolumePipeline(answer=DONE)
    with faults_of(virtual_database.engine) as faults:
        faults.hang(when=is_outcome)
        manager = PipelineManager(virtual_database.session_factory, [pipeline])
        manager.start()
        await until(lambda: faults.count(is_outcome))
        draining = asyncio.create_task(manager.drain(timeout=60))
        await turns(50)
        assert not draining.done()
        faults.heal()
        await draining
    [row] = await read_all(virtual_database, Volume)
    assert (row.status, is_free(row)) == ("active", True)


@virtual_time
async def test_a_worker_that_is_cancelled_takes_no_outcome_with_it(
    virtual_database: TemporaryDatabase,
) -> None:
    """What was computed would be dropped, or released and written both."""
    await add(virtual_database, Volume())
    pipeline = VolumePipeline(answer=DONE, workers_num=1)
    with faults_of(virtual_database.engine) as faults, heard_events() as heard:
        faults.hang(when=is_outcome)
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: faults.count(is_outcome))
            for task in asyncio.all_tasks():
                if task.get_name() == "rowlock: VolumePipeline worker 1":
                    task.cancel()
            await turns(50)
            faults.heal()
            await heard.wait_for(events.ItemApplied)
    [row] = await read_all(virtual_database, Volume)
    assert (row.status, is_free(row)) == ("active", True)
    assert heard.of(events.ItemReleased) == []


@virtual_time
async def test_nothing_is_told_before_the_commit(virtual_database: TemporaryDatabase) -> None:
    """A listener would hear of a result that may never be there."""
    await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline(answer=DONE)) as steps:
        await steps.fetch_once()
        with faults_of(virtual_database.engine) as faults, heard_events() as heard:
            faults.hang(when=is_outcome)
            working = asyncio.create_task(steps.work_once())
            await until(lambda: faults.count(is_outcome))
            assert heard.of(events.ItemApplied) == []
            faults.heal()
            await working
            assert len(heard.of(events.ItemApplied)) == 1


@pytest.mark.parametrize(
    ("ended", "is_free_then", "reasons", "released"),
    [
        (Ended.INTERRUPTED, True, [], 1),
        (Ended.LEASE_LOST, False, ["lost"], 0),
        (Ended.ABANDONED, False, [], 0),
    ],
    ids=lambda value: value.name if isinstance(value, Ended) else "",
)
async def test_an_attempt_without_an_outcome_is_settled_too(
    database: TemporaryDatabase,
    ended: Ended,
    *,
    is_free_then: bool,
    reasons: list[str],
    released: int,
) -> None:
    """Interrupted work would keep its row for a lease; or a row be freed under the hands of an
    attempt that still runs.
    """
    await add(database, Volume())
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        with heard_events() as heard:
            steps.run.settler.settle_later(item, ended)
            assert len(steps.run.settler) == 1
            await steps.run.settler.wait_until_idle()
        [row] = await read_all(database, Volume)
        assert is_free(row) == is_free_then
        assert [event.reason for event in heard.of(events.ItemStale)] == reasons
        assert (counted(steps)["stale"], counted(steps)["released"]) == (len(reasons), released)
        assert (len(steps.run.heartbeater), item.is_settling) == (0, True)


async def test_an_outcome_that_is_refused_at_the_last_attempt_parks_the_row(
    database: TemporaryDatabase,
) -> None:
    """A dashboard would show one more retry, and nobody be told that the row waits for a person
    now.
    """
    await add(database, Run(id=1))
    async with stepping(
        database.session_factory, RunPipeline(answer=Apply({"status": None}), max_attempts=1)
    ) as steps:
        await steps.fetch_once()
        with heard_events() as heard:
            await steps.work_once()
        assert (counted(steps)["parked"], counted(steps)["retried"], counted(steps)["applied"]) == (
            1,
            0,
            0,
        )
    assert [event.outcome for event in heard.of(events.ItemApplied)] == ["Park"]
    [row] = await read_all(database, Run)
    assert (row.attempts, row.parked_at is not None, is_free(row)) == (1, True, True)


@pytest.mark.parametrize(
    ("change_to", "reason"),
    [({"lock_token": uuid.uuid4()}, "stale"), ({"disk_id": "theirs"}, "changed")],
)
async def test_a_result_that_is_dropped_is_a_warning(
    database: TemporaryDatabase,
    caplog: pytest.LogCaptureFixture,
    change_to: dict[str, Any],
    reason: str,
) -> None:
    """Nobody would look for what an attempt has left behind whose result was thrown away."""
    [volume] = await add(database, Volume())

    async def answer(_item: Any) -> Apply:
        await change(database, volume, **change_to)
        return Apply({"status": "active"}, unless_changed=["disk_id"])

    pipeline = VolumePipeline(answer=answer)
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
    text = (
        f"VolumePipeline: Apply of row {volume.id} was not written ({reason}); "
        "look for side effects of this attempt: on_stale is called"
    )
    fields = {
        "pipeline": "VolumePipeline",
        "row_id": volume.id,
        "outcome": "Apply",
        "reason": reason,
    }
    assert told(caplog, "side effects") == [Line(text, fields, None)]
    assert [
        record.levelname for record in caplog.records if "side effects" in record.getMessage()
    ] == ["WARNING"]
    assert len(pipeline.stale) == 1
