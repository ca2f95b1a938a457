"""Tests of attempts whose replica, worker or handler is at odds with the row: what is whose
affair.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from itertools import pairwise

import pytest
from sqlalchemy import update

from rowlock import PipelineManager
from rowlock.dispatch import (
    COMPLETED,
    FAILED,
    PENDING,
    RUNNING,
    AttemptEvent,
    Completed,
    DispatchPipeline,
    Progress,
    Task,
    WorkerGone,
    WorkerView,
)
from rowlock.dispatch.delivery import LOOK_EVERY_S
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..pipelines.scenes import faults_of, is_outcome, until
from .renders import (
    Fleet,
    Render,
    Scenes,
    add,
    now_of,
    one_render,
    pipeline_of,
    settled,
    submit,
    without_end,
)


@virtual_time
async def test_a_replica_that_is_broken_fails_no_rows(
    virtual_database: TemporaryDatabase, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One replica whose disk is full would fail every row that it takes, for all of them."""
    root = tmp_path_factory.mktemp("scratch")
    fleet = Fleet(1)
    renders = pipeline_of(fleet, scratch_root=root)
    os.rmdir(root)  # noqa: PTH106 - a test may take it away
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(30)
        row = await one_render(virtual_database)
        assert (row.status, row.losses, fleet.begun["a"]) == (PENDING, 0, 0)
        assert row.attempts > 1
        assert (row.last_error or "").startswith("internal: FileNotFoundError")
        os.mkdir(root)  # noqa: PTH102
        [row] = await settled(virtual_database)
    assert row.status == COMPLETED


