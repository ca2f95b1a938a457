"""Tests of how attempts end that do not end well: who is to blame, how long a row is held, and
what is tried again.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from rowlock import Outcome, PipelineItem, PipelineManager
from rowlock.dispatch import (
    COMPLETED,
    FAILED,
    PENDING,
    RUNNING,
    AttemptEvent,
    Completed,
    DispatchPipeline,
    Progress,
    StageDone,
    Task,
    WorkerGone,
)
from rowlock.dispatch.attempt import Scratch
from rowlock.dispatch.delivery import ATTEMPT_END_S_MAX
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..faults.trouble import begin_trouble, end_trouble
from ..host import HANG_S_MAX
from ..pipelines.scenes import is_claim, until
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


@pytest.mark.parametrize(
    ("values", "sqlite_takes_it"),
    [
        ({"scene": None}, False),
        ({"size": "many"}, False),
        ({"size": 2**63}, False),
        ({"url": "a\x00b"}, True),
        ({"url": "\ud800"}, False),
        ({"url": 7.5j}, False),
        ({"report": {"a": 7.5j}}, False),
    ],
    ids=["null", "type", "range", "nul", "surrogate", "object", "json"],
)
async def test_whatever_the_database_refuses_fails_the_row(
    database: TemporaryDatabase, values: dict[str, Any], *, sqlite_takes_it: bool
) -> None:
    """Hours of work would be done again and again, to be refused each time."""
    scenes, fleet = Scenes(), Fleet(1)

    async def gives(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Completed(values)

    scenes.answers["a"] = gives
    renders = pipeline_of(fleet, scenes, retry_delay=0.05)
    async with PipelineManager(database.session_factory, [renders]):
        await submit(database, renders, "a")
        [row] = await settled(database, every_s=0.02)
    if sqlite_takes_it and database.dialect_name == "sqlite":
        assert (row.status, row.error) == (COMPLETED, None)
    else:
        assert (row.status, (row.error or "")[:10]) == (FAILED, "internal: ")
    assert fleet.begun["a"] == 1
    assert "[SQL" not in (row.error or "")


async def test_a_table_that_is_not_migrated_yet_fails_no_rows(database: TemporaryDatabase) -> None:
    """A replica that is deployed before its migration has run would fail all work that was done
    meanwhile.
    """
    scenes, fleet = Scenes(), Fleet(1)
    renamed = asyncio.Event()

    async def gives(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        await renamed.wait()
        yield Completed({"size": 1})

    scenes.answers["a"] = gives
    renders = pipeline_of(fleet, scenes, retry_delay=0.05, fetch_delays=(0.05,))
    async with PipelineManager(database.session_factory, [renders]):
        await submit(database, renders, "a")
        async with asyncio.timeout(HANG_S_MAX):
            while (await one_render(database)).status != RUNNING:  # noqa: ASYNC110 - it says nothing by itself
                await asyncio.sleep(0.02)
            async with database.engine.begin() as connection:
                await connection.execute(
                    text("ALTER TABLE renders RENAME COLUMN size TO size_later")
                )
            renamed.set()
            while not renders.statistics().counters["retried"]:  # noqa: ASYNC110 - it says nothing by itself
                await asyncio.sleep(0.02)
        async with database.engine.begin() as connection:
            await connection.execute(text("ALTER TABLE renders RENAME COLUMN size_later TO size"))
        [row] = await settled(database, every_s=0.05)
    assert (row.status, row.size) == (COMPLETED, 1)


@virtual_time
async def test_a_handler_that_has_no_end_is_failed_once(
    virtual_database: TemporaryDatabase,
) -> None:
    """It would be begun beside itself again and again, each time with one worker more that
    hangs.
    """
    scenes, fleet, gate = Scenes(), Fleet(3), asyncio.Event()

    scenes.answers["a"] = without_end(gate)
    renders = pipeline_of(fleet, scenes, time_limit=60)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(60 + ATTEMPT_END_S_MAX - 10)
        assert (await one_render(virtual_database)).status == RUNNING, "it may still end"
        [row] = await settled(virtual_database)
        assert (row.status, row.error) == (FAILED, "internal: the time limit of 60 s is over")
        await asyncio.sleep(120)
        assert (fleet.begun["a"], fleet.workers()["worker-1"].active) == (1, 1)
        gate.set()
        await until(lambda: not fleet.workers()["worker-1"].active)


class CannotClose(Fleet):
    async def offer(self, worker: str, task: Task[Any]) -> Any:
        return Broken(await super().offer(worker, task))


class Broken:
    def __init__(self, events: Any) -> None:
        self._events = events

    def __aiter__(self) -> Broken:
        return self

    async def __anext__(self) -> AttemptEvent:
        return await anext(self._events)  # type: ignore[no-any-return]

    async def aclose(self) -> None:
        await self._events.aclose()
        raise ConnectionResetError("the line is dead")


@virtual_time
async def test_an_engine_that_cannot_close_fails_no_rows(
    virtual_database: TemporaryDatabase,
) -> None:
    """A worker whose line breaks would fail its row for good, where it should cost a loss; and
    so would each drain.
    """
    scenes, fleet = Scenes(600), CannotClose(2)

    async def dies(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("x")
        raise WorkerGone("worker-1", "killed")

    scenes.answers["a"] = dies
    renders = pipeline_of(fleet, scenes, retry_delay=200)
    manager = PipelineManager(virtual_database.session_factory, [renders])
    manager.start()
    await submit(virtual_database, renders, "a", "b")
    await asyncio.sleep(5)
    await manager.drain(0)
    rows = {row.dedup_key: row for row in await all_renders(virtual_database)}
    assert (rows["a"].status, rows["a"].losses, rows["a"].error) == (PENDING, 1, None)
    assert (rows["b"].status, rows["b"].losses, rows["b"].lock_token) == (PENDING, 0, None)


@virtual_time
async def test_a_loss_rests_by_the_losses(virtual_database: TemporaryDatabase) -> None:
    """A row that was offered in vain for an hour would rest five minutes after its first loss,
    beside idle workers.
    """
    scenes, fleet = Scenes(), Fleet(1)

    async def dies(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("x")
        raise WorkerGone("worker-1", "killed")

    scenes.answers["a"] = dies
    renders = pipeline_of(fleet, scenes, retry_delay=2)
    await add(virtual_database, Render(dedup_key="a", scene="a", attempts=30))
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await until(lambda: renders.statistics().counters["retried"])
        row = await one_render(virtual_database)
        assert row.due_at is not None
        assert row.due_at - await now_of(virtual_database) < timedelta(seconds=3)


WORKERS = 4


class FewWorkersPipeline(DispatchPipeline[Render]):
    """Begins with as many workers of its own as its fleet has: any fleet is large."""

    workers_num = WORKERS


@pytest.mark.at_length
@virtual_time
async def test_what_waits_for_a_large_fleet_has_its_deadline(
    virtual_database: TemporaryDatabase,
) -> None:
    """With as many workers as attempts nobody would be left to look after rows that wait: no
    deadline, no new machine.
    """
    fleet, asked = Fleet(WORKERS), list[str]()

    async def provision(key: str) -> None:
        asked.append(key)

    renders = FewWorkersPipeline(
        Render,
        handler=Scenes(520),
        engine=fleet,
        provision=provision,
        dispatch_deadline=300,
        time_limit=10_000,
    )
    keys = [f"{number:02}" for number in range(WORKERS + 2)]
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, *keys)
        await asyncio.sleep(500)
        rows = await all_renders(virtual_database)
        failed = [row.error for row in rows if row.status == FAILED]
        assert failed == ["capacity: no worker has done it within 300 s after its submission"] * 2
        assert len(set(asked)) == 2
        await settled(virtual_database, every_s=60)


@virtual_time
async def test_a_fetch_leases_so_many_at_most_and_the_next_one_comes_at_once(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replica of a large fleet would take all there is in one transaction; or fill its
    workers one fetch delay at a time.
    """
    monkeypatch.setattr(sys.modules[DispatchPipeline.__module__], "LEASES_PER_TICK_MAX", 8)
    keys = [f"{number:03}" for number in range(2 * 8 + 1)]
    fleet = Fleet(len(keys))
    renders = pipeline_of(fleet, Scenes(3600), fetch_delays=(60,))
    claims: list[float] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if is_claim(statement):
            claims.append(asyncio.get_running_loop().time())

    event.listen(virtual_database.engine.sync_engine, "before_cursor_execute", note)
    await submit(virtual_database, renders, *keys)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await until(lambda: fleet.running == len(keys))
        assert len(claims) >= 3
        assert claims[-1] - claims[0] < 30


