"""Tests of the pool: each row has variables of its own, and whoever is free gets the next one."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import threading
import uuid
import weakref
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from rowlock import Apply, Outcome, PipelineHinter, PipelineItem, PipelineManager, Worker, events
from rowlock.pipelines import worker
from rowlock.pipelines.attempt import Attempt
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import HANG_S_MAX, Volume, VolumePipeline, heard_events
from .blocking import until_so
from .scenes import add, hang, is_free, now, read, read_all, until
from .told import told

pytestmark = pytest.mark.either_database

SEEN: ContextVar[str] = ContextVar("SEEN", default="nothing")


@virtual_time
async def test_each_row_has_context_variables_of_its_own(
    virtual_database: TemporaryDatabase,
) -> None:
    """A tenant or a trace that was set for one row would be that of the next; or what the host
    had set before be gone.
    """
    seen: list[str] = []
    rows = await add(virtual_database, *(Volume() for _ in range(5)))

    async def answer(item: PipelineItem[Any]) -> Outcome:
        seen.append(SEEN.get())
        SEEN.set(f"row {item.id}")
        await asyncio.sleep(1)
        assert SEEN.get() == f"row {item.id}"
        return Apply({"status": "active"})

    SEEN.set("the host's")
    async with PipelineManager(
        virtual_database.session_factory, [VolumePipeline(answer=answer, workers_num=1)]
    ):
        await until(lambda: len(seen) == len(rows))
    assert seen == ["the host's"] * len(rows)


@virtual_time
async def test_current_task_timeouts_and_groups_are_the_rows_own(
    virtual_database: TemporaryDatabase,
) -> None:
    """A host's `asyncio.timeout` or task group would cancel another row's work, or never end."""
    await add(virtual_database, *(Volume() for _ in range(4)))
    tasks: set[Any] = set()

    async def answer(_item: PipelineItem[Any]) -> Outcome:
        tasks.add(asyncio.current_task())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            slept = [group.create_task(asyncio.sleep(number, number)) for number in (1, 2)]
        return Apply({"status": "active", "size_gb": sum(task.result() for task in slept)})

    pipeline = VolumePipeline(answer=answer, workers_num=2)
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        await until(lambda: manager.statistics()["VolumePipeline"].counters["applied"] == 4)
    assert {row.size_gb for row in await read_all(virtual_database, Volume)} == {3}
    assert len(tasks) == 2, "one for each worker"


@virtual_time
async def test_a_worker_that_is_cancelled_as_it_is_woken_leaves_its_row_to_the_next(
    virtual_database: TemporaryDatabase,
) -> None:
    """A host that cancels every task that it finds would keep a row queued for ever, and a
    worker busy with it.
    """
    [row] = await add(virtual_database, Volume())
    pipeline = VolumePipeline(workers_num=1)
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        feed = pipeline.run.context.queue.on_items

        def feed_and_cancel() -> None:
            feed()
            for task in asyncio.all_tasks():
                if task.get_name().endswith("worker 1"):
                    task.cancel()
            pipeline.run.context.queue.on_items = feed

        pipeline.run.context.queue.on_items = feed_and_cancel
        await until(lambda: pipeline.statistics().counters["loops_replaced"] == 1)
        await until(lambda: pipeline.statistics().counters["applied"] == 1)
        assert len(pipeline.items) == 1
    assert is_free(await read(virtual_database, row))


async def test_the_end_of_the_loop_is_no_failure_of_a_row(
    sqlite_database: TemporaryDatabase,
) -> None:
    """Each row in hand at the end of `asyncio.run` would have one attempt less, and be told to
    have failed.
    """
    await add(sqlite_database, Volume(), Volume())
    pipeline = VolumePipeline(answer=hang, workers_num=1)
    with heard_events() as heard:
        pipeline.start(sqlite_database.session_factory, PipelineHinter())
        await heard.wait_for(events.ItemStarted)
        ended = asyncio.all_tasks() - {asyncio.current_task()}
        for task in ended:
            task.cancel()
        await asyncio.wait(ended)
        await pipeline.run.drain(5)
    assert heard.of(events.ItemFailed) == []
    assert len(heard.of(events.ItemStarted)) == 1, "the end of one row has begun the next"
    assert pipeline.statistics().counters["released"] == 2


class Threaded(VolumePipeline):
    """Its `process` is in a thread until `may_end`."""

    may_end: ClassVar[threading.Event] = threading.Event()

    def process(self, item: PipelineItem[Any]) -> None:  # type: ignore[override]
        self.items.append(item)
        self.may_end.wait(HANG_S_MAX)


async def test_the_end_of_the_loop_begins_no_row_in_a_thread(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A row would be begun after everything was ended, and its task be destroyed by the loop."""
    await add(sqlite_database, Volume(), Volume())
    pipeline = Threaded(workers_num=1)
    pipeline.start(sqlite_database.session_factory, PipelineHinter())
    await until_so(lambda: pipeline.items)
    ended = asyncio.all_tasks() - {asyncio.current_task()}
    for task in ended:
        task.cancel()
    await asyncio.wait(ended)
    Threaded.may_end.set()
    await pipeline.run.drain(5)
    assert len(pipeline.items) == 1


