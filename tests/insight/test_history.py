"""The history: what becomes of each row is written behind the commits, bounded, and told where it
is not.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import MetaData, event, insert, select

from rowlock import Apply, Park, PipelineManager, Reset, Retry, events
from rowlock.insight import Observer, insight_tables, replica_mark
from rowlock.insight import recorder as history_module
from rowlock.insight import recorder as recorder_module
from rowlock.insight.recorder import (
    TRACE_IDS,
    EntryKind,
    HistoryRecorder,
    NotedEvent,
    delete_old,
    entry_of,
    stored_key,
)
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Run, RunPipeline, VolumePipeline, heard_events
from ..pipelines.scenes import add, until

pytestmark = pytest.mark.either_database(
    but=[
        "test_each_outcome_has_an_entry",
        "test_a_commit_whose_answer_is_lost_is_not_written_twice",
        "test_entries_are_kept_for_a_week",
        "test_so_many_entries_are_kept",
    ]
)

TABLES = insight_tables(MetaData(), history=True)
NOW = datetime(2026, 11, 22, 3, 14, 5, tzinfo=UTC)
assert TABLES.history is not None
HISTORY = TABLES.history
SECRET = "do-not-tell"


async def make_tables(*databases: TemporaryDatabase) -> None:
    for database in databases:
        await database.create_tables(HISTORY.metadata)


async def history_of(database: TemporaryDatabase) -> list[Any]:
    async with database.engine.connect() as connection:
        return list((await connection.execute(select(HISTORY).order_by(HISTORY.c.id))).all())


def applied(row_id: object, pipeline: str = "RunPipeline", **how: Any) -> events.ItemApplied:
    return events.ItemApplied(pipeline, row_id, object(), "Apply", **how)


def recorder_of(database: TemporaryDatabase, *pipelines: Any) -> HistoryRecorder:
    """Return one that writes when it is told to, for a manager that does not run."""
    manager = PipelineManager(database.session_factory, pipelines or [RunPipeline()])
    return HistoryRecorder([manager], HISTORY)


def answer(item: Any) -> Any:
    outcomes = {
        1: Apply({"status": "done", "result": SECRET}),
        2: Retry(error="no\ndisk", after=3600),
        3: Park("no such cloud"),
        4: Reset(),
        5: ValueError("refused\x00"),
    }
    return outcomes[item.id]


async def test_each_outcome_has_an_entry(database: TemporaryDatabase) -> None:
    """Nobody could say what happened to a row; or the history would tell secrets."""
    await make_tables(database)
    await add(database, *(Run(id=number) for number in range(1, 6)))
    pipeline = RunPipeline(answer=answer, retry_delay=300)
    with heard_events() as heard:
        async with (
            Observer(
                manager := PipelineManager(database.session_factory, [pipeline]), tables=TABLES
            ),
            manager,
        ):
            await heard.wait_for(events.ItemApplied, count=5)
    found = {entry.row_id: entry for entry in await history_of(database)}
    assert {number: entry.kind for number, entry in found.items()} == {
        "1": "applied",
        "2": "retried",
        "3": "parked",
        "4": "reset",
        "5": "retried",
    }
    assert {(entry.model, entry.pipeline, entry.replica) for entry in found.values()} == {
        ("Run", "RunPipeline", replica_mark())
    }
    assert [found[number].error for number in "12345"] == [
        None,
        r"no\x0adisk",
        "no such cloud",
        None,
        "ValueError: refused�",
    ]
    one = found["1"]
    assert (one.columns, one.attempt) == ("status, result", 1)
    assert one.took_s >= 0
    assert one.waited_s >= 0
    assert not any(SECRET in str(value) for value in one)


def test_each_kind_has_its_event() -> None:
    """A release would be told as an outcome, or a crash not at all."""
    token = object()
    begun: dict[str, Any] = {"attempt": 3, "waited_s": 1.5}
    named = {
        EntryKind.APPLIED: events.ItemApplied("P", 1, token, "Delete", **begun),
        EntryKind.RETRIED: events.ItemApplied("P", 1, token, "Retry", **begun),
        EntryKind.RESET: events.ItemApplied("P", 1, token, "Reset", **begun),
        EntryKind.PARKED: events.ItemApplied("P", 1, token, "Park", **begun),
        EntryKind.STALE: events.ItemStale("P", 1, token, "lost", **begun),
        EntryKind.CHANGED: events.ItemStale("P", 1, token, "changed", **begun),
        EntryKind.RELEASED: events.ItemReleased("P", 1, token, **begun),
        EntryKind.LOST: events.LeaseExpired("P", 1, token, **begun),
        EntryKind.ABANDONED: events.ItemAbandoned("P", 1, token, **begun),
        EntryKind.RECOVERED: events.ItemRecovered("P", 1, token, **begun),
    }
    for kind, told in named.items():
        noted = NotedEvent(10.0, told, "a" * 32)
        entry = entry_of(noted, "Row", replica="3fa2c1d0", now=NOW, now_s=12.0)
        assert (entry.kind, entry.at) == (kind.value, NOW - timedelta(seconds=2))
        assert (entry.attempt, entry.waited_s, entry.trace_id) == (3, 1.5, "a" * 32)
    assert {*named, EntryKind.ACTION, EntryKind.GAP} == {*EntryKind}


async def test_a_row_of_the_dead_is_told_of_when_its_next_attempt_begins(
    database: TemporaryDatabase,
) -> None:
    """Nobody would see in the row's past that a replica has died over it."""
    await make_tables(database)
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    await add(
        database,
        Run(id=1, lock_token=uuid4(), lock_owner="RunPipeline", lock_expires_at=long_ago),
        Run(id=2),
    )
    manager = PipelineManager(database.session_factory, [RunPipeline()])
    with heard_events() as heard:
        async with Observer(manager, tables=TABLES), manager:
            await heard.wait_for(events.ItemApplied, count=2)
    found = [
        (entry.row_id, entry.kind, entry.attempt, entry.waited_s is None)
        for entry in await history_of(database)
    ]
    assert sorted(found) == [
        ("1", "applied", 2, False),
        ("1", "recovered", 2, False),
        ("2", "applied", 1, False),
    ]


