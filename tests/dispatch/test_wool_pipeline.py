"""Whole pipelines over workers of wool: one dies, one comes late, and the service is shut down
while they work.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import wool

from rowlock import PipelineManager
from rowlock.dispatch import COMPLETED, PENDING, RUNNING, DispatchPipeline, Task
from rowlock.dispatch.engines.wool import WoolEngine
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX
from . import handlers
from .renders import Render, all_renders, settled, submit
from .wool_farm import farm
from .wool_handlers import Holds, hangs_at_first

LOOK_EVERY_S = 0.05
GRACE_S = 3.0
LONG_S = 3_600.0

Renders = DispatchPipeline[Render]


@asynccontextmanager
async def dispatching(
    database: TemporaryDatabase,
    namespace: str,
    handler: Callable[[Task[Any]], Any],
    *,
    retry_on: Any = (),
) -> AsyncIterator[tuple[Renders, PipelineManager]]:
    """Give a pipeline whose rows rest for an hour after an overflow, unless something brings
    them forward.
    """
    async with WoolEngine(wool.LocalDiscovery(namespace)) as engine:
        renders = DispatchPipeline(
            Render,
            handler=handler,
            engine=engine,
            heartbeat=1,
            retry_interval=LONG_S,
            retry_delay=0.1,
            retry_on=retry_on,
            fetch_delays=(0.05, 0.1, 0.2),
        )
        async with PipelineManager(database.session_factory, [renders]) as manager:
            yield renders, manager


async def until_rows(
    database: TemporaryDatabase, condition: Callable[[list[Render]], bool]
) -> list[Render]:
    async with asyncio.timeout(HANG_S_MAX):
        while not condition(rows := await all_renders(database)):  # noqa: ASYNC110 - the database says nothing by itself
            await asyncio.sleep(LOOK_EVERY_S)
    return rows


async def test_what_a_killed_worker_had_in_hand_is_done_elsewhere(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A row would hang with a worker that is dead, or fail with it, or lose the stages that were
    done.
    """
    name = f"rowlock-{uuid.uuid4().hex}"
    with farm(name, workers=2) as pids:
        async with dispatching(sqlite_database, name, hangs_at_first) as (renders, _):
            await submit(sqlite_database, renders, "a")
            [row] = await until_rows(sqlite_database, lambda rows: "first" in rows[0].stages)
            assert row.status == RUNNING
            victim = row.stages["first"]
            assert victim in pids
            os.kill(victim, signal.SIGKILL)
            async with asyncio.timeout(HANG_S_MAX):
                [done] = await settled(sqlite_database, every_s=LOOK_EVERY_S)
    assert (done.status, done.error, done.losses) == (COMPLETED, None, 1)
    assert done.stages == row.stages
    assert done.worker != row.worker
    assert [int(done.url or 0)] == [pid for pid in pids if pid != victim]


async def test_an_error_that_passes_does_not_end_the_work(
    namespace: str, sqlite_database: TemporaryDatabase, tmp_path: Path
) -> None:
    """A handler is tried again after an error of `retry_on`, in whatever process it was raised."""
    retry_on = {ConnectionError: 0.01, handlers.Away: 0.01}
    async with dispatching(
        sqlite_database, namespace, handlers.meets_an_outage, retry_on=retry_on
    ) as (renders, _):
        await submit(sqlite_database, renders, str(tmp_path))
        async with asyncio.timeout(HANG_S_MAX):
            [row] = await settled(sqlite_database, every_s=LOOK_EVERY_S)
    assert (row.status, row.report, row.error) == (COMPLETED, ["raw"], None)


async def test_a_worker_that_comes_late_gets_what_waits(
    sqlite_database: TemporaryDatabase, tmp_path: Path
) -> None:
    """A fleet that grows after an overflow would stand idle until the rows have rested."""
    name = f"rowlock-{uuid.uuid4().hex}"
    for key in "abc":
        (tmp_path / f"{key} may end").touch()
    with wool.LocalDiscovery(name):
        async with dispatching(sqlite_database, name, Holds(tmp_path)) as (renders, _):
            await submit(sqlite_database, renders, *"abc")
            rows = await until_rows(sqlite_database, lambda rows: all(row.attempts for row in rows))
            assert [row.status for row in rows] == [PENDING] * 3
            with farm(name, workers=1):
                async with asyncio.timeout(HANG_S_MAX):
                    rows = await settled(sqlite_database, every_s=LOOK_EVERY_S)
    assert [(row.status, row.error) for row in rows] == [(COMPLETED, None)] * 3


async def test_drain_gives_a_grace_and_then_cancels_over_there(
    namespace: str, sqlite_database: TemporaryDatabase, tmp_path: Path
) -> None:
    """A deployment would throw away what is nearly done, or leave work behind on the workers
    that nobody wants.
    """
    async with dispatching(sqlite_database, namespace, Holds(tmp_path)) as (renders, manager):
        await submit(sqlite_database, renders, "a", "b")
        await until_rows(sqlite_database, lambda rows: all(row.progress == "begun" for row in rows))
        draining = asyncio.create_task(manager.drain(GRACE_S))
        (tmp_path / "a may end").touch()
        await draining
        a, b = await all_renders(sqlite_database)
        assert (a.status, a.url) == (COMPLETED, "a")
        assert (b.status, b.lock_token, b.losses) == (PENDING, None, 0)
        await until_rows(sqlite_database, lambda _: (tmp_path / "b has ended").exists())
        assert sum(view.active for view in renders.engine.workers().values()) == 0
