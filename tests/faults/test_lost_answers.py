"""COMMITs whose answer is lost, committed or not: every outcome is settled by asking for it."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from rowlock import Apply, Park, Reset, Retry, events
from rowlock.database import batcher as retries
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline, heard_events
from ..pipelines.scenes import add, counted, is_outcome, read_all


@contextmanager
def lost_answers(
    database: TemporaryDatabase, *, committed: bool, times: int
) -> Iterator[list[str]]:
    """Lose the answers to the next COMMITs of outcomes; the list tells of each that was lost."""
    lost: list[str] = []
    writes: set[int] = set()

    def on_execute(connection: Connection, *arguments: Any) -> None:
        is_comparison = re.match(r"SELECT (\w+)\.id, \1\.\w+ \nFROM ", arguments[1])
        if is_comparison or is_outcome(arguments[1]):
            writes.add(id(connection))

    def on_commit(connection: Connection) -> None:
        if id(connection) not in writes or len(lost) >= times:
            return
        writes.discard(id(connection))
        lost.append("committed" if committed else "rolled back")
        if committed:
            driver: Any = connection.connection.dbapi_connection
            driver.commit()
        # What SQLAlchemy makes of a connection that was cut.
        cut = ConnectionResetError("the answer to COMMIT was lost")
        raise DBAPIError("COMMIT", {}, cut, connection_invalidated=True)

    listeners = (("before_cursor_execute", on_execute), ("commit", on_commit))
    for name, listener in listeners:
        event.listen(database.engine.sync_engine, name, listener)
    try:
        yield lost
    finally:
        for name, listener in listeners:
            event.remove(database.engine.sync_engine, name, listener)


committed_or_not = pytest.mark.parametrize(
    "committed", [True, False], ids=["committed", "not committed"]
)
OUTCOMES: list[tuple[str, Any, dict[str, Any]]] = [
    (
        "Apply",
        Apply({"status": "done", "result": [1]}),
        {"status": "done", "attempts": 0, "result": [1]},
    ),
    ("Retry", Retry(error="no"), {"status": "queued", "attempts": 1, "last_error": "no"}),
    ("Retry", Retry(error="no", values={"result": [2]}), {"attempts": 1, "result": [2]}),
    (
        "Retry",
        ValueError("no"),
        {"status": "queued", "attempts": 1, "last_error": "ValueError: no"},
    ),
    ("Reset", Reset(), {"status": "queued", "attempts": 0, "lock_owner": "RunPipeline"}),
    ("Park", Park("enough"), {"status": "queued", "last_error": "enough"}),
]


@committed_or_not
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    ("name", "answer", "expected"), OUTCOMES, ids=[f"{i}-{o[0]}" for i, o in enumerate(OUTCOMES)]
)
async def test_every_outcome_is_applied_once(
    database: TemporaryDatabase,
    name: str,
    answer: Any,
    expected: dict[str, Any],
    committed: bool,
    times: int,
) -> None:
    """An outcome would be reported stale though it is in the row, or be counted and written a
    second time.
    """
    await add(database, Run(id=1))
    pipeline = RunPipeline(answer=answer)
    with heard_events() as heard, lost_answers(database, committed=committed, times=times) as lost:
        async with stepping(database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            await steps.work_once()
            assert counted(steps)["stale"] == 0
    assert 1 <= len(lost) <= times if committed else len(lost) == times
    assert [told.outcome for told in heard.of(events.ItemApplied)] == [name]
    assert (heard.of(events.ItemStale), pipeline.stale) == ([], [])
    [row] = await read_all(database, Run)
    assert {column: getattr(row, column) for column in expected} == expected
    assert (row.lock_token, row.lock_expires_at) == (None, None)


@pytest.mark.parametrize("way", ["together", "also"])
@pytest.mark.parametrize(
    "error",
    [
        IntegrityError("INSERT INTO audit", {}, sqlite3.IntegrityError("UNIQUE")),
        RuntimeError("no audit"),
    ],
    ids=["the database's", "its own"],
)
async def test_what_fails_behind_the_commit_says_nothing_of_the_outcome(
    database: TemporaryDatabase, error: Exception, way: str
) -> None:
    """A host's listener that fails once all is committed would have every outcome told stale,
    and cleaned up after.
    """

    async def also(_session: Any, _now: Any) -> None: ...

    await add(database, *(Run(id=number) for number in range(4)))
    failed: list[Exception] = []
    wrote: set[int] = set()

    def fail(session: Session) -> None:
        if session.info.pop("wrote", False) and len(failed) < 3:
            failed.append(error)
            raise error

    def on_execute(connection: Connection, *arguments: Any) -> None:
        if is_outcome(arguments[1]):
            wrote.add(id(connection))

    def before(session: Session) -> None:
        connection = session.connection()
        session.info["wrote"] = id(connection) in wrote
        wrote.discard(id(connection))

    pipeline = RunPipeline(
        answer=Apply({"status": "done"}, also=also if way == "also" else None), workers_num=4
    )
    listeners = (
        (database.engine.sync_engine, "before_cursor_execute", on_execute),
        (Session, "before_commit", before),
        (Session, "after_commit", fail),
    )
    for target, name, listener in listeners:
        event.listen(target, name, listener)
    try:
        with heard_events() as heard:
            async with stepping(database.session_factory, pipeline) as steps:
                items = await steps.fetch_once()
                await asyncio.gather(
                    *(
                        worker.work(item)
                        for worker, item in zip(steps.run.workers, items, strict=True)
                    )
                )
                await steps.run.settler.wait_until_idle()
    finally:
        for target, name, listener in listeners:
            event.remove(target, name, listener)
    assert failed
    assert (heard.of(events.ItemStale), heard.of(events.ItemFailed), pipeline.stale) == ([], [], [])
    assert sorted(told.row_id for told in heard.of(events.ItemApplied)) == [0, 1, 2, 3]
    assert {row.status for row in await read_all(database, Run)} == {"done"}


@committed_or_not
async def test_every_outcome_of_a_batch_is_applied_once(
    database: TemporaryDatabase, committed: bool
) -> None:
    """One lost answer would make all outcomes of the batch stale, or apply some of them twice."""
    kinds = [outcome for _, outcome, _ in OUTCOMES]
    await add(database, *(Run(id=number) for number in range(len(kinds))))
    pipeline = RunPipeline(answer=lambda item: kinds[item.id], workers_num=len(kinds))
    with heard_events() as heard, lost_answers(database, committed=committed, times=1) as lost:
        async with stepping(database.session_factory, pipeline) as steps:
            items = await steps.fetch_once()
            for _ in items:
                steps.run.context.queue.get()
            workers = steps.run.workers
            await asyncio.gather(
                *(worker.work(item) for worker, item in zip(workers, items, strict=True))
            )
            await steps.run.settler.wait_until_idle()
            assert (counted(steps)["stale"], steps.run.statistics().tracked) == (0, 0)
    assert len(lost) == 1
    assert sorted(told.row_id for told in heard.of(events.ItemApplied)) == list(range(len(kinds)))
    rows = {row.id: row for row in await read_all(database, Run)}
    for number, (_, _, expected) in enumerate(OUTCOMES):
        assert {column: getattr(rows[number], column) for column in expected} == expected


@committed_or_not
@pytest.mark.parametrize("way", ["together", "also", "guarded"])
async def test_a_row_whose_stamp_is_ahead_of_the_clock_is_settled(
    database_with_clock: TemporaryDatabase, committed: bool, way: str
) -> None:
    """After a failover, which loses an answer and sets the clock back, what was applied would be
    taken for stale.
    """
    database, ran = database_with_clock, []

    async def also(session: Any, now: Any) -> None:
        ran.append(now)

    answers = {
        "together": Apply({"status": "done"}),
        "also": Apply({"status": "done"}, also=also),
        "guarded": Apply({"status": "done"}, unless_changed=["result"]),
    }
    ahead = database.clock.now + timedelta(seconds=30)
    await add(database, *(Run(id=number, last_processed_at=ahead) for number in (1, 2)))
    pipeline = RunPipeline(answer=answers[way])
    with lost_answers(database, committed=committed, times=1) as lost:
        async with stepping(database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            await steps.work_all()
            assert (counted(steps)["applied"], counted(steps)["stale"]) == (2, 0)
    assert (len(lost), pipeline.stale) == (1, [])
    assert all(
        row.status == "done" and row.last_processed_at > ahead
        for row in await read_all(database, Run)
    )


@pytest.mark.parametrize("way", ["together", "also"])
async def test_a_stamp_ahead_of_the_clock_is_that_of_one_attempt(
    database_with_clock: TemporaryDatabase, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt whose write was lost would take the next one's for its own, and be told that it
    was applied.
    """
    database = database_with_clock

    async def also(session: Any, now: Any) -> None: ...

    async def work_elsewhere(_delay_s: float) -> None:
        monkeypatch.undo()
        database.clock.advance(60)
        async with stepping(
            database.session_factory, RunPipeline(answer=Apply({"status": "second"}))
        ) as others:
            await others.fetch_once()
            await others.work_once()
            assert counted(others)["applied"] == 1

    monkeypatch.setattr(retries, "sleep", work_elsewhere)
    ahead = database.clock.now + timedelta(minutes=30)
    await add(database, Run(id=1, last_processed_at=ahead))
    pipeline = RunPipeline(answer=Apply({"status": "first"}, also=also if way == "also" else None))
    with lost_answers(database, committed=False, times=1 if way == "also" else 2) as lost:
        async with stepping(database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            await steps.work_once()
            assert (counted(steps)["applied"], counted(steps)["stale"]) == (0, 1)
    assert len(lost) == (1 if way == "also" else 2)
    # By chance the second's stamp is the later one: then the second may have gone on from the
    # first, for all that can be known.
    assert [outcome.values for _, outcome in pipeline.stale] in ([], [{"status": "first"}])
    [row] = await read_all(database, Run)
    assert row.status == "second"
    assert row.last_processed_at > ahead
