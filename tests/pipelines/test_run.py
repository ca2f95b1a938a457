"""One run of a pipeline: that it ends in order, within its bounds, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest

from rowlock import Outcome, Pipeline, PipelineHinter, PipelineItem, PipelineManager, events
from rowlock.pipelines.run import PipelineRun
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import (
    Faults,
    add,
    change,
    faults_of,
    hang,
    is_claim,
    is_free,
    is_outcome,
    is_renewal,
    now,
    read,
    turns,
    until,
)

ENDS_WITHIN_S = 60.0
"""Bound of a drain without grace while the database hangs, with the default settings. **Unit**
seconds.
"""


def started(database: TemporaryDatabase, pipeline: Pipeline[Any]) -> PipelineRun[Any]:
    pipeline.start(database.session_factory, PipelineHinter())
    return pipeline.run


@virtual_time
async def test_told_to_end_at_any_moment_it_leaves_nothing_locked(
    virtual_database: TemporaryDatabase,
) -> None:
    """A shutdown in the middle of a claim, a read, a process or a write would leave a row to its
    lease.
    """
    await add(virtual_database)
    seen: set[str] = set()
    for moment in range(0, 130, 3):
        [row] = await add(virtual_database, Volume())
        pipeline = VolumePipeline(answer=_after_some_turns)
        run = started(virtual_database, pipeline)
        await turns(moment)
        began_at = now()
        await run.drain(0)
        assert now() < began_at + 1
        after = await read(virtual_database, row)
        assert is_free(after)
        assert run.state == "stopped"
        assert not any(run.health().loops_alive.values())
        seen.add(after.status if pipeline.items else "never started")
        await change(virtual_database, row, status="over")
    assert seen == {"never started", "submitted", "active"}, (
        "the moments were spread over all of its life"
    )


async def _after_some_turns(item: PipelineItem[Any]) -> Outcome:
    await turns(20)
    return VolumePipeline().usual_answer(item)


@virtual_time
async def test_leases_are_kept_while_the_grace_lasts(virtual_database: TemporaryDatabase) -> None:
    """The heartbeater would stop first, and the work that was given time lose its lease in the
    middle of it.
    """
    [row] = await add(virtual_database, Volume())

    async def answer(item: PipelineItem[Any]) -> Outcome:
        await asyncio.sleep(100)
        return pipeline.usual_answer(item)

    pipeline = VolumePipeline(answer=answer)
    with heard_events() as heard:
        run = started(virtual_database, pipeline)
        await until(lambda: pipeline.items)
        await run.drain(200)
    assert heard.of(events.LeaseExpired) == []
    assert (await read(virtual_database, row)).status == "active"


@virtual_time
async def test_it_ends_as_soon_as_its_work_does(virtual_database: TemporaryDatabase) -> None:
    """A shutdown would take all of its grace although nothing is left to do."""
    await add(virtual_database, Volume())
    pipeline = VolumePipeline(answer=lambda item: asyncio.sleep(3))
    run = started(virtual_database, pipeline)
    await until(lambda: pipeline.items)
    began_at = now()
    await run.drain(200)
    assert now() == pytest.approx(began_at + 3, abs=0.1)


HANGS: dict[str, tuple[Callable[[Faults], None], bool]] = {
    "claim": (lambda faults: faults.hang(when=is_claim), False),
    "outcome": (lambda faults: faults.hang(when=is_outcome), True),
    "renewal": (lambda faults: faults.hang(when=is_renewal), True),
    "everything": (lambda faults: faults.hang(), True),
}


@pytest.mark.parametrize("hanging", HANGS)
@virtual_time
async def test_a_database_that_hangs_does_not_stop_the_shutdown(
    virtual_database: TemporaryDatabase, hanging: str
) -> None:
    """A deployment would wait for ever for a replica that waits for the database."""
    await add(virtual_database, *(Volume() for _ in range(12)))
    fault, when_it_works = HANGS[hanging]
    pipeline = VolumePipeline(workers_num=4, answer=hang)
    with faults_of(virtual_database.engine) as faults:
        if not when_it_works:
            fault(faults)
        run = started(virtual_database, pipeline)
        if when_it_works:
            await until(lambda: len(pipeline.items) == 4)
            fault(faults)
        await asyncio.sleep(20)
        began_at = now()
        await run.drain(0)
        assert now() < began_at + ENDS_WITHIN_S
        assert run.state == "stopped"
        assert pipeline.running == 0
        faults.heal()
        await turns(100)


@virtual_time
async def test_the_last_wait_is_for_outcomes_that_are_written_with_others(
    virtual_database: TemporaryDatabase,
) -> None:
    """Work that was done would be lost with the host's engine, and its side effects be left
    behind.
    """
    rows = await add(virtual_database, *(Volume() for _ in range(3)))
    pipeline = VolumePipeline(workers_num=3, database_timeout=2, cancel_grace=1)
    run = started(virtual_database, pipeline)
    batcher: Any = run.settler._batcher
    write, batcher._limit.requests = batcher._run, 1

    async def write_slowly(batch: Any) -> Any:
        # Three of them take longer than the first wait, and less than two.
        await asyncio.sleep(2)
        return await write(batch)

    batcher._run = write_slowly
    await until(lambda: len(run.settler) == 3)
    await run.drain(0)
    assert [(await read(virtual_database, row)).status for row in rows] == ["active"] * 3


@virtual_time
async def test_a_signal_handler_may_shut_down_in_the_middle_of_anything(
    virtual_database: TemporaryDatabase,
) -> None:
    """A handler of `signal.signal` runs between any two lines, here those that queue a claim:
    its rows would stay leased.
    """
    rows = await add(virtual_database, *(Volume() for _ in range(4)))
    pipeline = VolumePipeline()
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        queue = pipeline.run.context.queue
        put = queue.put

        def interrupted(items: Iterable[PipelineItem[Any]]) -> None:
            signal.raise_signal(signal.SIGUSR1)
            put(items)

        queue.put = interrupted  # type: ignore[method-assign]
        handler = signal.signal(signal.SIGUSR1, lambda *_: manager.shutdown())
        try:
            await until(lambda: pipeline.state == "stopping")
            await asyncio.sleep(1)
        finally:
            signal.signal(signal.SIGUSR1, handler)
        assert pipeline.items == []
        assert [is_free(await read(virtual_database, row)) for row in rows] == [True] * 4
        assert len(pipeline.run.heartbeater) == 0
        # Nor did somebody have to look for what had been lost on its way.
        assert pipeline.run.context.counters.strays == 0


async def test_a_signal_in_the_middle_of_the_start_stops_all(
    sqlite_database: TemporaryDatabase,
) -> None:
    """Pipelines that were not started yet when the host was told to end would work on."""
    first, second = VolumePipeline(), RunPipeline()
    manager = PipelineManager(sqlite_database.session_factory, [first, second])
    start = first.start

    def told_meanwhile(*arguments: Any, **options: Any) -> None:
        start(*arguments, **options)
        manager.shutdown()

    first.start = told_meanwhile  # type: ignore[method-assign]
    manager.start()
    assert [first.state, second.state] == ["stopping", "stopping"]
    await manager.drain()


@virtual_time
async def test_a_shutdown_at_once_frees_what_waits_although_work_runs(
    virtual_database: TemporaryDatabase,
) -> None:
    """Queued rows would wait for the grace of those that run."""
    rows = await add(virtual_database, Volume(), Volume(), Volume())
    pipeline = VolumePipeline(workers_num=1, queue_upper_limit_factor=3, answer=hang)
    run = started(virtual_database, pipeline)
    await until(lambda: pipeline.items)
    assert run.statistics().queued == 2
    run.shutdown()
    run.shutdown()
    await asyncio.sleep(0.1)
    free = [is_free(await read(virtual_database, row)) for row in rows]
    assert sorted(free) == [False, True, True]
    statistics = run.statistics()
    assert (statistics.queued, statistics.running, statistics.tracked) == (0, 1, 1)
    assert run.state == "stopping"
    await run.drain(0)


class ReadPipeline(VolumePipeline):
    def options(self) -> list[Any]:
        return []


@virtual_time
async def test_a_row_that_is_read_when_the_grace_ends_is_not_begun(
    virtual_database: TemporaryDatabase,
) -> None:
    """Nobody would end that work: it would go on behind the drain, on a row whose lease nobody
    renews.
    """
    [row] = await add(virtual_database, Volume())
    pipeline = ReadPipeline(answer=hang)
    with faults_of(virtual_database.engine) as faults:
        faults.hang(
            when=lambda statement: (
                statement.startswith("SELECT volumes.") and not is_claim(statement)
            )
        )
        run = started(virtual_database, pipeline)
        await until(lambda: run.context.in_progress)
        drained = asyncio.create_task(run.drain(1))
        await asyncio.sleep(3)
        faults.heal()
        await drained
    assert pipeline.items == []
    assert run.context.in_progress == set()
    assert is_free(await read(virtual_database, row))


class UntidyPipeline(VolumePipeline):
    cleaned_up = 0

    async def on_stale(self, item: PipelineItem[Any], outcome: Outcome) -> None:  # type: ignore[override]
        try:
            await hang()
        finally:
            self.cleaned_up += 1


@virtual_time
async def test_a_cleanup_that_begins_behind_the_grace_is_ended(
    virtual_database: TemporaryDatabase,
) -> None:
    """It would go on behind the drain, over an engine that the host has closed by then."""

    async def answer(item: PipelineItem[Any]) -> Outcome:
        with suppress(asyncio.CancelledError):
            await hang()
        item.lose()
        return pipeline.usual_answer(item)

    await add(virtual_database, Volume())
    pipeline = UntidyPipeline(answer=answer)
    run = started(virtual_database, pipeline)
    await until(lambda: pipeline.items)
    began_at = now()
    await run.drain(1)
    assert pipeline.cleaned_up == 1
    assert len(run.context.background) == 0
    assert now() - began_at < ENDS_WITHIN_S


@virtual_time
async def test_after_the_end_no_statement_is_sent(virtual_database: TemporaryDatabase) -> None:
    """A loop would outlive its pipeline and use connections of an engine that the host closes."""
    await add(virtual_database, Volume())
    run = started(virtual_database, VolumePipeline())
    await asyncio.sleep(1)
    await run.drain(0)
    with faults_of(virtual_database.engine) as faults:
        run.hint()
        await asyncio.sleep(100)
    assert faults.sent == []


@virtual_time
async def test_two_drains_at_once(virtual_database: TemporaryDatabase) -> None:
    """A host whose shutdown runs twice would hang, or release rows twice."""
    [row] = await add(virtual_database, Volume())
    pipeline = VolumePipeline(answer=hang)
    with heard_events() as heard:
        run = started(virtual_database, pipeline)
        await until(lambda: pipeline.items)
        await asyncio.gather(run.drain(1), run.drain(2))
    assert len(heard.of(events.ItemReleased)) == 1
    assert is_free(await read(virtual_database, row))
