"""The fetcher: no failure ends it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import ColumnElement

from rowlock import PipelineHinter, PipelineManager, events
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import add, faults_of, is_claim, is_free, is_sweep, now, read, turns, until
from .told import Line, told

# ---------------------------------------------------------------- failures


@virtual_time
async def test_failing_fetches_end_nothing(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """After an outage of the database the host would have to be restarted."""
    await add(virtual_database)
    pipeline = VolumePipeline()
    with heard_events() as heard, faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await asyncio.sleep(10)
            faults.fail(ConnectionRefusedError("nobody listens"))
            await asyncio.sleep(60)
            health = manager.health().pipelines[0]
            assert not health.healthy
            assert health.fetch_failures > 5
            assert health.last_error == "ConnectionRefusedError: nobody listens"
            assert all(health.loops_alive.values())
            faults.heal()
            await add(virtual_database, Volume())
            async with asyncio.timeout(6.0):
                await until(lambda: pipeline.items and manager.health().healthy)
            assert manager.health().pipelines[0].last_error is None
            counters = manager.statistics()["VolumePipeline"].counters
            assert (
                counters["fetches_failed"]
                == len(heard.of(events.FetchFailed))
                == health.fetch_failures
            )
    assert heard.of(events.LoopReplaced) == []
    failed = heard.of(events.FetchFailed)
    assert set(failed) == {
        events.FetchFailed("VolumePipeline", "ConnectionRefusedError: nobody listens")
    }
    line = Line(
        "VolumePipeline: a fetch failed",
        {"pipeline": "VolumePipeline"},
        "ConnectionRefusedError('nobody listens')",
    )
    first, *more = told(caplog, "fetch")
    assert first == line
    assert 1 + sum(counted.extra["count"] for counted in more) == len(failed), "each is counted"
    assert len(more) < 3, "and few are shown"


@virtual_time
async def test_hints_do_not_hammer_a_failing_database(virtual_database: TemporaryDatabase) -> None:
    """A busy service would add its load to a database that is already down."""
    await add(virtual_database)
    with heard_events() as heard, faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [VolumePipeline()]) as manager:
            await asyncio.sleep(10)
            faults.fail(ConnectionRefusedError("nobody listens"))
            for _ in range(300):
                await asyncio.sleep(0.1)
                manager.hinter.hint_fetch(Volume)
            assert 5 < len(heard.of(events.FetchFailed)) < 20


@virtual_time
async def test_a_fetch_that_hangs_is_given_up(virtual_database: TemporaryDatabase) -> None:
    """A connection into a black hole would stop the pipeline for good."""
    pipeline = VolumePipeline()
    [row] = await add(virtual_database, Volume())
    with heard_events() as heard, faults_of(virtual_database.engine) as faults:
        faults.hang(when=is_claim)
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            began_at = now()
            await until(lambda: heard.of(events.FetchFailed))
            assert now() == pytest.approx(began_at + 10, abs=0.02)
            assert "TransactionTimeout" in heard.of(events.FetchFailed)[0].error
            faults.heal()
            await until(lambda: heard.of(events.ItemApplied))
    assert (await read(virtual_database, row)).status == "active"


class FussyPipeline(VolumePipeline):
    """Cannot always say which rows want work.

    Attributes:
        trouble: what `ready` raises or returns; None while all is well.
    """

    trouble: Any = None

    def ready(self) -> ColumnElement[bool]:
        if isinstance(self.trouble, BaseException):
            raise self.trouble
        return super().ready() if self.trouble is None else self.trouble


TROUBLES = [ValueError("no"), StopIteration(), asyncio.CancelledError(), "not an expression"]


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: type(trouble).__name__)
@virtual_time
async def test_ready_may_fail(virtual_database: TemporaryDatabase, trouble: Any) -> None:
    """A mistake in one hook would end the pipeline."""
    await add(virtual_database, Volume())
    pipeline = FussyPipeline()
    pipeline.trouble = trouble
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await asyncio.sleep(20)
            assert len(heard.of(events.FetchFailed)) > 3
            assert not manager.health().healthy
            pipeline.trouble = None
            await asyncio.sleep(6)
            assert len(heard.of(events.ItemApplied)) == 1
            assert manager.health().healthy
    assert heard.of(events.LoopReplaced) == []


@virtual_time
async def test_a_failing_sweep_harms_no_fetch(virtual_database: TemporaryDatabase) -> None:
    """Housekeeping would stop the work."""
    await add(virtual_database)
    pipeline = VolumePipeline()
    with faults_of(virtual_database.engine) as faults:
        faults.fail(OSError("disk"), when=is_sweep)
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await asyncio.sleep(700)
            await add(virtual_database, Volume())
            await asyncio.sleep(6)
            assert len(pipeline.items) == 1
        assert faults.count(is_sweep) > 0


# ---------------------------------------------------------------- nothing stays leased


@virtual_time
async def test_a_cancel_at_any_moment_leaves_nothing_leased(
    virtual_database: TemporaryDatabase,
) -> None:
    """A row claimed and not yet queued would wait for its lease to expire, since nobody works on
    it.
    """
    await add(virtual_database)
    with heard_events() as heard:
        for moment in range(60):
            [row] = await add(virtual_database, Volume())
            pipeline = VolumePipeline()
            pipeline.start(virtual_database.session_factory, PipelineHinter())
            await turns(moment)
            began_at = now()
            for task in asyncio.all_tasks():
                if task.get_name().endswith(" fetcher"):
                    task.cancel("meant for somebody else")
            async with asyncio.timeout(20.0):
                await until(lambda count=moment + 1: len(heard.of(events.ItemApplied)) == count)
            assert now() < began_at + 20
            await pipeline.drain(timedelta(0))
            assert is_free(await read(virtual_database, row))


@virtual_time
async def test_what_a_claim_brings_after_the_shutdown_is_given_back(
    virtual_database: TemporaryDatabase,
) -> None:
    """A shutdown in the middle of a claim would leave its rows locked."""
    [row] = await add(virtual_database, Volume())
    pipeline = VolumePipeline()
    with heard_events() as heard, faults_of(virtual_database.engine) as faults:
        faults.hang(when=is_claim)
        manager = PipelineManager(virtual_database.session_factory, [pipeline])
        manager.start()
        await asyncio.sleep(1)
        manager.shutdown()
        faults.heal()
        await manager.drain()
    assert pipeline.items == []
    assert [event.row_id for event in heard.of(events.ItemReleased)] == [row.id]
    after = await read(virtual_database, row)
    assert is_free(after)
    assert after.last_processed_at is None


@virtual_time
async def test_what_a_claim_brings_too_late_is_given_back(
    virtual_database: TemporaryDatabase,
) -> None:
    """A loop that stood still would cost its rows an attempt that never began, as if somebody
    had died with them.
    """
    [row] = await add(virtual_database, Volume())
    pipeline = VolumePipeline()
    with heard_events() as heard, faults_of(virtual_database.engine) as faults:
        faults.block_the_loop_after_commit(when=is_claim, seconds=40)
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await until(lambda: pipeline.items)
            counters = manager.statistics()["VolumePipeline"].counters
    assert [event.row_id for event in heard.of(events.ItemReleased)] == [row.id]
    assert heard.of(events.LeaseExpired) == []
    assert (counters["claimed"], counters["recovered"]) == (2, 0)
    [failure] = heard.of(events.FetchFailed)
    assert failure.error.startswith(
        "TransactionTimeout: the transaction to claim rows did not end within 40"
    )


@virtual_time
async def test_items_are_tracked_before_they_are_queued(
    virtual_database: TemporaryDatabase,
) -> None:
    """A worker that is quicker than the fetcher would untrack first, and a lease be renewed for
    ever.
    """
    await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        tracked: list[int] = []
        put = steps.run.context.queue.put

        def look(items: Any) -> None:
            tracked.append(len(steps.run.heartbeater))
            put(items)

        steps.run.context.queue.put = look  # type: ignore[method-assign]
        await steps.fetch_once()
        assert tracked == [1]


@pytest.mark.parametrize("columns", [["lock_expires_at"], ["last_processed_at", "due_at"]])
async def test_times_without_a_zone_are_one_clear_error_at_the_start(
    postgresql_database: TemporaryDatabase, columns: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Naive time columns under the mixin (an unmigrated table): at the start, as `check` does, one
    clear error; rows would wait for hours.
    """
    [run] = await add(postgresql_database, Run())

    async def retype(type_: str) -> None:
        async with postgresql_database.engine.begin() as connection:
            for column in columns:
                await connection.exec_driver_sql(f"ALTER TABLE runs ALTER {column} TYPE {type_}")

    await retype("timestamp")
    said = f"runs has times without a zone in the database: {', '.join(columns)}"
    with heard_events() as heard:
        async with PipelineManager(
            postgresql_database.session_factory, [RunPipeline(fetch_delays=(0.05,))]
        ) as manager:
            await heard.wait_for(events.FetchFailed, count=2)
            assert said in (manager.health().pipelines[0].last_error or "")
            assert heard.of(events.RowsClaimed) == []
            await retype("timestamptz")
            await heard.wait_for(events.ItemApplied)
    [error] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert said in error.getMessage()
    assert (await read(postgresql_database, run)).status == "done"
