"""The historian: what is committed is noted, in order, with the database's time, and nothing
else is.
"""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from datetime import timedelta
from pathlib import Path

from sqlalchemy import delete, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock import PipelineManager, Retry, database_now, events
from rowlock.rows.database_time import database_time_after
from rowlock.testing import TemporaryDatabase

from ...host import Attachment, Base, Run, RunPipeline, Volume, VolumePipeline, heard_events
from .checker import check
from .history import (
    HISTORY_QUERY,
    Change,
    RowState,
    changes_from,
    historian_statements,
    install_historian,
    key_text,
    read_history,
)

MODELS = [Volume, Attachment, Run]


async def prepare(database: TemporaryDatabase) -> None:
    await database.create_tables(Base.metadata)
    async with database.engine.begin() as connection:
        await install_historian(connection, MODELS, also={Volume: ["status", "size_gb"]})


async def history(database: TemporaryDatabase) -> list[Change]:
    async with database.session_factory() as session:
        return await read_history(session)


async def test_every_change_of_a_lease_is_noted_with_its_time(
    database_with_clock: TemporaryDatabase,
) -> None:
    """The judge would not see what was done, or see it at another time than the one by which
    leases are judged.
    """
    database, token = database_with_clock, uuid.uuid4()
    clock = database.clock
    assert clock is not None
    await prepare(database)
    async with database.session_factory.begin() as session:
        session.add(Run(id=7))
    clock.advance(5)
    leased = {
        Run.lock_token: token,
        Run.lock_owner: "X",
        Run.lock_expires_at: database_time_after(timedelta(seconds=30)),
    }
    async with database.session_factory.begin() as session:
        await session.execute(update(Run).values(leased))
    clock.advance(5)
    async with database.session_factory.begin() as session:
        freed = dict.fromkeys(leased, None) | {
            Run.last_processed_at: database_now(),
            Run.attempts: 2,
        }
        await session.execute(update(Run).values(freed))
        await session.execute(delete(Run))
    found, taken, freed_, gone = await history(database)
    assert [change.key for change in (found, taken, freed_, gone)] == ["7"] * 4
    assert (found.before, gone.after) == (None, None)
    assert taken.before == found.after
    assert taken.after is not None
    assert (taken.after.lock_token, taken.after.lock_owner) == (token, "X")
    assert taken.after.lock_expires_at == taken.at + timedelta(seconds=30)
    assert [(change.at - found.at).total_seconds() for change in (taken, freed_, gone)] == [
        5,
        10,
        10,
    ]
    assert freed_.after is not None
    assert (freed_.after.last_processed_at, freed_.after.attempts) == (clock.now, 2)
    assert all(change.statement_at == change.at for change in (taken, freed_))
    if database.dialect_name == "postgresql":
        assert (freed_.transaction, freed_.transaction_at) == (gone.transaction, clock.now)
        assert taken.transaction != freed_.transaction


async def test_a_change_says_which_transactions_had_ended(
    postgresql_database: TemporaryDatabase,
) -> None:
    """What is committed late would be taken for what was there all along."""
    await prepare(postgresql_database)
    async with postgresql_database.session_factory.begin() as session:
        session.add_all([Run(id=1), Run(id=2)])

    async def change(session: AsyncSession, key: int, attempts: int) -> None:
        await session.execute(update(Run).where(Run.id == key).values(attempts=attempts))

    async with postgresql_database.session_factory.begin() as late:
        await change(late, 1, 1)
        async with postgresql_database.session_factory.begin() as session:
            await change(session, 2, 1)
    async with postgresql_database.session_factory.begin() as session:
        await change(session, 2, 2)
    *_, first, meanwhile, afterwards = await history(postgresql_database)
    assert not meanwhile.was_noted_after(first.transaction)
    assert afterwards.was_noted_after(first.transaction)


async def test_only_what_was_committed_and_changed_is_noted(database: TemporaryDatabase) -> None:
    """The judge would blame for what never happened."""
    await prepare(database)
    volume = Volume()
    async with database.session_factory.begin() as session:
        session.add(volume)
    async with database.session_factory.begin() as session:
        async with session.begin_nested() as savepoint:
            await session.execute(update(Volume).values(lock_owner="never"))
            await savepoint.rollback()
        await session.execute(
            update(Volume).values(disk_id="unwatched", lock_token=Volume.lock_token)
        )
    async with database.session_factory() as session:
        await session.execute(update(Volume).values(lock_owner="never"))
        await session.rollback()
    async with database.session_factory.begin() as session:
        await session.execute(update(Volume).values(status="active"))
    there, changed = await history(database)
    assert {there.key, changed.key} == {key_text(volume.id)} == {volume.id.hex}
    assert there.after is not None
    assert changed.after is not None
    assert (there.after.values, changed.after.values) == (
        {"status": "submitted", "size_gb": 1},
        {"status": "active", "size_gb": 1},
    )


