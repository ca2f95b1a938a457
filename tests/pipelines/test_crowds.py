"""Many pipelines in one process: what each costs does not depend on how many there are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import ColumnElement, NullPool, event
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock import PipelineManager, events
from rowlock.database import pools as claim_queue
from rowlock.database.pools import CONNECTIONS_AT_ONCE, claim_slot
from rowlock.pipelines import run
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Attachment, RecordingPipeline, Run, Volume, heard_events
from .blocking import until_so
from .scenes import add, faults_of, is_claim, now, turns

FEW, MANY = 10, 50


class Counting(RecordingPipeline):
    """Wants rows of its own; counts how often it is asked which."""

    asked = 0

    def ready(self) -> ColumnElement[bool]:
        type(self).asked += 1
        wanted: ColumnElement[bool] = self.model.status == self.name
        return wanted


def crowd(count: int, *models: Any, **settings: Any) -> list[Counting]:
    tables = models or (Volume,)
    return [
        type(f"Counting{number}", (Counting,), {"asked": 0, "model": tables[number % len(tables)]})(
            **settings
        )
        for number in range(count)
    ]


def fewest_fetches(manager: PipelineManager) -> int:
    return min(one.counters["fetches"] for one in manager.statistics().values())


@pytest.mark.at_length
@virtual_time
async def test_a_fetch_asks_for_its_own_condition_alone(
    virtual_database: TemporaryDatabase,
) -> None:
    """Fifty pipelines of one model would cost their square: each claim asked all others, and its
    statement named them all.
    """
    await add(virtual_database)
    for count in (FEW, MANY):
        pipelines = crowd(count)
        built = {pipeline.name: pipeline.asked for pipeline in pipelines}
        async with PipelineManager(virtual_database.session_factory, pipelines) as manager:
            await asyncio.sleep(20)
            fetches = {name: one.counters["fetches"] for name, one in manager.statistics().items()}
            asked = {pipeline.name: pipeline.asked - built[pipeline.name] for pipeline in pipelines}
        assert min(fetches.values()) > 3
        # A fetch that is on its way has asked and is not counted yet.
        assert {name for name in fetches if asked[name] - fetches[name] not in (0, 1)} == set()


async def test_a_claim_is_as_large_beside_fifty_siblings_as_beside_ten(
    database: TemporaryDatabase,
) -> None:
    """To compile the claims of a crowd would stop the loop for seconds."""
    await add(database)
    sizes: set[int] = set()
    for count in (FEW, MANY):
        first, *others = crowd(count)
        with faults_of(database.engine) as faults:
            async with stepping(database.session_factory, first, beside=others) as steps:
                await steps.fetch_once()
        sizes |= {len(statement) for _, statement in faults.sent if is_claim(statement)}
    assert len(sizes) == 1


async def test_claims_of_one_process_do_not_fight_for_a_sqlite_file(
    sqlite_database: TemporaryDatabase,
) -> None:
    """Pipelines that start at once would find the database locked, by each other."""
    await add(sqlite_database)
    engine = sqlite_database.create_engine(connect_args={"timeout": 0})
    # Those of one table wait for its lockset, for long on a busy machine.
    pipelines = crowd(45, Volume, Run, Attachment, database_timeout=60)
    with heard_events() as heard:
        async with PipelineManager(
            async_sessionmaker(engine), pipelines, heartbeat_thread=False
        ) as manager:
            await until_so(lambda: fewest_fetches(manager) >= 3)
        assert heard.of(events.FetchFailed) == []
    await engine.dispose()


@pytest.mark.parametrize("look_after_s", [0, 600])
async def test_claims_open_no_more_connections_than_the_pool_keeps(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, look_after_s: float
) -> None:
    """A crowd would open and close connections with each round of fetches, or all at once when it
    looks at its indexes, and leave none to the host.
    """
    monkeypatch.setattr(run, "LOOK_AFTER_S", look_after_s)
    await add(postgresql_database)
    engine, opened = postgresql_database.create_engine(pool_size=2, max_overflow=50), []
    event.listen(engine.sync_engine, "connect", lambda *_: opened.append(1))
    pipelines = crowd(30, database_timeout=60)
    async with PipelineManager(
        async_sessionmaker(engine), pipelines, heartbeat_thread=False
    ) as manager:
        await until_so(lambda: fewest_fetches(manager) >= 3)
    assert len(opened) == 2
    await engine.dispose()


@virtual_time
async def test_who_has_waited_for_long_goes_on(virtual_database: TemporaryDatabase) -> None:
    """Claims that hang, of a table that somebody keeps locked, would keep all other tables from
    being served.
    """
    engine = virtual_database.engine.sync_engine
    began, hangs = now(), asyncio.Event()

    async def hang() -> None:
        async with claim_slot(engine, wait_s=5):
            await hangs.wait()

    hanging = asyncio.create_task(hang())
    await turns()
    async with claim_slot(engine, wait_s=5):
        assert now() - began == pytest.approx(5)
    hangs.set()
    await hanging
    began = now()
    async with claim_slot(engine, wait_s=5):
        assert now() == began, "who went on without a place releases none"
    async with asyncio.timeout(60):
        await asyncio.gather(*(passes(engine) for _ in range(20)))


async def passes(engine: Any) -> None:
    async with claim_slot(engine, wait_s=50):
        assert inside == [], "one at a time on SQLite"
        inside.append(1)
        await asyncio.sleep(1)
        inside.clear()


inside: list[int] = []


async def test_a_cancelled_wait_leaves_the_line(virtual_database: TemporaryDatabase) -> None:
    """Its place would be nobody's, and each claim wait for as long as it may."""
    engine = virtual_database.engine.sync_engine
    async with claim_slot(engine, wait_s=5):
        waiting = asyncio.create_task(passes(engine))
        await turns()
        waiting.cancel()
        await asyncio.wait({waiting})
    async with asyncio.timeout(3), claim_slot(engine, wait_s=50):
        pass


async def test_a_pool_that_keeps_none_has_places_all_the_same(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A host without a pool could not claim, or without any order."""
    engine = postgresql_database.create_engine(poolclass=NullPool).sync_engine
    waits = [claim_slot(engine, wait_s=0.01) for _ in range(CONNECTIONS_AT_ONCE)]
    for wait in waits:
        await wait.__aenter__()
    began = now()
    async with claim_slot(engine, wait_s=0.01):
        assert now() > began
    for wait in waits:
        await wait.__aexit__(None, None, None)


def test_a_loop_that_has_ended_leaves_no_queue_of_claims_behind() -> None:
    """A process that runs one event loop after the other would keep the queue of each, and the
    loop with it.
    """
    engine = create_async_engine("sqlite+aiosqlite:///never-opened.db").sync_engine

    async def two_claims() -> asyncio.AbstractEventLoop:
        async def claim() -> None:
            async with claim_slot(engine, wait_s=60):
                await asyncio.sleep(0)

        await asyncio.gather(claim(), claim())
        return asyncio.get_running_loop()

    loops = [asyncio.run(two_claims()) for _ in range(3)]
    assert claim_queue._slots[engine.pool][0] is loops[-1]
