"""A `process` that does what it should not: what is lost is its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text, update

from rowlock import Apply, PipelineHinter, PipelineItem, PipelineManager, events
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import HANG_S_MAX, Run, RunPipeline, Volume, VolumePipeline, heard_events
from ..pipelines.scenes import TidyPipeline, add, counted, is_free, read, read_all, until
from .patience import QUICK

DONE = Apply({"status": "active"})
SHORT = {"lock_timeout": 5, "heartbeat_trigger": 4, "database_timeout": 1}
"""Leases that a test can wait for, and that no starved machine loses."""


# ---------------------------------------------------------------- sessions


async def poison(session: Any, item: Any) -> None:
    for _ in range(2):
        try:
            await session.execute(text("SELECT nothing FROM nowhere"))
        except Exception:  # noqa: BLE001 - the host looks away
            continue


async def close(session: Any, item: Any) -> None:
    await session.execute(select(Volume))
    await session.close()


async def invalidate(session: Any, item: Any) -> None:
    connection = await session.connection()
    await connection.invalidate()


async def roll_back(session: Any, item: Any) -> None:
    await session.execute(update(Volume).where(Volume.id == item.id).values(status="half-way"))
    await session.rollback()


async def leave_uncommitted(session: Any, item: Any) -> None:
    await session.execute(update(Volume).where(Volume.id == item.id).values(status="half-way"))


async def merge_the_row(session: Any, item: Any) -> None:
    """Put the detached row into a session, change it there, and forget the commit."""
    row = await session.merge(item.row)
    row.status = "half-way"
    await session.flush()


@pytest.mark.parametrize(
    ("act", "failed"),
    [
        (poison, 0),
        (close, 0),
        (invalidate, 0),
        (roll_back, 0),
        (leave_uncommitted, 1),
        (merge_the_row, 1),
    ],
)
async def test_a_session_that_was_spoilt_spoils_no_outcome(
    database: TemporaryDatabase, act: Callable[..., Any], failed: int
) -> None:
    """What the host does to its own session would reach the transaction that writes the outcome,
    or a commit that is missing would pass for success.
    """
    one, other = await add(database, Volume(), Volume())

    async def process(item: PipelineItem[Any]) -> Apply:
        if item.id == one.id:
            async with item.session() as session:
                await act(session, item)
        return DONE

    async with stepping(database.session_factory, VolumePipeline(answer=process)) as steps:
        await steps.fetch_once()
        await steps.work_all()
        assert counted(steps)["applied"] == 2 - failed
    for row in (one, other):
        after, status = await read(database, row), row.status if row is one and failed else "active"
        assert (after.status, is_free(after)) == (status, True)


async def test_a_transaction_left_open_holds_up_its_own_row_only(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A session that is never closed keeps its row locked: the outcomes of all others would wait
    for it.
    """
    database = postgresql_database
    one, *others = await add(database, *(Volume() for _ in range(5)))
    left: list[Any] = []

    async def process(item: PipelineItem[Any]) -> Apply:
        if item.id == one.id and not left:
            session = item.session()
            left.append(session)
            await session.execute(update(Volume).where(Volume.id == item.id).values(size_gb=2))
        return DONE

    with heard_events() as heard:
        async with PipelineManager(
            database.session_factory, [VolumePipeline(answer=process, **QUICK, **SHORT)]
        ):
            told = await heard.wait_for(events.ItemApplied, count=4)
            assert {event.row_id for event in told} == {row.id for row in others}
            # The lease of that one row cannot be renewed either, so its work is lost.
            await heard.wait_for(events.ItemStale)
            await left[0].close()
            await heard.wait_for(events.ItemApplied, count=5)
            assert {event.row_id for event in heard.of(events.ItemStale)} == {one.id}
    assert all(
        (row.status, is_free(row)) == ("active", True) for row in await read_all(database, Volume)
    )


# ---------------------------------------------------------------- the row, tasks, context


async def test_what_is_done_to_the_row_is_written_nowhere(database: TemporaryDatabase) -> None:
    """A change of the instance would be flushed by some session, or be lost without a word."""
    await add(database, Run(id=1))

    def process(item: PipelineItem[Any]) -> Apply:
        item.row.result = "mutated"
        item.row.attempts = 99
        item.row.due_at = None
        item.row.lock_token = None
        item.row.lock_owner = "Somebody"
        del item.row.status
        return Apply({"status": "done"})

    async with stepping(database.session_factory, RunPipeline(answer=process)) as steps:
        await steps.fetch_once()
        await steps.work_all()
    [row] = await read_all(database, Run)
    assert (row.status, row.result, row.attempts, is_free(row)) == ("queued", None, 1, True)
    assert "changed item.row (result, attempts" in row.last_error


