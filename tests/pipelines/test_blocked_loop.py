"""Tests of a host that blocks its event loop: leases are renewed all the same, in a thread of their own, up to a limit.

The time is the true one here, and nobody waits for it: the code that blocks goes on when what it waits for has happened.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from rowlock import Apply, Heartbeater, Outcome, PipelineItem, PipelineManager, events
from rowlock.testing import TemporaryDatabase

from ..host import Attachment, AttachmentPipeline, Volume, VolumePipeline, heard_events
from .scenes import add, is_claim, is_free, is_outcome, read, read_all

LOCK_TIMEOUT: Final = timedelta(seconds=3)
BLOCKED_S_MAX: Final = 60.0
"""How long the loop may be blocked until a test gives up. **Unit** seconds."""
LOOK_EVERY_S: Final = 0.02
SETTINGS: Final[dict[str, Any]] = {
    "workers_num": 2,
    "lock_timeout": LOCK_TIMEOUT,
    "heartbeat_trigger": 2.5,
    "min_processing_interval": 0,
    "fetch_delays": (0.1,),
}


def block_until(condition: Callable[[], bool]) -> None:
    """Keep this thread, and the event loop in it, until the condition holds."""
    look = threading.Event()
    for _ in range(round(BLOCKED_S_MAX / LOOK_EVERY_S)):
        if condition():
            return
        look.wait(LOOK_EVERY_S)
    raise AssertionError("what the blocked loop waits for did not happen")


def renewed_past(item: PipelineItem[Any], first: datetime, times: int) -> Callable[[], bool]:
    """Return whether the lease of `item` was renewed for so many times its length, as far as its holder has heard."""
    return lambda: item.lock_expires_at >= first + times * LOCK_TIMEOUT


async def until_so(condition: Callable[[], Any]) -> None:
    """Wait until the condition, which may be awaited, holds; without events, which two threads would tell."""
    async with asyncio.timeout(BLOCKED_S_MAX):
        while not (await found if inspect.isawaitable(found := condition()) else found):  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(LOOK_EVERY_S)


def heartbeat_threads() -> int:
    """Return how many threads renew leases in this process."""
    return sum(thread.name == "rowlock heartbeats" for thread in threading.enumerate())


class OtherReplica:
    """A replica with a loop in a thread of its own, which looks for rows all the time."""

    def __init__(self, database: TemporaryDatabase) -> None:
        """Start nothing yet."""
        self.runs: Counter[Any] = Counter()
        self.has_looked = threading.Event()
        self.has_worked = threading.Event()
        self._url = database.url
        self._stop = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Be at work for the time of the block."""
        thread = threading.Thread(target=lambda: asyncio.run(self._work()))
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    async def _work(self) -> None:
        engine = create_async_engine(self._url)
        pipeline = VolumePipeline(answer=self._answer, **SETTINGS)
        async with PipelineManager(async_sessionmaker(engine), [pipeline]) as manager:
            while not self._stop.is_set():
                await asyncio.to_thread(self._stop.wait, LOOK_EVERY_S)
                if manager.statistics()[pipeline.name].counters["fetches"] > 1:
                    self.has_looked.set()
        await engine.dispose()

    def _answer(self, item: PipelineItem[Any]) -> Outcome:
        self.runs[item.id] += 1
        self.has_worked.set()
        return Apply({"status": "active"})


async def test_a_blocked_loop_costs_no_lease(database: TemporaryDatabase) -> None:
    """Host code that computes for longer than a lease would have everything that its replica has in hand done twice."""
    rows = await add(database, *(Volume() for _ in range(4)))
    runs: Counter[Any] = Counter()
    other = OtherReplica(database)
    is_over = asyncio.Event()

    async def answer(item: PipelineItem[Any]) -> Outcome:
        runs[item.id] += 1
        if len(runs) == 1:
            await is_over.wait()
        elif len(runs) == 2:
            # Beside this one, another is being worked on, and two wait in the queue.
            with other.at_work():
                block_until(renewed_past(item, item.lock_expires_at, 3))
                assert other.has_looked.is_set()
            is_over.set()
        return Apply({"status": "active"})

    async def all_done() -> bool:
        return {row.status for row in await read_all(database, Volume)} == {"active"}

    pipeline = VolumePipeline(answer=answer, **SETTINGS)
    async with PipelineManager(database.session_factory, [pipeline]) as manager:
        await until_so(all_done)
        health = manager.health()
    assert runs == Counter(row.id for row in rows)
    assert other.runs == Counter()
    counters = manager.statistics()[pipeline.name].counters
    assert (counters["leases_lost"], counters["stale"], counters["abandoned"]) == (0, 0, 0)
    assert health.longest_stall_s >= 2 * LOCK_TIMEOUT.total_seconds()


