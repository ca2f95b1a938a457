"""Ending a transaction that its own event loop leaves standing with SQLite's write lock."""

from __future__ import annotations

import asyncio
import gc
import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text

from rowlock import TransactionTimeout
from rowlock.database import transaction as stalled_transactions
from rowlock.database.pools import SeparatePool
from rowlock.database.transaction import abort_stalled
from rowlock.dialects.postgresql import transactions
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX, Base, Run
from .transactions import may_write, run_in

ENDLESS = (
    "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers) SELECT max(n) FROM"
    " numbers"
)


@pytest.fixture
async def runs(database: TemporaryDatabase) -> TemporaryDatabase:
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add(Run(id=1))
    return database


def cut(
    database: TemporaryDatabase, older_than_s: float, *, thread: int = threading.get_ident()
) -> None:
    async def work() -> None:
        pool = SeparatePool(database.session_factory, file_wait=timedelta(seconds=1))
        await abort_stalled(pool.connect, thread=thread, older_than_s=older_than_s)
        await pool.close()

    asyncio.run(work())


async def status_of(database: TemporaryDatabase) -> str:
    async with database.session_factory() as session:
        return (await session.get_one(Run, 1)).status


async def test_what_stands_is_cut_and_rolled_back(runs: TemporaryDatabase) -> None:
    """The file would stay locked for everybody as long as one host's loop stands still."""
    freed: list[bool] = []

    async def work(_session: Any, connection: Any) -> None:
        await connection.execute(text("UPDATE runs SET status = 'half' WHERE id = 1"))
        await asyncio.to_thread(cut, runs, 0.0)
        # Whatever fails in here comes out as the timeout.
        freed.append(await may_write(runs))
        await connection.execute(text("UPDATE runs SET status = 'whole' WHERE id = 1"))

    with pytest.raises(
        TransactionTimeout, match="take a step did not end while the event loop was stalled"
    ) as caught:
        await run_in(runs.session_factory, work)
    assert freed == [True]
    assert (caught.value.was_aborted, caught.value.was_rolled_back) == (True, True)
    assert await status_of(runs) == "queued"


async def test_one_that_stands_within_a_statement_is_cut(runs: TemporaryDatabase) -> None:
    """A loop that is blocked between the preparing of a statement and its execution would keep
    rows locked, its own leases too.
    """
    freed: list[bool] = []

    async def work(_session: Any, connection: Any) -> None:
        await connection.execute(text("UPDATE runs SET status = 'half' WHERE id = 1"))
        pooled = await connection.get_raw_connection()
        # psycopg sends all of a statement at once.
        if connection.dialect.driver == "asyncpg":
            await pooled.driver_connection.prepare("SELECT 1")
        await asyncio.to_thread(cut, runs, 0.0)
        freed.append(await may_write(runs))

    with pytest.raises(TransactionTimeout) as caught:
        await run_in(runs.session_factory, work)
    assert freed == [True]
    assert (caught.value.was_aborted, caught.value.was_rolled_back) == (True, True)


async def test_one_that_could_not_be_cut_is_cut_at_the_next_look(
    runs: TemporaryDatabase, monkeypatch: Any
) -> None:
    """A server that is busy with a statement, or not reached, at one moment would keep the rows
    locked for the whole block.
    """
    terminate = transactions.PostgresqlTransactions.end_stalled
    asked: list[bool] = []
    freed: list[bool] = []

    async def only_at_third(*args: Any, **kwargs: Any) -> bool | None:
        asked.append(len(asked) >= 2 and await terminate(*args, **kwargs))
        if len(asked) == 1:
            raise ConnectionError("it is not reached")
        return asked[-1] or None

    async def work(_session: Any, connection: Any) -> None:
        await connection.execute(text("UPDATE runs SET status = 'half' WHERE id = 1"))
        for _ in range(4):
            await asyncio.to_thread(cut, runs, 0.0)
        freed.append(await may_write(runs))

    monkeypatch.setattr(transactions.PostgresqlTransactions, "end_stalled", only_at_third)
    with pytest.raises(TransactionTimeout) as caught:
        await run_in(runs.session_factory, work)
    assert asked == ([] if runs.dialect_name == "sqlite" else [False, False, True]), (
        "and no more once it has ended"
    )
    assert freed == [True]
    assert (caught.value.was_aborted, caught.value.was_rolled_back) == (True, True)
    assert await status_of(runs) == "queued"


