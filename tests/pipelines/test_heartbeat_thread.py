"""The thread in which leases are renewed: it is there once, ends with its manager."""

from __future__ import annotations

import asyncio
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock import (
    Apply,
    Heartbeater,
    Outcome,
    PipelineItem,
    PipelineManager,
    events,
    pipeline_hinter,
)
from rowlock.pipelines.heartbeat_thread import HeartbeatThread, LoopMonitor
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX, Volume, VolumePipeline, heard_events
from .blocking import SETTINGS, heartbeat_threads, until_so
from .scenes import add


async def test_connections_that_know_their_thread_are_used_in_it(
    database: TemporaryDatabase, caplog: Any
) -> None:
    """A host whose connections can be made on its own loop only would lose every lease, and not
    know why.
    """
    await add(database, Volume())
    engine = database.create_engine()
    thread = threading.get_ident()

    def stay_here(*_: Any) -> None:
        assert threading.get_ident() == thread, "not in this thread"

    event.listen(engine.sync_engine, "before_cursor_execute", stay_here)

    async def answer(_item: PipelineItem[Any]) -> Outcome:
        await heard.wait_for(events.LeasesRenewed, count=4)
        return Apply({"status": "active"})

    with heard_events() as heard:
        pipeline = VolumePipeline(answer=answer, **SETTINGS)
        async with PipelineManager(async_sessionmaker(engine), [pipeline]) as manager:
            await heard.wait_for(events.ItemApplied)
            assert manager.health().healthy
    assert len(pipeline.items) == 1
    assert [event.renewed for event in heard.of(events.LeasesRenewed)][:4] == [0, 1, 1, 1]
    assert any("heartbeat_thread=False" in record.getMessage() for record in caplog.records)