async def test_a_row_that_was_decided_before_it_was_read_is_left_alone(
    database: TemporaryDatabase,
) -> None:
    """A row that was cancelled between its claim and its reading would be done; or pending
    again, by a drain.
    """
    fleet = Fleet(1)
    renders = pipeline_of(fleet, dispatch_deadline=0.001)
    await submit(database, renders, "a")
    async with stepping(database.session_factory, renders) as steps:
        [item] = await steps.fetch_once()
        async with database.session_factory.begin() as session:
            await renders.cancel(session, dedup_key="a", reason="no")
        await steps.work_once()
    row = await one_render(database)
    assert (row.id, row.status, row.error, row.lock_token) == (
        item.id,
        FAILED,
        "cancelled: no",
        None,
    )


async def test_folders_do_not_wait_for_threads_of_the_host(tmp_path: Path) -> None:
    """Handlers that fill the event loop's threads would keep a drain from ending, and each new
    attempt from beginning.
    """
    gate = threading.Event()
    threads = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    threads.submit(gate.wait)
    try:
        async with asyncio.timeout(HANG_S_MAX):
            async with Scratch(tmp_path).folder() as folder:
                assert folder.exists()
        assert not folder.exists()
    finally:
        gate.set()


BRIEF: dict[str, Any] = {
    "lock_timeout": 4,
    "heartbeat_trigger": 3,
    "heartbeat_interval": 0.1,
    "renew_timeout": 1,
    "heartbeat": 0.5,
    "retry_delay": 0.05,
    "fetch_delays": (0.05,),
}
"""Leases that last for so short a time that trouble outlasts them soon."""