async def test_one_that_was_whole_is_not_known_to_be_undone(runs: TemporaryDatabase) -> None:
    """An outcome whose COMMIT may have gone through would be written again, though it is there."""

    def cut_at_commit(_connection: Any) -> None:
        thread = threading.Thread(target=cut, args=(runs, 0.0))
        thread.start()
        thread.join()

    async def work(_session: Any, connection: Any) -> None:
        await connection.execute(text("UPDATE runs SET status = 'whole' WHERE id = 1"))

    event.listen(runs.engine.sync_engine, "commit", cut_at_commit, once=True)
    with pytest.raises(TransactionTimeout) as caught:
        await run_in(runs.session_factory, work)
    assert (caught.value.was_aborted, caught.value.was_rolled_back) == (True, False)
    assert await may_write(runs)


async def test_its_connection_serves_nobody_else(runs: TemporaryDatabase) -> None:
    """A COMMIT that went nowhere would pass for one, and the host's next statement would fail on
    a connection that is closed.
    """

    async def work(_session: Any, connection: Any) -> None:
        await asyncio.to_thread(cut, runs, 0.0)

    with pytest.raises(TransactionTimeout):
        await run_in(runs.session_factory, work)
    assert await status_of(runs) == "queued"


async def test_a_young_one_is_left_alone(runs: TemporaryDatabase) -> None:
    """A transaction that takes its time would be cut though it is within its bound."""

    async def work(_session: Any, connection: Any) -> None:
        await connection.execute(text("UPDATE runs SET status = 'whole' WHERE id = 1"))
        await asyncio.to_thread(cut, runs, 60.0)

    await run_in(runs.session_factory, work)
    assert await status_of(runs) == "whole"


async def test_one_of_another_loop_is_left_alone(runs: TemporaryDatabase) -> None:
    """One manager's loop that stands still would cost the transactions of every other one in the
    process.
    """

    async def work(_session: Any, connection: Any) -> None:
        await connection.execute(text("UPDATE runs SET status = 'whole' WHERE id = 1"))
        await asyncio.to_thread(lambda: cut(runs, 0.0, thread=threading.get_ident()))

    await run_in(runs.session_factory, work)
    assert await status_of(runs) == "whole"


async def test_one_that_only_reads_is_left_alone(runs: TemporaryDatabase) -> None:
    """A read, which locks nobody out, would be cut."""

    async def work(_session: Any, connection: Any) -> Any:
        await asyncio.to_thread(cut, runs, 0.0)
        return await connection.scalar(text("SELECT status FROM runs"))

    assert await run_in(runs.session_factory, work, writes=False) == "queued"


async def test_one_that_has_ended_is_left_alone(runs: TemporaryDatabase) -> None:
    """A connection would be closed that serves somebody else by now."""

    async def work(_session: Any, connection: Any) -> None:
        pass

    await run_in(runs.session_factory, work)
    await asyncio.to_thread(cut, runs, 0.0)
    assert runs.engine.sync_engine.pool.checkedin() == 1  # type: ignore[attr-defined]
    assert await status_of(runs) == "queued"
    assert not stalled_transactions._open, "each transaction would be kept for ever"


async def test_one_that_is_out_of_time_frees_the_file_at_once(runs: TemporaryDatabase) -> None:
    """A statement that takes too long would keep the file locked for as long as it lasts, and
    then until garbage is collected.
    """

    async def work(_session: Any, connection: Any) -> None:
        await connection.execute(text("UPDATE runs SET status = 'half' WHERE id = 1 RETURNING id"))
        await connection.execute(text(ENDLESS))

    gc.disable()
    try:
        with pytest.raises(TransactionTimeout):
            await run_in(runs.session_factory, work, timeout=timedelta(seconds=0.3))
        assert await may_write(runs)
    finally:
        gc.enable()
    assert await status_of(runs) == "queued"