@virtual_time
async def test_a_cancellation_that_a_row_took_back_hits_no_other(
    virtual_database: TemporaryDatabase,
) -> None:
    """Before Python 3.13 the next row in the place would get it, and have an attempt less."""
    await add(virtual_database, Volume(), Volume())

    async def answer(_item: PipelineItem[Any]) -> Outcome:
        task = asyncio.current_task()
        assert task is not None
        if len(pipeline.items) == 1:
            task.cancel()
            task.uncancel()
        else:
            await asyncio.sleep(1)
        return Apply({"status": "active"})

    pipeline = VolumePipeline(answer=answer, workers_num=1)
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        await until(lambda: pipeline.statistics().counters["applied"] == 2)
    assert len(pipeline.items) == 2


class Unsteady(VolumePipeline):
    """Its `process` cannot be had the first time."""

    tries = 0

    @property
    def process(self) -> Any:  # type: ignore[override]
        """Raise once; then be the function."""
        self.tries += 1
        if self.tries == 2:
            raise RuntimeError("not yet")
        return super().process


@virtual_time
async def test_work_that_cannot_be_begun_gives_its_row_back(
    virtual_database: TemporaryDatabase,
) -> None:
    """The row would stay leased, its worker busy for ever, and the outcome of the row before it
    be settled twice.
    """
    await add(virtual_database, Volume(), Volume())
    pipeline = Unsteady(workers_num=1)
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        await until(lambda: manager.statistics()["Unsteady"].counters["applied"] == 2)
        assert manager.statistics()["Unsteady"].counters["released"] == 1
        assert manager.statistics()["Unsteady"].counters["strays"] == 0
    assert pipeline.stale == []


class Escaping(Worker[Any]):
    async def work(self, item: PipelineItem[Any]) -> None:
        await super().work(item)
        raise ValueError("a bug")


class EscapingPipeline(VolumePipeline):
    worker_class = Escaping