@virtual_time
async def test_the_rest_after_a_loss_is_kept_though_there_is_room(
    virtual_database: TemporaryDatabase,
) -> None:
    """A worker's machine that reboots would cost its row all the losses it may have, within
    seconds.
    """
    scenes, fleet = Scenes(), Fleet(3)
    begun: list[float] = []

    async def dies(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        begun.append(asyncio.get_running_loop().time())
        yield Progress("x")
        raise WorkerGone("worker-1", "rebooting")

    scenes.answers["a"] = dies
    renders = pipeline_of(fleet, scenes, retry_delay=20, retry_delay_max=100)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await settled(virtual_database)
    rests = [after - before for before, after in pairwise(begun)]
    assert len(rests) == 2
    assert min(rests) > 15


@virtual_time
async def test_the_last_progress_is_written_with_the_result(
    virtual_database: TemporaryDatabase,
) -> None:
    """A picture that is done would be shown as done to nine tenths."""
    scenes, fleet = Scenes(), Fleet(1)

    async def talks(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        for percent in range(0, 101, 10):
            yield Progress(f"{percent} %")
        yield Completed()

    scenes.answers["a"] = talks
    renders = pipeline_of(fleet, scenes)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        [row] = await settled(virtual_database)
    assert row.progress == "100 %"


@virtual_time
async def test_an_attempt_that_does_not_end_keeps_its_row(
    virtual_database: TemporaryDatabase,
) -> None:
    """A row would be given to another replica while its handler still runs."""
    scenes, fleet, gate = Scenes(), Fleet(1), asyncio.Event()

    scenes.answers["a"] = without_end(gate)
    renders = pipeline_of(fleet, scenes, cancel_grace=1)
    manager = PipelineManager(virtual_database.session_factory, [renders])
    manager.start()
    await submit(virtual_database, renders, "a")
    await asyncio.sleep(5)
    await manager.drain(1)
    row = await one_render(virtual_database)
    assert (row.status, row.lock_token is None, fleet.running) == (RUNNING, False, 1)
    gate.set()
    await asyncio.sleep(1)
    assert fleet.running == 0


@virtual_time
async def test_a_worker_is_held_until_its_row_has_ended(
    virtual_database: TemporaryDatabase,
) -> None:
    """More rows would be running than there are workers, while results are on their way."""
    fleet = Fleet(1)
    renders = pipeline_of(fleet, Scenes(5))
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [renders]):
            await submit(virtual_database, renders, "a")
            await until(lambda: fleet.running)
            faults.hang(when=is_outcome)
            await asyncio.sleep(8)
            assert fleet.workers()["worker-1"].active == 1
            faults.heal()
            await settled(virtual_database)
            await until(lambda: not fleet.workers()["worker-1"].active)


@virtual_time
async def test_an_attempt_that_is_given_up_ends_before_the_next_begins(
    virtual_database: TemporaryDatabase,
) -> None:
    """Two attempts at one row would run beside each other, since the first had only fallen
    silent.
    """
    fleet = _SlowToEnd(2)
    renders = pipeline_of(fleet, heartbeat=10, cancel_grace=60)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(300)
        assert len(fleet.tasks) > 1
        assert fleet.running_max == 1


@virtual_time
async def test_a_replica_leases_no_more_than_it_can_begin(
    virtual_database: TemporaryDatabase,
) -> None:
    """A replica that is full for hours would keep as many rows again from one that is idle."""
    full, idle = Fleet(4), Fleet(4)
    first, second = (pipeline_of(fleet, Scenes(3600), workers_num=4) for fleet in (full, idle))
    async with PipelineManager(virtual_database.session_factory, [first]):
        await submit(virtual_database, first, *(f"{number}" for number in range(8)))
        await asyncio.sleep(10)
        assert (full.running, first.statistics().queued) == (4, 0)
        async with PipelineManager(virtual_database.session_factory, [second]):
            await asyncio.sleep(10)
            assert (full.running, idle.running) == (4, 4)
            await settled(virtual_database, every_s=60)
    assert (full.running_max, idle.running_max) == (4, 4)


@virtual_time
async def test_an_orphan_that_could_not_be_read_for_a_while_is_done(
    virtual_database: TemporaryDatabase,
) -> None:
    """What the database said of a row that could not be read would be taken for what it said of
    a result.
    """
    now = await now_of(virtual_database)
    orphan = Render(
        dedup_key="a",
        scene="a",
        status=RUNNING,
        started_at=now,
        last_error="StatementError: no such type",
    )
    await add(virtual_database, orphan)
    async with PipelineManager(virtual_database.session_factory, [pipeline_of(Fleet(1))]):
        [row] = await settled(virtual_database)
    assert (row.status, row.error) == (COMPLETED, None)


@virtual_time
async def test_a_provisioner_that_cannot_count_fails_no_rows(
    virtual_database: TemporaryDatabase,
) -> None:
    """A slip in an engine that shows itself when nobody accepts would fail every row that only
    has to wait.
    """

    class Uncounted(Fleet):
        def workers(self) -> Mapping[str, WorkerView]:
            if sys._getframe(1).f_code.co_name == "ask":
                raise RuntimeError("a slip")
            return super().workers()

    async def provision(_key: str) -> None:
        raise AssertionError

    renders = DispatchPipeline(Render, handler=Scenes(), engine=Uncounted(), provision=provision)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(10)
        row = await one_render(virtual_database)
    assert (row.status, row.last_error) == (PENDING, "internal: RuntimeError: a slip")


@virtual_time
async def test_the_end_waits_for_attempts_to_be_closed(virtual_database: TemporaryDatabase) -> None:
    """A host's own test of its pipeline would end with a task left behind; and a process with
    folders.
    """

    class SlowToClose(Fleet):
        async def run(self, worker: str, task: Task[Render]) -> AsyncGenerator[AttemptEvent, None]:
            try:
                yield Completed()
            finally:
                await asyncio.sleep(2)

    fleet = SlowToClose(1)
    renders = pipeline_of(fleet)
    async with stepping(virtual_database.session_factory, renders) as steps:
        await submit(virtual_database, renders, "a")
        await steps.fetch_once()
        await steps.work_once()
        assert (await one_render(virtual_database)).status == COMPLETED
        assert fleet.workers()["worker-1"].active == 1
    assert fleet.workers()["worker-1"].active == 0


@virtual_time
async def test_a_handler_that_says_nothing_is_cancelled_with_its_row(
    virtual_database: TemporaryDatabase,
) -> None:
    """A client that has cancelled would wait for hours until the worker is free, and so would
    everybody behind it.
    """
    fleet = Fleet(1)
    renders = pipeline_of(fleet, Scenes(3600))
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(5)
        async with virtual_database.session_factory.begin() as session:
            await session.execute(
                update(Render).values(status=FAILED, error="input: cancelled by its owner")
            )
        await asyncio.sleep(LOOK_EVERY_S + 15)
        assert fleet.running == 0
        row = await one_render(virtual_database)
    assert (row.status, row.lock_token, row.losses) == (FAILED, None, 0)


@virtual_time
async def test_a_database_that_is_away_cancels_nothing(virtual_database: TemporaryDatabase) -> None:
    """Every attempt would be thrown away, because its row could not be looked at for a moment."""
    fleet = Fleet(1)
    renders = pipeline_of(fleet, Scenes(60))
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [renders]):
            await submit(virtual_database, renders, "a")
            await until(lambda: fleet.running)
            await asyncio.sleep(5)
            faults.fail(
                ConnectionResetError("away"), when=lambda statement: statement.startswith("SELECT")
            )
            await asyncio.sleep(30)
            faults.heal()
            [row] = await settled(virtual_database)
    assert (row.status, fleet.begun["a"]) == (COMPLETED, 1)


@virtual_time
async def test_a_drain_meets_an_attempt_that_is_being_ended(
    virtual_database: TemporaryDatabase,
) -> None:
    """The row of a silent worker would be given away at once, while its attempt still tidies up."""
    fleet = _SlowToEnd(1)
    renders = pipeline_of(fleet, heartbeat=10, cancel_grace=1)
    manager = PipelineManager(virtual_database.session_factory, [renders])
    manager.start()
    await submit(virtual_database, renders, "a")
    await asyncio.sleep(40)
    await manager.drain(0)
    assert fleet.running == 1
    assert (await one_render(virtual_database)).lock_token is not None
    await asyncio.sleep(30)
    assert fleet.running == 0


class _SlowToEnd(Fleet):
    """Accepts, says nothing more, and takes its time to end."""

    beats_itself = True

    async def run(self, worker: str, task: Task[Render]) -> AsyncIterator[AttemptEvent]:  # type: ignore[override]
        self.tasks.append(task)
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            await asyncio.sleep(10_000)
            yield Completed()
        finally:
            await asyncio.sleep(20)
            self.running -= 1