async def test_what_ends_one_that_is_out_of_time_is_waited_for(
    sqlite_database: TemporaryDatabase, monkeypatch: Any
) -> None:
    """Its caller would go on while the file is still locked, and meet its own lock."""
    await sqlite_database.create_tables(Base.metadata)
    given: list[stalled_transactions.CancelPlan] = []
    plan_cancel = stalled_transactions.OpenTransaction.plan_cancel

    def noted(
        self: stalled_transactions.OpenTransaction, task: asyncio.Task[Any]
    ) -> stalled_transactions.CancelPlan:
        given.append(plan_cancel(self, task))
        return given[-1]

    async def work(_session: Any, connection: Any) -> None:
        await connection.execute(text(ENDLESS))

    monkeypatch.setattr(stalled_transactions.OpenTransaction, "plan_cancel", noted)
    with pytest.raises(TransactionTimeout):
        await run_in(sqlite_database.session_factory, work, timeout=timedelta(seconds=0.3))
    [given_up] = given
    assert given_up.message == stalled_transactions.OUT_OF_TIME
    assert given_up.ending is not None
    assert given_up.ending.done()
    assert given_up.ending.result()


async def test_the_thread_of_one_that_is_out_of_time_is_stopped_once(
    sqlite_database: TemporaryDatabase,
) -> None:
    """Whoever came second to stop it, as SQLAlchemy does after a cancelled `close`, would wait
    for an ended thread for ever.
    """
    await sqlite_database.create_tables(Base.metadata)
    drivers: list[Any] = []
    stops: list[Any] = []

    async def work(_session: Any, connection: Any) -> None:
        driver = (await connection.get_raw_connection()).driver_connection
        drivers.append(driver)
        stop = driver.stop

        def stop_and_count() -> Any:
            stops.append(stop())
            return stops[-1]

        driver.stop = stop_and_count
        await connection.execute(text(ENDLESS))

    with pytest.raises(TransactionTimeout):
        await run_in(sqlite_database.session_factory, work, timeout=timedelta(seconds=0.3))
    ends = [drivers[0].stop(), drivers[0].stop()]
    assert len(stops) == 1
    await asyncio.wait_for(ends[1], HANG_S_MAX)


async def test_a_timeout_that_comes_late_is_the_loops(
    database: TemporaryDatabase, monkeypatch: Any
) -> None:
    """After a block of the loop every transaction under way would be given up, though the
    database has long answered.
    """
    await database.create_tables(Base.metadata)
    loop = asyncio.get_running_loop()
    ahead = 0.0
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + ahead)

    async def work(_session: Any, connection: Any) -> str:
        nonlocal ahead
        ahead = 100.0
        for _ in range(3):
            await connection.execute(text("SELECT 1"))
        return "answered"

    assert await run_in(database.session_factory, work, timeout=timedelta(seconds=20)) == "answered"


async def test_one_that_was_cut_is_not_given_up_again(
    runs: TemporaryDatabase, monkeypatch: Any
) -> None:
    """Its connection, which is closed or about to be, would be rolled back and retired a second
    time, perhaps while it closes.
    """
    monkeypatch.setattr(stalled_transactions, "_is_within", lambda _task, _driver: True)
    given_up: list[Any] = []

    async def work(_session: Any, _connection: Any) -> None:
        [own] = stalled_transactions._open
        await asyncio.to_thread(cut, runs, 0.0)
        task = asyncio.current_task()
        assert task is not None
        given_up.append(own.plan_cancel(task))

    with pytest.raises(TransactionTimeout):
        await run_in(runs.session_factory, work)
    assert given_up == [stalled_transactions.CancelPlan()]
