"""Tests of one attempt: each way it can go leaves the row as the transitions say, once."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

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
    Failed,
    Progress,
    StageDone,
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
    all_renders,
    now_of,
    one_render,
    pipeline_of,
    settled,
    submit,
    without_end,
)

# ---------------------------------------------------------------- accepted


@virtual_time
async def test_it_runs_from_the_moment_a_worker_accepts(
    virtual_database: TemporaryDatabase,
) -> None:
    """A long download would leave the row pending, and it would be offered a second time
    meanwhile.
    """
    fleet = Fleet(1)
    async with PipelineManager(
        virtual_database.session_factory, [pipeline_of(fleet, Scenes(300))]
    ) as manager:
        del manager
        await add(virtual_database, Render(dedup_key="a"))
        await asyncio.sleep(10)
        row = await one_render(virtual_database)
        assert (row.status, row.worker) == (RUNNING, "worker-1")
        assert row.started_at is not None
        assert row.started_at - row.submitted_at < timedelta(seconds=6)
        [done] = await settled(virtual_database, every_s=60)
    assert (done.status, done.url, done.error) == (COMPLETED, "https://pictures/", None)
    assert done.finished_at is not None
    assert done.finished_at - row.started_at == pytest.approx(
        timedelta(seconds=300), abs=timedelta(seconds=1)
    )
    assert fleet.begun == {"a": 1}


@virtual_time
async def test_stages_are_recorded_at_once_and_skipped_later(
    virtual_database: TemporaryDatabase,
) -> None:
    """What took hours would be done again after every crash."""
    scenes, fleet = Scenes(), Fleet(1)

    async def dies_once(task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        if not task.is_done("raw"):
            yield StageDone("raw", {"file": "raw-1"})
            recorded.append((await one_render(virtual_database)).stages)
            raise WorkerGone("worker-1", "killed")
        yield StageDone("tiles", 2)
        yield Completed({"report": dict(task.stages)})

    recorded: list[object] = []
    scenes.answers["a"] = dies_once
    renders = pipeline_of(fleet, scenes)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        [row] = await settled(virtual_database)
    assert recorded == [{"raw": {"file": "raw-1"}}]
    assert (row.status, row.report, row.losses) == (COMPLETED, {"raw": {"file": "raw-1"}}, 1)
    assert row.stages == {"raw": {"file": "raw-1"}, "tiles": 2}


@virtual_time
async def test_progress_is_shown_and_not_written_for_every_word(
    virtual_database: TemporaryDatabase,
) -> None:
    """A handler that tells of every frame would write to the database all the time."""
    scenes, fleet = Scenes(), Fleet(1)

    async def talks(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        for percent in range(100):
            yield Progress(f"{percent} % of /srv/renders/secret/out.png" + "." * 300)
            await asyncio.sleep(0.1)
        yield Completed()

    scenes.answers["a"] = talks
    renders = pipeline_of(fleet, scenes)
    seen: set[str | None] = set()
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        for _ in range(110):
            await asyncio.sleep(0.1)
            seen.add((await one_render(virtual_database)).progress)
    texts = {text for text in seen if text}
    assert 8 <= len(texts) <= 11
    assert all(len(text) == 256 and "/" not in text for text in texts)


# ---------------------------------------------------------------- not accepted


@virtual_time
async def test_an_overflow_rests_for_the_interval_and_some(
    virtual_database: TemporaryDatabase,
) -> None:
    """Rows would be offered all the time to workers that are not there, all at the same moment."""
    renders = pipeline_of(Fleet(0), retry_interval=120)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, *"abcdefgh")
        await asyncio.sleep(2)
        rows = await all_renders(virtual_database)
    rests = [(row.due_at - row.submitted_at).total_seconds() for row in rows]
    assert all(120 <= rest <= 152 for rest in rests)
    assert max(rests) - min(rests) > 5
    assert {(row.status, row.attempts, row.last_error) for row in rows} == {
        (PENDING, 1, "capacity: there is no worker")
    }


@virtual_time
async def test_the_deadline_counts_from_the_submission(virtual_database: TemporaryDatabase) -> None:
    """A row that nobody takes would wait for ever, or be begun long after anybody wants it."""
    fleet = Fleet(0)
    renders = pipeline_of(fleet, dispatch_deadline=200)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        [row] = await settled(virtual_database, every_s=60)
    assert row.status == FAILED
    assert row.error == "capacity: no worker has done it within 200 s after its submission"
    assert row.finished_at is not None
    assert (
        timedelta(seconds=200) <= row.finished_at - row.submitted_at <= timedelta(seconds=200 + 160)
    )


@virtual_time
async def test_recovery_does_not_reset_the_deadline(virtual_database: TemporaryDatabase) -> None:
    """A row that kills its workers would be tried for ever."""
    now, fleet = await now_of(virtual_database), Fleet(1)
    lease = {
        "lock_token": uuid.uuid4(),
        "lock_owner": "DispatchRender",
        "lock_expires_at": now - timedelta(seconds=1),
    }
    late = Render(dedup_key="a", status=RUNNING, submitted_at=now - timedelta(seconds=601), **lease)
    await add(virtual_database, late)
    async with PipelineManager(
        virtual_database.session_factory, [pipeline_of(fleet, dispatch_deadline=600)]
    ):
        [row] = await settled(virtual_database)
    assert (row.status, fleet.tasks) == (FAILED, [])
    assert (row.error or "").startswith("capacity: ")


# ---------------------------------------------------------------- lost


@virtual_time
async def test_workers_that_die_cost_attempts_up_to_a_limit(
    virtual_database: TemporaryDatabase,
) -> None:
    """One row that kills its worker would kill them all, one after the other."""
    scenes, fleet = Scenes(), Fleet(1)

    async def kills(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("so far so good")
        raise WorkerGone("worker-1", "killed by signal 9")

    scenes.answers["a"] = kills
    renders = pipeline_of(fleet, scenes, max_losses=3)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        [row] = await settled(virtual_database)
    assert (row.status, fleet.begun["a"]) == (FAILED, 3)
    assert row.error == "heartbeat lost: 3 attempts were lost; the last one: killed by signal 9"


# ---------------------------------------------------------------- done, or not to be done


@virtual_time
async def test_a_silent_worker_is_given_up(virtual_database: TemporaryDatabase) -> None:
    """A worker behind a cut line would keep its row until the time limit."""
    scenes, fleet = Scenes(), _Silent(1)
    renders = pipeline_of(fleet, scenes, heartbeat=10)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(45)
        row = await one_render(virtual_database)
        assert (row.losses, fleet.running) == (1, 1)
        assert row.last_error == "heartbeat lost: nothing was heard of it for 30 s"
    assert fleet.running == 0


class _Silent(Fleet):
    beats_itself = True

    async def run(self, worker: str, task: Task[Render]) -> AsyncIterator[AttemptEvent]:  # type: ignore[override]
        self.running += 1
        try:
            await asyncio.sleep(10_000)
            yield Completed()
        finally:
            self.running -= 1


@virtual_time
async def test_a_failure_is_final_and_tells_no_paths(virtual_database: TemporaryDatabase) -> None:
    """Bad input would be worked on again and again, and clients would read about our disks."""
    scenes, fleet = Scenes(), Fleet(1)

    async def refuses(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Failed(
            "input", "no picture in /srv/uploads/7/scene.blend, nor in C:\\data\\scene.blend"
        )

    async def raises(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("x")
        raise FileNotFoundError("/var/lib/renders/cache/tile.bin")

    async def ends(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("x")

    async def gives_junk(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield 7  # type: ignore[misc]

    async def names_a_column_of_ours(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Completed({"status": "pending"})

    async def names_no_column(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Completed({"colour": "red"})

    answers = [refuses, raises, ends, gives_junk, names_a_column_of_ours, names_no_column]
    scenes.answers = {answer.__name__: answer for answer in answers}
    renders = pipeline_of(fleet, scenes)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, *scenes.answers)
        rows = {row.dedup_key: row for row in await settled(virtual_database)}
    assert {row.status for row in rows.values()} == {FAILED}
    assert set(fleet.begun.values()) == {1}
    assert rows["refuses"].error == "input: no picture in scene.blend, nor in scene.blend"
    assert rows["raises"].error == "internal: FileNotFoundError: tile.bin"
    assert rows["ends"].error == "internal: the handler ended without Completed or Failed"
    assert rows["gives_junk"].error == "internal: the handler gave a int, which is no event"
    assert (
        rows["names_a_column_of_ours"].error
        == "internal: status is written by the pipeline; leave it out"
    )
    assert "colour" in (rows["names_no_column"].error or "")


@virtual_time
async def test_the_time_limit_ends_an_attempt(virtual_database: TemporaryDatabase) -> None:
    """A handler that hangs would keep its worker for ever."""
    fleet = Fleet(1)
    renders = pipeline_of(fleet, Scenes(10_000), time_limit=300)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        [row] = await settled(virtual_database, every_s=60)
        assert fleet.running == 0
    assert (row.status, row.error) == (FAILED, "internal: the time limit of 300 s is over")
    assert row.finished_at is not None
    assert row.started_at is not None
    assert row.finished_at - row.started_at == pytest.approx(
        timedelta(seconds=300), abs=timedelta(seconds=1)
    )


async def cancel(database: TemporaryDatabase) -> None:
    """The cancellation of a host's own: it settles each row."""
    async with database.session_factory.begin() as session:
        await session.execute(
            update(Render).values(status=FAILED, error="input: cancelled by its owner")
        )