STATEMENTS: Final[dict[str, Callable[[str], bool]]] = {
    "a claim": is_claim,
    "an outcome": is_outcome,
    "rows found for outcomes": lambda statement: statement.startswith("SELECT") and "volumes.lock_token" in statement,
    "also": lambda _statement: False,
    "a related lock": lambda statement: (
        statement.startswith(("UPDATE attachments", "WITH")) and "lock_token" in statement
    ),
}


@pytest.mark.parametrize("moment", STATEMENTS)
async def test_a_loop_blocked_within_a_transaction_costs_no_lease(  # noqa: C901 - one story of two items
    database: TemporaryDatabase, moment: str
) -> None:
    """What a transaction has locked that stands still, a whole file on SQLite, could not be renewed, and its work be done again."""
    first, second = await add(database, Volume(), Volume(size_gb=0))
    await add(database, Attachment(volume_id=first.id, status="active"))
    runs: Counter[Any] = Counter()
    items: dict[Any, PipelineItem[Any]] = {}
    blocks: list[str] = []
    has_second, is_written = asyncio.Event(), asyncio.Event()
    loops_thread = threading.get_ident()

    def block() -> None:
        if not blocks and len(items) == 2 and threading.get_ident() == loops_thread:
            blocks.append(moment)
            block_until(renewed_past(items[second.id], items[second.id].lock_expires_at, 3))

    def on_execute(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if STATEMENTS[moment](statement):
            block()

    async def also(session: AsyncSession, _now: datetime) -> None:
        block()
        (await session.get_one(Volume, first.id)).size_gb += 10
        await session.flush()

    async def answer(item: PipelineItem[Any]) -> Outcome:
        runs[item.id] += 1
        items[item.id] = item
        if item.id == second.id:
            has_second.set()
            await is_written.wait()
            return Apply({"status": "active"})
        await has_second.wait()
        if moment == "a related lock":
            assert len(await item.lock_related(Attachment, Attachment.volume_id == item.id)) == 1
        if moment == "a claim":
            await until_so(lambda: blocks)
        return Apply({"status": "active"}, also=also if moment == "also" else None)

    event.listen(database.engine.sync_engine, "after_cursor_execute", on_execute)
    pipelines = [VolumePipeline(answer=answer, **SETTINGS), AttachmentPipeline(**SETTINGS)]
    async with PipelineManager(database.session_factory, pipelines) as manager:

        async def first_is_active() -> bool:
            return (await read(database, first)).status == "active"

        await until_so(first_is_active)
        is_written.set()
    assert blocks == [moment]
    assert runs == Counter({first.id: 1, second.id: 1})
    counters = manager.statistics()["VolumePipeline"].counters
    assert (counters["applied"], counters["retried"], counters["stale"], counters["leases_lost"]) == (2, 0, 0, 0)
    assert (await read(database, first)).size_gb == (11 if moment == "also" else 1), "once, however often it was tried"
    assert {row.status for row in await read_all(database, Volume)} == {"active"}


async def test_a_loop_that_never_comes_back_lets_go(database: TemporaryDatabase, caplog: Any) -> None:
    """A wedged replica would keep its rows for ever, and nobody would work on them."""
    [row] = await add(database, Volume())
    other = OtherReplica(database)

    async def answer(item: PipelineItem[Any]) -> Outcome:
        with other.at_work():
            block_until(other.has_worked.is_set)
        return Apply({"status": "never"})

    pipeline = VolumePipeline(answer=answer, wedge_limit=LOCK_TIMEOUT, **SETTINGS)
    async with PipelineManager(database.session_factory, [pipeline]) as manager:
        await until_so(lambda: manager.statistics()[pipeline.name].counters["stale"])
    after = await read(database, row)
    assert after.status == "active", "as the other one wrote it"
    assert is_free(after)
    assert other.runs == Counter({row.id: 1})
    [told] = [record for record in caplog.records if "no longer renewed" in record.message]
    assert told.leases == 1


async def test_a_full_pool_costs_no_lease(database: TemporaryDatabase) -> None:
    """A host that keeps all its connections for itself would lose everything that it has in hand."""
    await add(database, Volume())
    engine = database.create_engine(pool_size=1, max_overflow=0)
    is_kept = asyncio.Event()

    async def answer(item: PipelineItem[Any]) -> Outcome:
        async with engine.connect():
            await heard.wait_for(events.LeasesRenewed, count=3)
        is_kept.set()
        return Apply({"status": "active"})

    with heard_events() as heard:
        async with PipelineManager(async_sessionmaker(engine), [VolumePipeline(answer=answer, **SETTINGS)]):
            await is_kept.wait()
            await heard.wait_for(events.ItemApplied)
    assert {(event.due, event.renewed) for event in heard.of(events.LeasesRenewed)} == {(1, 1)}


async def test_connections_that_know_their_thread_are_used_in_it(database: TemporaryDatabase, caplog: Any) -> None:
    """A host whose connections can be made on its own loop only would lose every lease, and not know why."""
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


async def test_without_the_thread_the_hosts_pool_is_used(sqlite_database: TemporaryDatabase) -> None:
    """A host that counts its connections could not do without the one more."""
    manager = PipelineManager(sqlite_database.session_factory, [VolumePipeline()], heartbeat_thread=False)
    await add(sqlite_database)
    async with manager:
        await until_so(lambda: manager.statistics()["VolumePipeline"].counters["fetches"])
        assert heartbeat_threads() == 0
    assert manager.health().longest_stall_s == 0.0


@pytest.mark.parametrize("pipelines", [1, 3])
async def test_a_manager_has_one_thread_and_ends_it(sqlite_database: TemporaryDatabase, pipelines: int) -> None:
    """A service with many pipelines would have as many threads, and keep them when they have ended."""
    await add(sqlite_database)
    kinds = [type(f"Pipeline{number}", (VolumePipeline,), {}) for number in range(pipelines)]
    async with PipelineManager(sqlite_database.session_factory, [kind() for kind in kinds]) as manager:
        await until_so(lambda: all(pipeline.counters["fetches"] for pipeline in manager.statistics().values()))
        assert heartbeat_threads() == 1
    assert heartbeat_threads() == 0


@pytest.mark.parametrize("error", [SystemExit(3), RuntimeError("planned")])
async def test_a_heartbeat_that_dies_is_replaced(sqlite_database: TemporaryDatabase, error: BaseException) -> None:
    """One error on the other side, even one that ends its thread, would cost every lease of the replica from then on."""
    await add(sqlite_database, Volume())
    deaths = [error]

    class Dying(Heartbeater[Any]):
        """Dies once."""

        async def beat_once(self) -> int:
            """Die, or beat."""
            if deaths:
                raise deaths.pop()
            return await super().beat_once()

    class Pipeline(VolumePipeline):
        """Has that one."""

        heartbeater_class = Dying

    async def answer(_item: PipelineItem[Any]) -> Outcome:
        await heard.wait_for(events.LeasesRenewed, count=2)
        return Apply({"status": "active"})

    with heard_events() as heard:
        async with PipelineManager(sqlite_database.session_factory, [Pipeline(answer=answer, **SETTINGS)]) as manager:
            await heard.wait_for(events.ItemApplied)
            assert manager.health().healthy
    assert len(heard.of(events.LoopReplaced)) == 1
    assert heartbeat_threads() == 0


async def test_the_interpreter_ends_though_nobody_drained(sqlite_database: TemporaryDatabase) -> None:
    """A host that dies of an exception would hang for ever in the end, for a thread that it does not know of."""
    await add(sqlite_database, Volume())
    program = """
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
asyncio.run(main())
"""
    url = sqlite_database.url.render_as_string(hide_password=False)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, url, cwd=Path(__file__).parents[2], stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(BLOCKED_S_MAX):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
    assert process.returncode == 7


@pytest.mark.parametrize("turn", range(12))
async def test_a_drain_that_is_cancelled_still_ends_the_thread(sqlite_database: TemporaryDatabase, turn: int) -> None:
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
    async with asyncio.timeout(BLOCKED_S_MAX):
        await manager.drain(0)
    assert heartbeat_threads() == 0