@virtual_time
async def test_tasks_that_process_leaves_are_its_own_affair(
    virtual_database: TemporaryDatabase,
) -> None:
    """An outcome would wait for what was started beside it, or a shutdown would."""
    strays: list[asyncio.Task[None]] = []

    async def process(item: PipelineItem[Any]) -> Apply:
        strays.append(asyncio.create_task(asyncio.Event().wait()))  # type: ignore[arg-type]
        return DONE

    [row] = await add(virtual_database, Volume())
    async with PipelineManager(
        virtual_database.session_factory, [TidyPipeline(answer=process)]
    ) as manager:
        await until(lambda: manager.statistics()["TidyPipeline"].counters["applied"])
    assert (await read(virtual_database, row)).status == "active"
    [stray] = strays
    assert not stray.done()
    stray.cancel()
    await asyncio.wait({stray})


# ---------------------------------------------------------------- work that does not end


class PlainPipeline(VolumePipeline):
    """Works in a thread, and never ends with rows of 13 GB.

    Attributes:
        let_go: ends that as well.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.let_go = threading.Event()

    def process(self, item: PipelineItem[Any]) -> Apply:  # type: ignore[override]
        if item.row.size_gb == 13:
            self.let_go.wait(timeout=HANG_S_MAX)
        return DONE


async def test_a_thread_that_never_ends_costs_its_own_row_only(database: TemporaryDatabase) -> None:
    """One call that hangs in a thread would keep a worker, or a thread, from all other rows."""
    [hung] = await add(database, Volume(size_gb=13))
    await add(database, *(Volume() for _ in range(8)))
    pipeline = PlainPipeline(workers_num=2, process_timeout=1, cancel_grace=0.1, **QUICK)
    try:
        with heard_events() as heard:
            async with PipelineManager(database.session_factory, [pipeline]) as manager:
                await heard.wait_for(events.ItemApplied, count=8)
                await heard.wait_for(events.ItemAbandoned)
                health = manager.health().pipelines[0]
                assert (health.abandoned, all(health.loops_alive.values())) == (1, True)
                assert (await read(database, hung)).status == "submitted"
                await manager.drain(0)
                # It may still be at work: its row is nobody else's before the lease has ended.
                assert not is_free(await read(database, hung))
    finally:
        pipeline.let_go.set()
    async with asyncio.timeout(HANG_S_MAX):
        while not pipeline.stale:  # noqa: ASYNC110 - told from a thread that outlives the pipeline
            await asyncio.sleep(0)
    assert [item.id for item, _ in pipeline.stale] == [hung.id]
    assert (await read(database, hung)).status == "submitted"


@virtual_time
async def test_what_returns_after_the_shutdown_is_not_applied(
    virtual_database: TemporaryDatabase,
) -> None:
    """A result of an attempt that outlived its pipeline would be written without a lease, or be
    cleaned up by nobody.
    """
    [row] = await add(virtual_database, Volume())
    let_go = asyncio.Event()

    async def process(item: PipelineItem[Any]) -> Apply:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return DONE

    pipeline = TidyPipeline(answer=process)
    pipeline.start(virtual_database.session_factory, PipelineHinter())
    await until(lambda: pipeline.items)
    await pipeline.drain(timedelta(0))
    token = pipeline.items[0].lock_token
    let_go.set()
    await until(lambda: pipeline.stale)
    after = await read(virtual_database, row)
    assert (after.status, after.lock_token) == ("submitted", token)
    assert [outcome for _, outcome in pipeline.stale] == [DONE]


@virtual_time
async def test_a_host_that_cancels_every_task_is_told_of_what_ended(
    virtual_database: TemporaryDatabase,
) -> None:
    """A pipeline whose loops were all cancelled would look healthy and do nothing."""
    await add(virtual_database, Volume())
    me = asyncio.current_task()

    async def process(item: PipelineItem[Any]) -> Apply:
        for task in asyncio.all_tasks() - {me}:
            task.cancel()
        return DONE

    manager = PipelineManager(virtual_database.session_factory, [TidyPipeline(answer=process)])
    manager.start()
    await until(lambda: not manager.health().healthy)
    await asyncio.sleep(60)
    assert not manager.health().healthy
    await manager.drain(0)
