"""Workers whose work is ended from outside: by time, by a lost lease, by a cancellation."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from rowlock import Apply, Outcome, PipelineHinter, PipelineItem, events
from rowlock.errors import LeaseLost
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import TidyPipeline, add, counted, faults_of, hang, is_free, now, read, turns, until
from .told import Line, told


class TidyRunPipeline(RunPipeline):
    async def on_stale(self, item: PipelineItem[Any], outcome: Outcome) -> None:  # type: ignore[override]
        super().on_stale(item, outcome)


# ---------------------------------------------------------------- ended from outside


@virtual_time
async def test_a_process_that_takes_too_long_is_a_failed_attempt(
    virtual_database: TemporaryDatabase,
) -> None:
    """A hung call would keep its worker and its row for ever, renewed beat by beat."""
    [row] = await add(virtual_database, Run())
    pipeline = RunPipeline(answer=hang, process_timeout=20)
    async with stepping(virtual_database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
        assert counted(steps)["abandoned"] == 0
    assert pipeline.running == 0
    after = await read(virtual_database, row)
    assert (after.attempts, is_free(after)) == (1, True)
    assert "process_timeout" in (after.last_error or "")


def test_a_process_that_ignores_its_cancellation_is_left_behind(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Code that swallows cancellations would take its worker with it, and its late result be
    written.
    """

    @virtual_time
    async def play() -> None:
        rows = await add(virtual_database, Run(id=1), Run(id=2))
        let_go = asyncio.Event()

        async def answer(item: PipelineItem[Any]) -> Outcome:
            while item.id == 1 and not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue
            return Apply({"status": "done"})

        pipeline = TidyRunPipeline(answer=answer, process_timeout=10, cancel_grace=5)
        loop = asyncio.get_running_loop()
        with heard_events() as heard:
            async with stepping(virtual_database.session_factory, pipeline) as steps:
                await steps.fetch_once()
                began = loop.time()
                await steps.work_once()
                assert loop.time() == began + 15
                assert counted(steps)["abandoned"] == 1
                assert steps.run.health().abandoned == 1
                await steps.work_once()
                assert pipeline.stale == []
                let_go.set()
                await until(lambda: pipeline.stale)
                assert steps.run.health().abandoned == 0
        [(item, late)] = pipeline.stale
        assert (item.id, late) == (1, Apply({"status": "done"})), (
            "what it made in vain is cleaned up"
        )
        assert [event.row_id for event in heard.of(events.ItemAbandoned)] == [1]
        assert [(event.row_id, event.outcome) for event in heard.of(events.ItemApplied)] == [
            (2, "Apply")
        ]
        assert not is_free(await read(virtual_database, rows[0])), (
            "while it runs, nobody else may have the row"
        )
        assert [(await read(virtual_database, row)).status for row in rows] == ["queued", "done"]

    play()
    text = "TidyRunPipeline: process ignored its cancellation and was left behind with row 1"
    assert told(caplog, "left behind") == [
        Line(text, {"pipeline": "TidyRunPipeline", "row_id": 1}, None)
    ]