@pytest.mark.parametrize("status", [RUNNING, COMPLETED])
async def test_trouble_of_the_server_fails_no_row(
    postgresql_database: TemporaryDatabase, status: str
) -> None:
    """Work of hours would be failed for good, because a disk did not answer for longer than a
    lease lasts.
    """
    database = postgresql_database
    await begin_trouble(database, "58030", table="renders", status=status)
    renders = pipeline_of(Fleet(1), Scenes(takes_s=0.1), **BRIEF)
    async with PipelineManager(database.session_factory, [renders]):
        await submit(database, renders, "a")
        async with asyncio.timeout(HANG_S_MAX):
            while not renders.statistics().counters["retried"]:
                assert not renders.statistics().counters["applied"]
                await asyncio.sleep(0.02)
        await end_trouble(database)
        [row] = await settled(database, every_s=0.05)
    assert (row.status, row.losses) == (COMPLETED, 0)


REFUSALS = 3
FUNCTION = """
CREATE FUNCTION in_trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('tries') <= {refusals} THEN
        RAISE EXCEPTION 'in trouble' USING ERRCODE = '{code}';
    END IF;
    RETURN NEW;
END $$
"""
TRIGGER = (
    "CREATE TRIGGER in_trouble BEFORE UPDATE ON renders FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION"
    " in_trouble()"
)
WHEN_RUNNING = f"NEW.status = '{RUNNING}' AND NEW.status <> OLD.status"
WHEN_STAGE = "NEW.stages::text <> OLD.stages::text"
WHEN_COMPLETED = f"NEW.status = '{COMPLETED}'"


class Asked(DispatchPipeline[Render]):
    async def process(self, item: PipelineItem[Render]) -> Outcome:
        self.attempts = getattr(self, "attempts", 0) + 1
        return await super().process(item)

    def on_refused(self, item: PipelineItem[Render], error: Exception) -> Outcome:
        self.asked = [*getattr(self, "asked", []), error]
        return super().on_refused(item, error)


async def refuse(
    database: TemporaryDatabase, code: str, *, when: str, refusals: int = REFUSALS
) -> None:
    """Have the server refuse so many updates; a sequence counts them, since it is not rolled
    back.
    """
    async with database.engine.begin() as connection:
        for statement in ("CREATE SEQUENCE tries", FUNCTION.format(code=code, refusals=refusals)):
            await connection.execute(text(statement))
        await connection.execute(text(TRIGGER.format(when=when)))


async def dispatched(database: TemporaryDatabase) -> tuple[Asked, Fleet, Render]:
    """Dispatch one row, whose handler records a stage, and return how that went."""
    scenes, fleet = Scenes(), Fleet(1)

    async def in_stages(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield StageDone("raw", "file")
        yield Completed({"url": "done"})

    scenes.answers["a"] = in_stages
    settings: Any = {"fetch_delays": (0.05, 0.1), "retry_delay": 0.05}
    renders = Asked(Render, handler=scenes, engine=fleet, **settings)
    async with PipelineManager(database.session_factory, [renders]):
        await submit(database, renders, "a")
        [row] = await settled(database, every_s=0.02)
    return renders, fleet, row


@pytest.mark.parametrize(
    ("when", "code"),
    [
        (WHEN_RUNNING, "58030"),
        (WHEN_STAGE, "XX000"),
        *((WHEN_COMPLETED, code) for code in ("58030", "XX000", "25P02")),
    ],
)
async def test_what_was_done_is_written_when_the_trouble_has_passed(
    postgresql_database: TemporaryDatabase, when: str, code: str
) -> None:
    """Hours of work would be failed for good, or done again, because a disk did not answer for a
    moment.
    """
    await refuse(postgresql_database, code, when=when)
    renders, fleet, row = await dispatched(postgresql_database)
    assert (row.status, row.url, row.stages, row.error, row.losses) == (
        COMPLETED,
        "done",
        {"raw": "file"},
        None,
        0,
    )
    assert (fleet.begun["a"], renders.attempts) == (1, 1)
    assert getattr(renders, "asked", []) == []


@pytest.mark.parametrize("code", ["23514", "22003", "P0001"])
async def test_a_result_that_is_refused_for_good_fails_its_row_at_once(
    postgresql_database: TemporaryDatabase, code: str
) -> None:
    """A result that nobody will ever write would be tried until its lease ends, and its work
    done again and again.
    """
    await refuse(postgresql_database, code, when=WHEN_COMPLETED, refusals=1_000)
    renders, fleet, row = await dispatched(postgresql_database)
    assert (row.status, row.url, row.stages) == (FAILED, None, {"raw": "file"})
    assert (row.error or "").startswith("internal: ")
    assert (fleet.begun["a"], renders.attempts, len(renders.asked)) == (1, 1, 1)