@virtual_time
async def test_a_worker_from_which_something_escapes_rests(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker with a bug would take row after row as fast as it can, and nobody be told."""
    await add(virtual_database, *(Volume() for _ in range(4)))
    pipeline = EscapingPipeline(workers_num=1)
    began_at = asyncio.get_running_loop().time()
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: len(pipeline.items) == 1)
            await until(lambda: not pipeline.health().loops_alive["worker 1"])
            await until(lambda: len(pipeline.items) == 4)
            await until(lambda: pipeline.health().healthy)
    # 0.1, 0.2 and 0.4 seconds, by their jitter less.
    assert asyncio.get_running_loop().time() - began_at > 0.3
    assert [event.loop for event in heard.of(events.LoopReplaced)][:3] == ["worker 1"] * 3
    assert [line.extra["loop"] for line in told(caplog, "died and is replaced")][:1] == ["worker 1"]


class Stumbling(Worker[Any]):
    """Raises in its first step, the first time; notes the times."""

    began_at: ClassVar[list[float]] = []

    async def work(self, item: PipelineItem[Any]) -> None:
        self.began_at.append(now())
        if len(self.began_at) == 1:
            raise ValueError("a bug")
        await super().work(item)


class StumblingPipeline(VolumePipeline):
    worker_class = Stumbling


@virtual_time
async def test_a_worker_that_rests_holds_up_no_other(virtual_database: TemporaryDatabase) -> None:
    """It was woken for all that is queued, and those who are free would rest with it."""
    Stumbling.began_at.clear()
    await add(virtual_database, Volume(), Volume())
    pipeline = StumblingPipeline(workers_num=2)
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        await until(lambda: len(Stumbling.began_at) > 1)
    first, second, *_ = Stumbling.began_at
    assert second == first


@virtual_time
async def test_a_pool_that_holds_nothing_ahead_has_claimed_for_those_who_are_idle(
    virtual_database: TemporaryDatabase,
) -> None:
    """A replica would lease rows that it cannot begin, or none though it has somebody idle."""
    await add(virtual_database, *(Volume() for _ in range(6)))
    may_end = asyncio.Event()

    async def answer(_item: PipelineItem[Any]) -> Outcome:
        await may_end.wait()
        return Apply({"status": "active"})

    pipeline = VolumePipeline(
        answer=answer,
        workers_num=2,
        queue_lower_limit_factor=0,
        queue_upper_limit_factor=0,
        fetch_delays=(1000,),
    )
    began_at = asyncio.get_running_loop().time()
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        await until(lambda: len(pipeline.items) == 2)
        await asyncio.sleep(100)
        assert sum(not is_free(row) for row in await read_all(virtual_database, Volume)) == 2
        may_end.set()
        await until(lambda: manager.statistics()["VolumePipeline"].counters["applied"] == 6)
        assert asyncio.get_running_loop().time() - began_at < 1000


def alive() -> list[Any]:
    return [one for one in gc.get_objects() if isinstance(one, PipelineItem | Attempt | Apply)]


async def test_what_belongs_to_a_row_is_gone_with_it(database: TemporaryDatabase) -> None:
    """Objects of each row that point at each other would wait for the collector, and a third of
    a core be spent on that.
    """
    rows, pipeline = (
        await add(database, *(Volume() for _ in range(20))),
        VolumePipeline(workers_num=5),
    )
    # What other tests have left, such as tracebacks, is out of sight then.
    gc.freeze()
    gc.disable()
    try:
        async with PipelineManager(database.session_factory, [pipeline]) as manager:
            await until_so(
                lambda: manager.statistics()["VolumePipeline"].counters["applied"] == len(rows)
            )
        pipeline.items.clear()
        assert [type(one).__name__ for one in alive()] == []
    finally:
        gc.enable()


@virtual_time
async def test_rows_that_do_not_wait_need_no_stack(virtual_database: TemporaryDatabase) -> None:
    """Each would begin the next within its own end, until there is no stack left."""
    depths: set[int] = set()
    await add(virtual_database, *(Volume() for _ in range(20)))

    async def answer(_item: PipelineItem[Any]) -> Outcome:
        depths.add(len(inspect.stack(0)))
        return Apply({"status": "active"})

    pipeline = VolumePipeline(answer=answer, workers_num=5)
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        await until(lambda: manager.statistics()["VolumePipeline"].counters["applied"] == 20)
    assert len(depths) == 1


async def test_rows_of_the_dead_hold_no_loop(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backlog that a dead replica left would stop the host's loop, row after row."""
    monkeypatch.setattr(worker, "YIELDS_AFTER_S", 0)
    ticks, seen = 0, list[int]()

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def answer(_item: PipelineItem[Any]) -> Outcome:
        seen.append(ticks)
        return Apply({"status": "active"})

    ended = {"lock_owner": "VolumePipeline", "lock_expires_at": datetime(2020, 1, 1, tzinfo=UTC)}
    await add(database, *(Volume(lock_token=uuid.uuid4(), **ended) for _ in range(5)))
    pipeline = VolumePipeline(answer=answer, workers_num=1)
    ticking = asyncio.create_task(tick())
    async with PipelineManager(database.session_factory, [pipeline]):
        await until_so(lambda: pipeline.statistics().counters["applied"] == 5)
    ticking.cancel()
    assert len(set(seen)) == 5


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has no eager tasks")
async def test_rows_may_wait_for_one_future_where_tasks_are_eager(
    database: TemporaryDatabase,
) -> None:
    """Python refuses a future that the next row meets half taken: its attempt would fail."""
    eager: Any = getattr(asyncio, "eager_task_factory", None)
    asyncio.get_running_loop().set_task_factory(eager)
    shared = asyncio.get_running_loop().create_future()

    async def answer(item: PipelineItem[Any]) -> Outcome:
        if len(pipeline.items) == 3:
            asyncio.get_running_loop().call_later(0.01, shared.set_result, None)
        if len(pipeline.items) > 1:
            await shared
        return Apply({"status": "active"})

    pipeline = VolumePipeline(answer=answer, workers_num=2, fetch_delays=(0.01,))
    async with PipelineManager(database.session_factory, [pipeline]):
        for rows in (1, 2):  # the place of the first row is there for one of the others
            await add(database, *(Volume() for _ in range(rows)))
            await until_so(lambda n=rows: pipeline.statistics().counters["applied"] == 2 * n - 1)
    assert pipeline.statistics().counters["retried"] == 0


class Musing(Worker[Any]):
    """Waits for something first that nobody else knows of."""

    async def work(self, item: PipelineItem[Any]) -> None:
        waiting = asyncio.get_running_loop().create_future()
        Musing.known.append(weakref.ref(waiting))
        await waiting
        await super().work(item)

    known: ClassVar[list[Any]] = []


class MusingPipeline(VolumePipeline):
    worker_class = Musing


@virtual_time
async def test_work_that_nobody_else_has_is_not_collected(
    virtual_database: TemporaryDatabase,
) -> None:
    """The row would stay leased, and its worker busy with it, for ever: the loop keeps no task
    that waits.
    """
    Musing.known.clear()
    await add(virtual_database, Volume())
    pipeline = MusingPipeline(workers_num=1)
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        await until(lambda: Musing.known)
        gc.collect()
        waiting = Musing.known[0]()
        assert waiting is not None
        waiting.set_result(None)
        del waiting
        await until(lambda: pipeline.statistics().counters["applied"] == 1)