async def test_rows_that_were_there_before_are_known(database: TemporaryDatabase) -> None:
    """The first change of a row would come from nowhere."""
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add_all([Run(id=1), Run(id=2, lock_owner="X")])
    async with database.engine.begin() as connection:
        await install_historian(connection, [Run])
    changes = await history(database)
    assert [(change.key, change.after.lock_owner) for change in changes if change.after] == [
        ("1", None),
        ("2", "X"),
    ]


async def test_a_row_that_gets_another_key_is_gone(database: TemporaryDatabase) -> None:
    """The history of one row would go on in another."""
    await prepare(database)
    async with database.session_factory.begin() as session:
        session.add(Run(id=1))
        await session.flush()
        await session.execute(
            update(Run).values(id=2), execution_options={"synchronize_session": False}
        )
    changes = [
        (change.key, change.before is None, change.after is None)
        for change in await history(database)
    ]
    assert changes == [("1", True, False), ("1", False, True), ("2", True, False)]


async def test_changes_of_one_row_are_in_the_order_of_their_commits(
    database: TemporaryDatabase,
) -> None:
    """The judge would take who came second for the first."""
    await prepare(database)
    async with database.session_factory.begin() as session:
        session.add(Run(id=1))
    engine = database.create_engine()

    async def come_second() -> None:
        async with engine.begin() as second:
            await second.execute(update(Run).values(attempts=2))

    async with database.engine.begin() as first:
        await first.execute(update(Run).values(attempts=1))
        waiting = asyncio.create_task(come_second())
        await first.execute(update(Run).values(attempts=3))
    await waiting
    changes = await history(database)
    assert [change.after.attempts for change in changes if change.after] == [0, 1, 3, 2]
    assert [change.number for change in changes] == sorted(change.number for change in changes)


async def test_a_plain_sqlite_connection_may_have_a_historian(tmp_path: Path) -> None:
    """A simulation that drives the file by hand would need a historian of its own."""
    file = sqlite3.connect(tmp_path / "plain.db", isolation_level=None)
    file.execute(
        "CREATE TABLE runs (id INTEGER PRIMARY KEY, status TEXT, result TEXT, updated_at TEXT,"
        " lock_token CHAR(32), lock_owner TEXT, lock_expires_at DATETIME, last_processed_at"
        " DATETIME, due_at DATETIME, attempts INTEGER, last_error TEXT, parked_at DATETIME,"
        " deadline_at DATETIME)"
    )
    for statement in historian_statements(sqlite.dialect(), [Run]):
        file.execute(statement)
    file.execute(
        "INSERT INTO runs (id, attempts, due_at) VALUES (1, 0, '2031-05-17 12:00:00.000000')"
    )
    file.execute("DELETE FROM runs")
    there, gone = changes_from(file.execute(HISTORY_QUERY))
    assert there.after == gone.before
    assert there.after is not None
    assert there.after.due_at is not None
    assert there.after.due_at.utcoffset() == timedelta(0)
    file.close()


async def test_a_day_of_the_library_is_found_clean(database: TemporaryDatabase) -> None:
    """The judge would know less of what is legal than the library, and cry wolf."""
    await prepare(database)
    async with database.session_factory.begin() as session:
        session.add_all([*(Volume() for _ in range(5)), *(Run() for _ in range(5))])
    failing = RunPipeline(
        answer=Retry(error="no"), max_attempts=2, retry_delay=0.01, fetch_delays=(0.02,)
    )
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [VolumePipeline(), failing]):
            await heard.wait_for(events.ItemApplied, count=15)
    changes = await history(database)

    def settled(table: str, state: RowState) -> bool:
        return state.values.get("status") == "active"

    assert check(changes, settled=settled, stopped=True, attempts_max=2) == []
    async with database.session_factory() as session:
        assert {run.attempts for run in await session.scalars(select(Run))} == {2}