def test_keys_of_any_text_are_told_apart() -> None:
    """The timeline of one row would show what happened to another one, or a key would be refused
    by the database.
    """
    keys = ["17", "a b", "x" * 255, "x" * 256, "x" * 257, "a\x00", "a\\x00", "a\ud800", "é" * 300]
    stored = [stored_key(key) for key in keys]
    assert stored[:3] == keys[:3]
    assert len({*stored}) == len(keys)
    assert all(len(one) <= 255 and one.isprintable() for one in stored)


async def test_what_finds_no_room_is_counted(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A history would have a hole, and look whole; or an outage would fill the memory."""
    monkeypatch.setattr(history_module, "QUEUED_MAX", 10)
    monkeypatch.setattr(history_module, "BATCH_MAX", 4)
    recorder = recorder_of(database)
    recorder.start()
    try:
        for number in range(25):
            events.emit(applied(number))
        await recorder.write()
        assert recorder.dropped == 15
        for number in range(25, 30):
            events.emit(applied(number))
        await make_tables(database)
        await recorder.write()
    finally:
        await recorder.stop()
    entries = await history_of(database)
    # A batch is in hand, 15 to 18; behind it the oldest one that waits has made room.
    expected = ["gap 15", *map(str, range(15, 19)), "gap 1", *map(str, range(20, 30))]
    assert [entry.row_id or f"gap {entry.dropped}" for entry in entries] == expected
    assert {entry.model for entry in entries if entry.kind == "gap"} == {""}


async def test_a_commit_whose_answer_is_lost_is_not_written_twice(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row would seem to have been applied twice."""
    await make_tables(database)
    recorder = recorder_of(database)
    recorder.start()
    try:
        events.emit(applied(1))
        events.emit(applied(2))
        [writer] = recorder._writers.values()
        told = writer.queue.confirm
        monkeypatch.setattr(history_module.HistoryQueue, "confirm", _lose_answer)
        assert not await writer.write()
        monkeypatch.setattr(history_module.HistoryQueue, "confirm", told.__func__)
        assert await writer.write()
    finally:
        await recorder.stop()
    assert [entry.row_id for entry in await history_of(database)] == ["1", "2"]


def _lose_answer(_queue: object) -> None:
    raise ConnectionResetError("the answer was lost")


async def test_entries_are_kept_for_a_week(
    database_with_clock: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table would grow for ever, or yesterday would be gone."""
    monkeypatch.setattr(recorder_module, "CLOCK_KEPT_S", 0)
    database = database_with_clock
    assert database.clock is not None
    await make_tables(database)
    recorder = recorder_of(database)
    recorder.start()
    events.emit(applied(1))
    await recorder.write()
    database.clock.advance(6.9 * 86400)
    events.emit(applied(2))
    await recorder.write()
    assert await deleted(database) == 0
    database.clock.advance(0.2 * 86400)
    assert await deleted(database) == 1
    await recorder.stop()
    assert [entry.row_id for entry in await history_of(database)] == ["2"]


async def deleted(database: TemporaryDatabase) -> int:
    async with database.engine.begin() as connection:
        return await delete_old(connection, HISTORY)


async def test_so_many_entries_are_kept(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst would fill the disk; or its deletion would lock everything for minutes."""
    monkeypatch.setattr(history_module, "KEPT_MAX", 30)
    monkeypatch.setattr(history_module, "DELETED_AT_ONCE_MAX", 25)
    await make_tables(database)
    row = {
        "at": history_module.database_instant(),
        "model": "Run",
        "pipeline": "P",
        "kind": "applied",
    }
    async with database.engine.begin() as connection:
        for number in range(70):
            await connection.execute(insert(HISTORY).values(row | {"row_id": str(number)}))
    assert [await deleted(database) for _ in range(3)] == [25, 15, 0]
    assert [entry.row_id for entry in await history_of(database)] == [
        str(number) for number in range(40, 70)
    ]


async def test_one_replica_deletes_at_a_time(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred replicas would wait for each other's deletions."""
    monkeypatch.setattr(history_module, "KEPT_MAX", 0)
    database = postgresql_database
    await make_tables(database)
    recorder = recorder_of(database)
    recorder.start()
    events.emit(applied(1))
    await recorder.stop()
    async with database.engine.begin() as connection:
        assert await delete_old(connection, HISTORY) == 1
        assert await deleted(database) == 0


async def test_each_database_has_its_own_history(
    sqlite_database: TemporaryDatabase, postgresql_database: TemporaryDatabase
) -> None:
    """Entries would be written where nobody looks for them; or one database's outage would cost
    the history of the other one.
    """
    await make_tables(postgresql_database)
    one = PipelineManager(sqlite_database.session_factory, [RunPipeline()])
    other = PipelineManager(postgresql_database.session_factory, [VolumePipeline()])
    recorder = HistoryRecorder([one, other], HISTORY)
    recorder.start()
    events.emit(applied(1))
    events.emit(applied(2, "VolumePipeline"))
    events.emit(applied(3, "SomebodyElse"))
    await recorder.write()
    await make_tables(sqlite_database)
    await recorder.stop()
    for database, model, row_id in (
        (sqlite_database, "Run", "1"),
        (postgresql_database, "Volume", "2"),
    ):
        [entry] = await history_of(database)
        assert (entry.model, entry.row_id) == (model, row_id)


async def test_pipelines_of_one_name_are_not_mixed_up(
    sqlite_database: TemporaryDatabase,
    postgresql_database: TemporaryDatabase,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A row would have the history of another database's."""
    await make_tables(sqlite_database, postgresql_database)
    managers = [
        PipelineManager(database.session_factory, [RunPipeline()])
        for database in (sqlite_database, postgresql_database)
    ]
    recorder = HistoryRecorder(managers, HISTORY)
    recorder.start()
    events.emit(applied(1))
    events.emit(applied(2))
    await recorder.stop()
    assert await history_of(sqlite_database) == await history_of(postgresql_database) == []
    [line] = [one for one in caplog.records if "no history of RunPipeline" in one.getMessage()]
    assert line.levelname == "WARNING"


async def test_a_history_at_rest_asks_nothing(database: TemporaryDatabase) -> None:
    """A hundred replicas that do nothing would keep a database busy."""
    await make_tables(database)
    statements_sent: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements_sent.append(statement)

    recorder = recorder_of(database)
    recorder.start()
    event.listen(database.engine.sync_engine, "before_cursor_execute", note)
    for _ in range(20):
        await recorder.write()
    await recorder.stop()
    event.remove(database.engine.sync_engine, "before_cursor_execute", note)
    assert statements_sent == []


async def test_a_manager_that_drains_is_still_heard(database: TemporaryDatabase) -> None:
    """What was under way at a shutdown would be missing."""
    await make_tables(database)
    await add(database, Run(id=1))
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def work(item: Any) -> Apply:
        begun.set()
        await may_end.wait()
        return Apply({"status": "done"})

    manager = PipelineManager(database.session_factory, [RunPipeline(answer=work)])
    async with Observer(manager, tables=TABLES), manager:
        await begun.wait()
        manager.shutdown()
        may_end.set()
    assert [entry.kind for entry in await history_of(database)] == ["applied"]


async def test_one_history_that_ends_leaves_the_spans_of_others(
    sqlite_database: TemporaryDatabase,
) -> None:
    """Two managers of a process have an observer each; when the first one stopped, entries of the
    second would name no trace any more.
    """
    first, second = recorder_of(sqlite_database), recorder_of(sqlite_database)
    first.start()
    second.start()
    try:
        await first.stop()
        await first.stop()
        TRACE_IDS.remember("token", "a" * 32)
        assert TRACE_IDS.get("token") == "a" * 32
    finally:
        await second.stop()
    # Of nobody who asks for them they would stay for as long as the process.
    assert TRACE_IDS.get("token") is None
    TRACE_IDS.remember("token", "a" * 32)
    assert TRACE_IDS.get("token") is None


@virtual_time
async def test_an_observer_that_is_entered_again_writes(
    virtual_database: TemporaryDatabase,
) -> None:
    """A history that was turned off and on would be empty until the process ends."""
    await make_tables(virtual_database)
    manager = PipelineManager(virtual_database.session_factory, [RunPipeline()])
    observer = Observer(manager, tables=TABLES)
    recorder = observer.history
    assert recorder is not None
    for row_id in (1, 2):
        async with observer:
            events.emit(applied(row_id))
            await until(lambda: not recorder.waiting)
    async with observer:
        (writer,) = recorder._writers.values()
        writer.queue.drop(3)
    async with observer:
        assert recorder.dropped == 3
    written = [(entry.row_id, entry.kind) for entry in await history_of(virtual_database)]
    assert written == [("1", "applied"), ("2", "applied"), ("", "gap")]
