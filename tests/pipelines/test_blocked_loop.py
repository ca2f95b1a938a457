"""Tests of a host that blocks its event loop: leases are renewed all the same, in a thread of their
own, up to a limit.

The time is the true one here, and nobody waits for it: the code that blocks goes on when what it
waits for has happened.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import pytest
from sqlalchemy import event, false
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from rowlock import Apply, Outcome, PipelineItem, PipelineManager, Related, events
from rowlock.pipelines.settler import OVERRUNS_MAX
from rowlock.testing import TemporaryDatabase

from ..host import (
    Attachment,
    AttachmentPipeline,
    Run,
    RunPipeline,
    Volume,
    VolumePipeline,
    heard_events,
)
from .blocking import LOCK_TIMEOUT, LOOK_EVERY_S, OFTEN, SETTINGS, block_until, outlasted, until_so
from .scenes import add, is_claim, is_free, is_outcome, is_renewal, read, read_all


class OtherReplica:
    """A replica with a loop in a thread of its own, which looks for rows all the time."""

    def __init__(self, database: TemporaryDatabase) -> None:
        self.runs: Counter[Any] = Counter()
        self.has_looked = threading.Event()
        self.has_worked = threading.Event()
        self._url = database.url
        self._stop = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
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
    """Host code that computes for longer than a lease would have everything that its replica has
    in hand done twice.
    """
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
                block_until(outlasted(item, seconds=3 * LOCK_TIMEOUT.total_seconds()))
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
    "rows found for outcomes": lambda statement: statement.startswith("SELECT volumes.lock_token"),
    "also": lambda _statement: False,
    "a related lock": lambda statement: (
        statement.startswith(("UPDATE attachments", "WITH"))
        and "lock_token" in statement
        and not is_claim(statement)
        and not is_renewal(statement)
    ),
}


# PostgreSQL writes what brings no statements of its own without finding its row first.
WITH_STATEMENTS: Final = ("also", "rows found for outcomes")


class LockingPipeline(VolumePipeline):
    """Locks attachments; keeps none back for a volume that waits."""

    locks = (Related(Attachment, on=false()),)


@pytest.mark.parametrize("moment", STATEMENTS)
async def test_a_loop_blocked_within_a_transaction_costs_no_lease(  # noqa: C901 - one story of two items
    database: TemporaryDatabase, moment: str
) -> None:
    """What a transaction has locked that stands still, a whole file on SQLite, could not be
    renewed, and its work be done again.
    """
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
            block_until(outlasted(items[second.id], seconds=1))
            blocks.append("renewed")

    def on_execute(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if STATEMENTS[moment](statement):
            block()

    async def also(session: AsyncSession, _now: datetime) -> None:
        if moment == "also":
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
        return Apply({"status": "active"}, also=also if moment in WITH_STATEMENTS else None)

    event.listen(database.engine.sync_engine, "after_cursor_execute", on_execute)
    pipelines = [LockingPipeline(answer=answer, **OFTEN), AttachmentPipeline(**OFTEN)]
    async with PipelineManager(database.session_factory, pipelines) as manager:

        async def first_is_active() -> bool:
            return (await read(database, first)).status == "active"

        await until_so(first_is_active)
        is_written.set()
    assert blocks == [moment, "renewed"]
    assert runs == Counter({first.id: 1, second.id: 1})
    counters = manager.statistics()["LockingPipeline"].counters
    assert (
        counters["applied"],
        counters["retried"],
        counters["stale"],
        counters["leases_lost"],
    ) == (2, 0, 0, 0)
    assert (await read(database, first)).size_gb == (11 if moment in WITH_STATEMENTS else 1), (
        "once, however often it was tried"
    )
    assert {row.status for row in await read_all(database, Volume)} == {"active"}


async def test_a_loop_that_never_comes_back_lets_go(
    database: TemporaryDatabase, caplog: Any
) -> None:
    """A wedged replica would keep its rows for ever, and nobody would work on them."""
    [row] = await add(database, Volume())
    other = OtherReplica(database)

    async def answer(item: PipelineItem[Any]) -> Outcome:
        with other.at_work():
            block_until(other.has_worked.is_set)
        return Apply({"status": "never"})

    pipeline = VolumePipeline(answer=answer, stall_limit=LOCK_TIMEOUT, **SETTINGS)
    async with PipelineManager(database.session_factory, [pipeline]) as manager:
        await until_so(lambda: manager.statistics()[pipeline.name].counters["stale"])
    after = await read(database, row)
    assert after.status == "active", "as the other one wrote it"
    assert is_free(after)
    assert other.runs == Counter({row.id: 1})
    [told] = [record for record in caplog.records if "no longer renewed" in record.message]
    assert told.rowlock_leases == 1


async def test_a_full_pool_costs_no_lease(database: TemporaryDatabase) -> None:
    """A host that keeps all its connections for itself would lose everything that it has in
    hand.
    """
    await add(database, Volume())
    engine = database.create_engine(pool_size=1, max_overflow=0)
    is_kept = asyncio.Event()

    async def answer(item: PipelineItem[Any]) -> Outcome:
        async with engine.connect():
            await heard.wait_for(events.LeasesRenewed, count=3)
        is_kept.set()
        return Apply({"status": "active"})

    with heard_events() as heard:
        async with PipelineManager(
            async_sessionmaker(engine), [VolumePipeline(answer=answer, **SETTINGS)]
        ):
            await is_kept.wait()
            await heard.wait_for(events.ItemApplied)
    assert {(event.due, event.renewed) for event in heard.of(events.LeasesRenewed)} == {(1, 1)}


async def test_a_loop_that_stands_still_in_the_log_costs_no_lease(
    sqlite_database: TemporaryDatabase,
) -> None:
    """The line that tells of the block would wait for the handler that blocks, and the
    heartbeats with it.
    """
    await add(sqlite_database, Volume())
    is_over = threading.Event()

    class Stuck(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "stuck":
                block_until(is_over.is_set)

    async def answer(item: PipelineItem[Any]) -> Outcome:
        renewed = outlasted(item, seconds=1)
        watch = threading.Thread(target=lambda: (block_until(renewed), is_over.set()))
        watch.start()
        logging.getLogger("rowlock").warning("stuck")
        watch.join()
        return Apply({"status": "active"})

    handler = Stuck()
    logging.getLogger("rowlock").addHandler(handler)
    try:
        pipeline = VolumePipeline(answer=answer, **OFTEN)
        async with PipelineManager(sqlite_database.session_factory, [pipeline]) as manager:
            await until_so(lambda: manager.statistics()[pipeline.name].counters["applied"])
    finally:
        logging.getLogger("rowlock").removeHandler(handler)
    assert len(pipeline.items) == 1


async def test_an_outcome_that_always_blocks_fails_in_the_end(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A row whose outcome blocks the loop each time would be worked on for ever, uncounted, and
    never be parked.
    """
    await add(sqlite_database, Run(id=1))
    cuts = 0

    async def also(_session: AsyncSession, _now: datetime) -> None:
        nonlocal cuts
        cuts += 1
        block_until(lambda: len(cut_logs) >= cuts)

    cut_logs: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = cut_logs.append  # type: ignore[method-assign]
    # A fetch may stand still beside it.
    handler.addFilter(lambda record: record.rowlock_purpose == "write an outcome")  # type: ignore[attr-defined]
    logger = logging.getLogger("rowlock.database.transaction")
    logger.addHandler(handler)
    try:
        pipeline = RunPipeline(answer=Apply({"status": "done"}, also=also), **OFTEN)
        async with PipelineManager(sqlite_database.session_factory, [pipeline]) as manager:
            await until_so(lambda: manager.statistics()[pipeline.name].counters["retried"])
    finally:
        logger.removeHandler(handler)
    row = (await read_all(sqlite_database, Run))[0]
    assert (row.status, row.attempts) == ("queued", 1)
    assert "was stalled" in row.last_error
    assert cuts == OVERRUNS_MAX
