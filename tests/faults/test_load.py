"""Crowds of items, pipelines, idle rows and hints: what is kept of them is bounded, and nobody
waits for ever because of them.

Small sizes, and counts instead of times; ``tests/bench/crowds.py`` plays the same at full size.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import text

from rowlock import PipelineHinter, PipelineManager, events, hint_after_commit, pipeline_hinter
from rowlock.testing import TemporaryDatabase, stepping

from ..host import HANG_S_MAX, Volume, VolumePipeline, heard_events
from ..lengths import at_length
from ..pipelines.scenes import add
from .crowds import Book, HoldingPipeline, add_books, pipeline_of, shelves

RENEWED_OFTEN = {
    "lock_timeout": 60,
    "heartbeat_trigger": 59.5,
    "heartbeat_interval": 0.5,
    "lease_margin": 1,
    "renew_timeout": 30,
    "database_timeout": 60,
}
"""Renewed half a second after the claim, and far from its end all the same: this is about
numbers, not about a slow machine.
"""


# ---------------------------------------------------------------- items in flight


async def test_a_crowd_in_flight_keeps_its_leases_and_leaves_nothing(
    database: TemporaryDatabase,
) -> None:
    """Thousands of items at once would outlast their leases, or stay in some list of ours when
    they are done.
    """
    running, queued = 300, 300
    await add_books(database, running + queued)
    pipeline = HoldingPipeline(
        workers_num=running,
        queue_upper_limit_factor=queued / running,
        queue_lower_limit_factor=1,
        **RENEWED_OFTEN,
    )
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [pipeline]) as manager:
            await heard.wait_for(events.ItemStarted, count=running)
            async with asyncio.timeout(HANG_S_MAX):
                while manager.statistics()[pipeline.name].queued < queued:  # noqa: ASYNC110 - figures set no event
                    await asyncio.sleep(0.01)
            await _until_all_renewed(heard, times=2 * (running + queued))
            figures = manager.statistics()[pipeline.name]
            assert (figures.running, figures.queued, figures.tracked) == (
                running,
                queued,
                running + queued,
            )
            assert heard.of(events.LeaseExpired) == []
            pipeline.let_go.set()
            await heard.wait_for(events.ItemApplied, count=running + queued)
            run: Any = pipeline.run
            async with asyncio.timeout(HANG_S_MAX):
                while manager.statistics()[pipeline.name].tracked:  # noqa: ASYNC110 - figures set no event
                    await asyncio.sleep(0.01)
            context = run.context
            assert (
                len(context.running),
                len(context.queue),
                len(run.settler),
                len(context.calls.abandoned()),
            ) == (0, 0, 0, 0)
            async with asyncio.timeout(HANG_S_MAX):
                while len(context.background):  # such as the look at the indexes
                    await context.background.wait_for_one()
    assert pipeline.statistics().counters["claimed"] == running + queued


async def _until_all_renewed(heard: Any, *, times: int) -> None:
    while sum(event.renewed for event in heard.of(events.LeasesRenewed)) < times:
        await heard.wait_for(events.LeasesRenewed, count=len(heard.of(events.LeasesRenewed)) + 1)


async def test_the_queue_claims_no_more_than_it_has_room_for(database: TemporaryDatabase) -> None:
    """A backlog would be leased and held in memory as a whole, and lie there if the process
    dies.
    """
    await add_books(database, 500)
    pipeline = HoldingPipeline(workers_num=10, queue_upper_limit_factor=2)
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [pipeline]):
            await heard.wait_for(events.ItemStarted, count=10)
            for _ in range(100):
                pipeline_hinter.hint_fetch(Book)
                await asyncio.sleep(0)
            async with database.engine.connect() as connection:
                leased = await connection.scalar(
                    text("SELECT count(*) FROM books WHERE lock_token IS NOT NULL")
                )
            assert leased is not None
            assert leased <= 30
            assert pipeline.statistics().tracked <= 30
            pipeline.let_go.set()
            await heard.wait_for(events.ItemApplied, count=500)


# ---------------------------------------------------------------- pipelines


@pytest.mark.either_database
async def test_many_pipelines_share_a_process(database: TemporaryDatabase) -> None:
    """With many pipelines some would never have their turn at the pool, the loop or the file."""
    # On a server each connection of the pool prepares the statements of each: fewer say as much.
    count = at_length(30, 100) if database.dialect_name == "sqlite" else at_length(15, 25)
    models = shelves(count)
    await database.create_tables(models[0].metadata)  # type: ignore[attr-defined]
    # No lease is near its end here, however slow the machine.
    pipelines = [
        pipeline_of(model, workers_num=1, lock_timeout=600, heartbeat_trigger=300)
        for model in models
    ]
    async with database.session_factory.begin() as session:
        session.add_all([model(id=number) for model in models for number in range(2)])
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, pipelines) as manager:
            for model in models:
                manager.hinter.hint_fetch(model)
            for applied in range(10, 2 * count + 1, 10):
                # Each step has its own bound: this is about whose turn comes, not when.
                await heard.wait_for(events.ItemApplied, count=applied)
            assert {
                name
                for name, figures in manager.statistics().items()
                if figures.counters["applied"] != 2
            } == set()
            assert all(
                alive for one in manager.health().pipelines for alive in one.loops_alive.values()
            )
    assert heard.of(events.LeaseExpired) == []
    assert heard.of(events.LoopReplaced) == []


# ---------------------------------------------------------------- idle rows


async def rows_read(database: TemporaryDatabase, steps: Any) -> int:
    """Return how much a claim that finds nothing reads: rows on PostgreSQL, thousands of steps
    of its machine on SQLite.
    """
    if database.dialect_name == "postgresql":
        before = await _read_so_far(database)
        assert await steps.fetch_once() == []
        return await _read_so_far(database) - before
    thousands: list[int] = []

    async with database.engine.connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await driver.set_progress_handler(lambda: thousands.append(1), 1000)
    assert await steps.fetch_once() == []
    async with database.engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        await driver.set_progress_handler(None, 1000)
    return len(thousands)


async def _read_so_far(database: TemporaryDatabase) -> int:
    async with database.engine.connect() as connection:
        await connection.execute(text("SELECT pg_stat_force_next_flush()"))
        await connection.commit()
        await connection.execute(text("SELECT pg_stat_clear_snapshot()"))
        return int(
            await connection.scalar(
                text(
                    "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname ="
                    " 'books'"
                )
            )
            or 0
        )


INDEX = "CREATE INDEX books_due ON books (due_at, id) WHERE parked_at IS NULL AND status = 'new'"


@pytest.mark.parametrize("rows", [2_000, 20_000])
async def test_idle_rows_cost_a_claim_nothing(database: TemporaryDatabase, rows: int) -> None:
    """Each look for work would read all rows that want none, again and again."""
    engine = database.create_engine(pool_size=1, max_overflow=0)
    database.engine = engine
    database.session_factory.configure(bind=engine)
    await add_books(database, rows, status="done")
    async with engine.begin() as connection:
        await connection.execute(text(INDEX))
    async with engine.connect() as connection:
        await connection.execute(text("ANALYZE"))
        await connection.commit()
    async with stepping(database.session_factory, HoldingPipeline()) as steps:
        assert await steps.fetch_once() == []
        assert await rows_read(database, steps) <= 3


# ---------------------------------------------------------------- hints


STORM = 20_000


async def test_a_storm_of_hints_is_one_call_that_waits(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hint from a thread would be a callback that the loop has to work off, and memory
    until then.
    """
    await add(database, Volume())
    loop = asyncio.get_running_loop()
    scheduled: list[Any] = []
    call = loop.call_soon_threadsafe

    def counting(callback: Any, *arguments: Any, **how: Any) -> Any:
        if callback == pipeline.run._pass_on_hint:
            scheduled.append(callback)
        return call(callback, *arguments, **how)

    pipeline = VolumePipeline()
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [pipeline]):
            await heard.wait_for(events.ItemApplied)
            monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
            threads = [threading.Thread(target=_hint, args=(STORM // 4,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                # The loop does nothing meanwhile: whatever piles up does so now.
                thread.join()
            assert len(scheduled) == 1
            monkeypatch.undo()
            fetches = pipeline.statistics().counters["fetches"]
            _hint(STORM)
            await asyncio.sleep(0)
            assert pipeline.statistics().counters["fetches"] - fetches <= 2


def _hint(times: int) -> None:
    for _ in range(times):
        pipeline_hinter.hint_fetch(Volume)


@pytest.mark.either_database
async def test_a_storm_of_hints_starves_nobody(database: TemporaryDatabase) -> None:
    """A pipeline that is hinted all the time would keep the others from their rows, and its own
    leases from renewal.
    """
    await add(database, *(Volume() for _ in range(3)))
    await add_books(database, 3)
    over = threading.Event()

    def storm() -> None:
        while not over.is_set():
            pipeline_hinter.hint_fetch(Volume)

    async def storm_in_the_loop() -> None:
        while not over.is_set():
            _hint(100)
            await asyncio.sleep(0)

    async def hold(_item: Any) -> None:
        await asyncio.to_thread(over.wait)

    hinted = VolumePipeline(answer=hold, **RENEWED_OFTEN)
    other = pipeline_of(Book)
    thread = threading.Thread(target=storm)
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [hinted, other]):
            thread.start()
            inside = asyncio.create_task(storm_in_the_loop())
            try:
                await heard.wait_for(events.LeasesRenewed, count=2)
                await heard.wait_for(events.ItemApplied, count=3)
                await add_books(database, 3, first=100)
                await heard.wait_for(events.ItemApplied, count=6)
                assert heard.of(events.LeaseExpired) == []
            finally:
                over.set()
                await inside
                thread.join()
            await heard.wait_for(events.ItemApplied, count=9)


async def test_hints_that_wait_for_a_commit_are_kept_once(database: TemporaryDatabase) -> None:
    """A long transaction that asks for a hint with every row it writes would keep a list of as
    many.
    """
    await add(database)
    hinter, heard = PipelineHinter(), []
    hinter.attach("Volume", lambda: heard.append(1))
    async with database.session_factory() as session, session.begin():
        for _ in range(STORM):
            hint_after_commit(session, Volume, hinter=hinter)
        kept = session.sync_session.info["rowlock_pending_hints"]
        assert sum(len(hints) for hints in kept.values()) == 1
    assert heard == [1]