async def test_without_the_thread_the_hosts_pool_is_used(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A host that counts its connections could not do without the one more."""
    manager = PipelineManager(
        sqlite_database.session_factory, [VolumePipeline()], heartbeat_thread=False
    )
    await add(sqlite_database)
    async with manager:
        await until_so(lambda: manager.statistics()["VolumePipeline"].counters["fetches"])
        assert heartbeat_threads() == 0
    assert manager.health().longest_stall_s == 0.0


@pytest.mark.parametrize("pipelines", [1, 3])
async def test_a_manager_has_one_thread_and_ends_it(
    sqlite_database: TemporaryDatabase, pipelines: int
) -> None:
    """A service with many pipelines would have as many threads, and keep them when they have
    ended.
    """
    await add(sqlite_database)
    kinds = [type(f"Pipeline{number}", (VolumePipeline,), {}) for number in range(pipelines)]
    async with PipelineManager(
        sqlite_database.session_factory, [kind() for kind in kinds]
    ) as manager:
        await until_so(
            lambda: all(pipeline.counters["fetches"] for pipeline in manager.statistics().values())
        )
        assert heartbeat_threads() == 1
    assert heartbeat_threads() == 0


async def test_a_heartbeat_that_dies_is_replaced(sqlite_database: TemporaryDatabase) -> None:
    """One error on the other side would cost every lease of the replica from then on."""
    await add(sqlite_database, Volume())
    deaths = [RuntimeError("planned")]

    class Dying(Heartbeater[Any]):
        async def beat_once(self) -> int:
            if deaths:
                raise deaths.pop()
            return await super().beat_once()

    class Pipeline(VolumePipeline):
        heartbeater_class = Dying

    async def answer(_item: PipelineItem[Any]) -> Outcome:
        await heard.wait_for(events.LeasesRenewed, count=2)
        return Apply({"status": "active"})

    with heard_events() as heard:
        async with PipelineManager(
            sqlite_database.session_factory, [Pipeline(answer=answer, **SETTINGS)]
        ) as manager:
            await heard.wait_for(events.ItemApplied)
            assert manager.health().healthy
    assert len(heard.of(events.LoopReplaced)) == 1
    assert heartbeat_threads() == 0


async def test_a_cut_that_fails_is_made_again(
    sqlite_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of a listener to connections would leave every later stall to keep its locks."""
    loop, cuts, again = asyncio.get_running_loop(), list[int](), asyncio.Event()

    async def cut(*_: Any, **_more: Any) -> None:
        cuts.append(1)
        if len(cuts) > 1:
            loop.call_soon_threadsafe(again.set)
        raise OSError("no")

    async def nothing() -> None:
        pass

    monkeypatch.setattr("rowlock.pipelines.heartbeat_thread.abort_stalled", cut)
    monkeypatch.setattr(LoopMonitor, "stalled_s", 2.0)
    heartbeat_thread = HeartbeatThread(
        sqlite_database.session_factory, renew_timeout=timedelta(seconds=1)
    )
    await heartbeat_thread.run(nothing)
    async with asyncio.timeout(HANG_S_MAX):
        await again.wait()
    await heartbeat_thread.stop()


@pytest.mark.parametrize(
    "run",
    ["asyncio.run(main())", "loop = asyncio.new_event_loop(); loop.run_until_complete(main())"],
    ids=["closed", "left open"],
)
async def test_the_interpreter_ends_though_nobody_drained(
    sqlite_database: TemporaryDatabase, run: str
) -> None:
    """A host that dies of an exception would hang for ever in the end, for a thread that it does
    not know of.
    """
    await add(sqlite_database, Volume())
    program = f"""
import asyncio, sys
from rowlock import PipelineManager
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from tests.host import VolumePipeline
async def hang(item):
    await asyncio.Event().wait()
async def main():
    pipeline = VolumePipeline(answer=hang, lock_timeout=1, heartbeat_trigger=0.9)
    manager = PipelineManager(async_sessionmaker(create_async_engine(sys.argv[1])), [pipeline])
    manager.start()
    while not manager.statistics()["VolumePipeline"].counters["renewals"]:
        await asyncio.sleep(0.01)
    raise SystemExit(7)
{run}
"""
    url = sqlite_database.url.render_as_string(hide_password=False)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        url,
        cwd=Path(__file__).parents[2],
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(HANG_S_MAX):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
    assert process.returncode == 7


@pytest.mark.parametrize("turn", range(12))
async def test_a_drain_that_is_cancelled_still_ends_the_thread(
    sqlite_database: TemporaryDatabase, turn: int
) -> None:
    """The next drain would wait for ever for a thread that was stopped by half."""
    await add(sqlite_database)
    manager = PipelineManager(sqlite_database.session_factory, [VolumePipeline()])
    manager.start()
    await until_so(lambda: manager.statistics()["VolumePipeline"].counters["fetches"])
    draining = asyncio.create_task(manager.drain(0))
    for _ in range(turn):
        await asyncio.sleep(0)
    draining.cancel()
    await asyncio.wait({draining})
    async with asyncio.timeout(HANG_S_MAX):
        await manager.drain(0)
    assert heartbeat_threads() == 0


# A query of aiosqlite's thread may be under way when its loop ends, which is no matter of ours.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_loop_that_ended_without_a_drain_leaves_no_thread(
    sqlite_database: TemporaryDatabase,
) -> None:
    """Each of them would keep a thread and its connections for as long as the process lives, and
    renew leases of the dead.
    """
    await add(sqlite_database)
    before = heartbeat_threads()

    async def forget() -> None:
        engine = create_async_engine(sqlite_database.url)
        manager = PipelineManager(async_sessionmaker(engine), [VolumePipeline()])
        manager.start()
        await until_so(lambda: heartbeat_threads() > before)
        await engine.dispose()

    await asyncio.to_thread(lambda: asyncio.run(forget()))
    await until_so(lambda: heartbeat_threads() == before)
    pipeline_hinter._wakes.clear()  # a manager that is never drained stays attached
    pipeline_hinter._wakes.clear()  # a manager that is never drained stays attached