@virtual_time
async def test_a_row_that_somebody_else_settled_is_left_alone(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A late result would overwrite what was decided, or come to nothing without a word."""
    caplog.set_level("INFO", "rowlock")
    fleet = Fleet(1)
    # It ends before it would look at its row.
    renders = pipeline_of(fleet, Scenes(8))
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(5)
        await cancel(virtual_database)
        await asyncio.sleep(60)
        row = await one_render(virtual_database)
    assert (row.status, row.error, row.url) == (FAILED, "input: cancelled by its owner", None)
    assert row.lock_token is None
    assert fleet.running == 0
    assert f"of row {row.id} was not written (changed)" in caplog.text


@virtual_time
async def test_a_lost_attempt_does_not_bring_back_what_somebody_settled(
    virtual_database: TemporaryDatabase,
) -> None:
    """A row that was cancelled would be pending again when its worker dies."""
    scenes, fleet = Scenes(), Fleet(1)

    async def dies(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        await asyncio.sleep(8)  # not so long that it would look at its row
        raise WorkerGone("worker-1", "killed")
        yield Completed()

    scenes.answers["a"] = dies
    renders = pipeline_of(fleet, scenes)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(5)
        await cancel(virtual_database)
        await asyncio.sleep(60)
        row = await one_render(virtual_database)
    assert (row.status, row.losses, row.lock_token) == (FAILED, 0, None)


@virtual_time
async def test_each_attempt_has_a_folder_of_its_own_which_is_gone_afterwards(
    virtual_database: TemporaryDatabase, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two attempts would write into each other's files, or the disk would fill."""
    scenes, fleet = Scenes(), Fleet(2)
    root = tmp_path_factory.mktemp("scratch")
    folders: list[Path] = []

    async def writes(task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        folders.append(task.workdir)
        assert list(task.workdir.iterdir()) == []
        (task.workdir / "raw").write_bytes(b"x" * 100)
        yield Progress("x")
        if task.row.scene == "dies" and fleet.begun["dies"] == 1:
            raise WorkerGone("worker-1", "killed")
        if task.row.scene == "fails":
            raise ValueError("no")
        yield Completed()

    scenes.answers = dict.fromkeys(("ok", "dies", "fails"), writes)
    renders = pipeline_of(fleet, scenes, scratch_root=root)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "dies", "ok", "fails")
        await settled(virtual_database)
    assert len(set(folders)) == len(folders) >= 4
    assert os.listdir(root) == []  # noqa: PTH208 - a test may look


@virtual_time
async def test_attempts_have_their_grace(virtual_database: TemporaryDatabase) -> None:
    """Every deployment would throw away what is nearly done."""
    fleet = Fleet(1)
    renders = DispatchPipeline(Render, handler=Scenes(20), engine=fleet)
    manager = PipelineManager(virtual_database.session_factory, [renders])
    manager.start()
    await submit(virtual_database, renders, "a", "b")
    await asyncio.sleep(5)
    await manager.drain(60)
    rows = {row.dedup_key: row for row in await all_renders(virtual_database)}
    assert sorted(row.status for row in rows.values()) == [COMPLETED, PENDING]
    assert fleet.running == 0


@virtual_time
async def test_what_is_not_done_by_then_is_done_elsewhere_at_once(
    virtual_database: TemporaryDatabase,
) -> None:
    """A row would show as running while nobody runs it, and wait for a lease to expire."""
    first, second = Fleet(1), Fleet(1)
    renders = DispatchPipeline(Render, handler=Scenes(600), engine=first)
    manager = PipelineManager(virtual_database.session_factory, [renders])
    manager.start()
    await submit(virtual_database, renders, "a")
    await asyncio.sleep(5)
    assert (await one_render(virtual_database)).status == RUNNING
    await manager.drain(10)
    row = await one_render(virtual_database)
    assert (row.status, row.lock_token, row.losses) == (PENDING, None, 0)
    assert first.running == 0
    heir = DispatchPipeline(Render, handler=Scenes(), engine=second)
    async with PipelineManager(virtual_database.session_factory, [heir]):
        async with asyncio.timeout(15):
            [row] = await settled(virtual_database)
    assert row.status == COMPLETED


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
    first, second = (pipeline_of(fleet, Scenes(60), workers_num=4) for fleet in (full, idle))
    async with PipelineManager(virtual_database.session_factory, [first]):
        await submit(virtual_database, first, *(f"{number}" for number in range(8)))
        await asyncio.sleep(10)
        assert (full.running, first.statistics().queued) == (4, 0)
        async with PipelineManager(virtual_database.session_factory, [second]):
            await asyncio.sleep(10)
            assert (full.running, idle.running) == (4, 4)
            await settled(virtual_database, every_s=10)
    assert (full.running_max, idle.running_max) == (4, 4)


@virtual_time
async def test_an_orphan_that_could_not_be_read_for_a_while_is_done(
    virtual_database: TemporaryDatabase,
) -> None:
    """What the database said of a row that could not be read would be taken for what it said of
    a result; and three deployments would fail every row that they found at work.
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
    assert (row.status, row.error, row.losses) == (COMPLETED, None, 0)


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
        await cancel(virtual_database)
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