@virtual_time
async def test_a_cancelled_worker_gives_its_row_back(virtual_database: TemporaryDatabase) -> None:
    """The row would wait for its lease to expire because of a cancellation that meant somebody
    else.
    """
    [row] = await add(virtual_database, Volume())
    pipeline = VolumePipeline(answer=hang)
    async with stepping(virtual_database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        working = asyncio.create_task(steps.work_once())
        await turns(200)
        assert pipeline.running == 1
        working.cancel()
        await asyncio.wait({working})
        assert working.cancelled()
        await turns(200)
        assert is_free(await read(virtual_database, row))
        assert steps.run.statistics().tracked == 0
    assert pipeline.running == 0
    assert (await read(virtual_database, row)).last_processed_at is None


@virtual_time
async def test_a_row_is_not_given_back_under_the_hands_of_its_process(
    virtual_database: TemporaryDatabase,
) -> None:
    """Another replica would begin with the row while the cancelled process still cleans up."""
    [row] = await add(virtual_database, Volume())
    ended: list[float] = []

    async def answer(item: PipelineItem[Any]) -> None:
        try:
            await hang()
        finally:
            await asyncio.sleep(2)
            ended.append(now())

    pipeline = VolumePipeline(answer=answer)
    with heard_events() as heard:
        async with stepping(virtual_database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            working = asyncio.create_task(steps.work_once())
            await turns(200)
            working.cancel()
            await asyncio.wait({working})
            await asyncio.sleep(1.9)
            assert not is_free(await read(virtual_database, row))
            await asyncio.sleep(0.2)
            assert len(ended) == 1
            assert is_free(await read(virtual_database, row))
            assert counted(steps)["abandoned"] == 0
    assert heard.of(events.ItemAbandoned) == []


@pytest.mark.parametrize("how", ["drained", "cancelled"])
@virtual_time
async def test_a_row_whose_process_will_not_end_is_left_to_its_lease(
    virtual_database: TemporaryDatabase, how: str
) -> None:
    """Two would work on the row for as long as the stubborn one likes."""
    [row] = await add(virtual_database, Volume())
    let_go = asyncio.Event()

    async def answer(item: PipelineItem[Any]) -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    pipeline = TidyPipeline(answer=answer)
    with heard_events() as heard:
        pipeline.start(virtual_database.session_factory, PipelineHinter())
        await until(lambda: pipeline.items)
        if how == "cancelled":
            for task in asyncio.all_tasks():
                if task.get_name().endswith("worker 1"):
                    task.cancel("meant for somebody else")
            await asyncio.sleep(10)
        await pipeline.drain(timedelta(0))
        assert pipeline.running == 1
        assert (await read(virtual_database, row)).lock_token == pipeline.items[0].lock_token
        assert len(heard.of(events.ItemAbandoned)) == 1
        assert heard.of(events.ItemReleased) == []
        let_go.set()
        await turns()


# ---------------------------------------------------------------- many attempts


@virtual_time
async def test_a_row_that_kills_its_holders_is_parked(virtual_database: TemporaryDatabase) -> None:
    """A row at which the process dies would kill every replica in turn, for ever."""
    [row] = await add(virtual_database, Run())
    for died in range(3):
        run = RunPipeline().build_run(virtual_database.session_factory, None)  # type: ignore[arg-type]
        assert await run.fetcher.fetch_once(1) == 1
        [item] = run.context.queue.waiting()
        assert (item.attempt, item.prev_lock_expired) == (died + 1, died > 0)
        await asyncio.sleep(31)
    pipeline = RunPipeline(max_attempts=3)
    async with stepping(virtual_database.session_factory, pipeline) as steps:
        [item] = await steps.fetch_once()
        assert item.attempt == 4
        await steps.work_once()
    after = await read(virtual_database, row)
    assert pipeline.items == []
    assert after.parked_at is not None
    assert after.last_error == "gave up after 3 attempts: the last holder died"
    assert is_free(after)


@virtual_time
async def test_the_last_allowed_attempt_is_made(virtual_database: TemporaryDatabase) -> None:
    """A row would be parked one attempt too early."""
    await add(virtual_database, Run(attempts=2))
    pipeline = RunPipeline(max_attempts=3)
    async with stepping(virtual_database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
    assert [item.attempt for item in pipeline.items] == [3]


# ---------------------------------------------------------------- lost leases


@virtual_time
async def test_an_item_whose_trust_ended_before_work_begins_is_not_started(
    virtual_database: TemporaryDatabase,
) -> None:
    """A late worker would begin on a row that another replica may hold."""
    await add(virtual_database, Volume())
    pipeline = VolumePipeline()
    async with stepping(virtual_database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await asyncio.sleep(28)
        await steps.work_once()
        assert counted(steps)["stale"] == 1
        assert counted(steps)["started"] == 0
    assert pipeline.items == []


@virtual_time
async def test_a_result_that_comes_after_the_lease_was_lost_is_cleaned_up(
    virtual_database: TemporaryDatabase,
) -> None:
    """What a call made while it was being cancelled would stay behind: its outcome is neither
    written nor cleaned up.
    """
    [row] = await add(virtual_database, Volume())

    async def answer(item: PipelineItem[Any]) -> Outcome:
        try:
            await hang()
        except asyncio.CancelledError:
            return Apply({"status": "active", "disk_id": "made at the last moment"})
        raise AssertionError

    pipeline = TidyPipeline(answer=answer)
    async with stepping(virtual_database.session_factory, pipeline) as steps:
        [item] = await steps.fetch_once()
        asyncio.get_running_loop().call_later(28, steps.run.heartbeater.lose_expired)
        await steps.work_once()
    assert item.is_lost
    assert (await read(virtual_database, row)).disk_id is None
    assert len(pipeline.stale) == 1


@virtual_time
async def test_an_outcome_after_the_end_of_trust_is_not_written(
    virtual_database: TemporaryDatabase,
) -> None:
    """A result would be written by a holder whose lease is about to be somebody else's."""
    [row] = await add(virtual_database, Volume())

    async def answer(item: PipelineItem[Any]) -> Outcome:
        await asyncio.sleep(28)
        assert not item.is_trusted()
        with pytest.raises(LeaseLost):
            item.session()
        return Apply({"status": "active"})

    pipeline = TidyPipeline(answer=answer)
    async with stepping(virtual_database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        with faults_of(virtual_database.engine) as faults:
            await steps.work_once()
        assert counted(steps)["stale"] == 1
        assert faults.count(lambda statement: statement.startswith("BEGIN")) == 0, (
            "nothing is even tried"
        )
    after = await read(virtual_database, row)
    assert (after.status, after.last_processed_at) == ("submitted", None)
    assert len(pipeline.stale) == 1
