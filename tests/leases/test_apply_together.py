"""A batch of outcomes that differ: one statement with arrays where the database has them, and still each row gets its own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.leases.apply import RowWrite, Written, apply_locked, lock_for_apply
from rowlock.rows.assignments import Latest, UnlessChanged
from rowlock.rows.lease_values import unlocked_values
from rowlock.testing import TemporaryDatabase

from ..host import Run, Volume
from ..pipelines.scenes import faults_of
from .ground import RUNS, VOLUMES, add, claimed, row_of, transact

TIME = datetime(2031, 5, 17, tzinfo=UTC)


async def written_together(database: TemporaryDatabase, leased: Any, writes_of: Any) -> list[Any]:
    """Claim all rows, write to each what `writes_of` gives for its number, and return the rows in that order."""
    items = await claimed(database, leased)
    writes = [(item, RowWrite({**writes_of(n), **unlocked_values(leased)})) for n, item in enumerate(items)]

    async def work(connection: AsyncConnection) -> list[Written]:
        await lock_for_apply(connection, leased, items)
        return await apply_locked(connection, leased, writes)

    assert await transact(database, work, leased) == [Written.APPLIED] * len(items)
    return [await row_of(database, leased, item.id) for item in items]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("status", ["a", "it's", "ü"]),
        ("disk_id", ["a", None, "b"]),
        ("size_gb", [1, 2**31 - 1, -3]),
        ("active_at", [TIME, None, TIME + timedelta(microseconds=1000)]),
    ],
)
async def test_each_row_gets_its_own_value(database: TemporaryDatabase, name: str, values: list[Any]) -> None:
    """Values would be swapped between rows, or change on their way through an array."""
    await add(database, *(Volume() for _ in values))
    rows = await written_together(database, VOLUMES, lambda n: {VOLUMES.column(name): values[n]})
    assert [getattr(row, name) for row in rows] == values
    assert {row.lock_token for row in rows} == {None}


async def test_documents_are_written_row_by_row(database: TemporaryDatabase) -> None:
    """What no array holds on every driver would not be written at all."""
    documents = [{"n": 1}, [1, None], "text", None]
    await add(database, *(Run(id=n + 1) for n in range(len(documents))))
    rows = await written_together(database, RUNS, lambda n: {RUNS.column("result"): documents[n]})
    assert [row.result for row in rows] == documents


async def test_times_that_depend_on_the_row_do_so_in_a_batch(database: TemporaryDatabase) -> None:
    """A due time that a service asked for would be lost, or a stamp go back, since others were written with it."""
    later = TIME + timedelta(days=1)
    await add(database, Run(id=1, due_at=TIME - timedelta(days=9000)), Run(id=2, due_at=TIME - timedelta(days=8999)))
    due, last = RUNS.column("due_at"), RUNS.column("last_processed_at")
    as_read = [TIME - timedelta(days=9000), TIME]
    rows = await written_together(
        database,
        RUNS,
        lambda n: {due: UnlessChanged(later, as_read=as_read[n]), last: Latest(TIME + timedelta(hours=n))},
    )
    assert [row.due_at for row in rows] == [later, TIME - timedelta(days=8999)]
    assert [row.last_processed_at for row in rows] == [TIME, TIME + timedelta(hours=1)]


@pytest.mark.parametrize("differ", [False, True])
async def test_one_statement_writes_them_all(postgresql_database: TemporaryDatabase, differ: bool) -> None:
    """A batch would cost the server one execution for each row."""
    await add(postgresql_database, *(Volume() for _ in range(5)))
    with faults_of(postgresql_database.engine) as faults:
        await written_together(
            postgresql_database, VOLUMES, lambda n: {VOLUMES.column("disk_id"): f"disk-{n}" if differ else "disk"}
        )
        updates = [statement for _, statement in faults.sent if statement.startswith("UPDATE volumes SET")]
    assert len(updates) == 1
    assert "unnest" in updates[0]
