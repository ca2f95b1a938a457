"""Polls: which of several orders would find a row, asked in one statement that leases nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, bindparam, event
from sqlalchemy.dialects import postgresql

from rowlock import database_now
from rowlock.leases.claim_request import ClaimRequest
from rowlock.leases.poll import poll, poll_of
from rowlock.rows.database_time import database_time_after
from rowlock.rows.eligibility import eligible
from rowlock.rows.expressions.parameter_names import with_names_of_its_own
from rowlock.testing import TemporaryDatabase

from ..host import Run, Volume
from .ground import INTERVAL, RUNS, TIMEOUT, VOLUMES, add, claimed, order_for, row_of

LATER, EARLIER = timedelta(minutes=1), -timedelta(minutes=1)


async def polled(database: TemporaryDatabase, *requests: ClaimRequest) -> frozenset[int]:
    """Poll for `requests`."""
    return await poll(database.session_factory, requests, poll_of(requests), timeout=TIMEOUT)


async def test_a_poll_tells_which_order_finds_a_row(database: TemporaryDatabase) -> None:
    """A pipeline would fetch in vain, or rest although there is work."""
    await add(database, Volume(), Run(status="done"))
    requests = [order_for(RUNS), order_for(VOLUMES), order_for(RUNS, "Another"), order_for(VOLUMES, "Another")]
    assert await polled(database, *requests) == {1, 3}


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"status": "active"},
        {"lock_token": uuid4(), "lock_owner": "Me", "lock_expires_at": database_time_after(LATER)},
        {"lock_token": uuid4(), "lock_owner": "Me", "lock_expires_at": database_time_after(EARLIER)},
        {"lock_token": uuid4(), "lock_owner": "Another", "lock_expires_at": database_time_after(EARLIER)},
        {"lock_owner": "Me", "last_processed_at": database_now()},
        {"lock_owner": "Another", "last_processed_at": database_now()},
        {"last_processed_at": database_now()},
        {"last_processed_at": database_time_after(EARLIER)},
    ],
)
async def test_a_poll_finds_what_a_claim_would(database: TemporaryDatabase, columns: dict[str, object]) -> None:
    """A row that a claim would lease would wait for ever, or one that it would not be asked for again and again."""
    await add(database, Volume(**columns))
    found = await polled(database, order_for(RUNS), order_for(VOLUMES))
    assert found == ({1} if await claimed(database) else set())


async def test_a_poll_of_rows_with_a_schedule_finds_what_is_due(database: TemporaryDatabase) -> None:
    """Rows that rest or are parked would be asked for again and again."""
    await add(database, Run(due_at=database_time_after(LATER)), Run(parked_at=database_now()))
    assert await polled(database, order_for(RUNS)) == set()
    await add(database, Run())
    assert await polled(database, order_for(RUNS)) == {0}


async def test_a_poll_leases_nothing(database: TemporaryDatabase) -> None:
    """Rows would be leased to nobody."""
    volume = Volume()
    await add(database, volume)
    await polled(database, order_for(VOLUMES))
    row = await row_of(database, VOLUMES, volume.id)
    assert (row.lock_token, row.lock_owner, row.lock_expires_at) == (None, None, None)
    assert len(await claimed(database)) == 1


async def test_a_poll_waits_for_no_writer(sqlite_database: TemporaryDatabase) -> None:
    """Idle replicas would keep SQLite's one write lock from those at work, and wait for it."""
    database = sqlite_database
    await add(database, Volume())
    await claimed(database)
    async with database.engine.connect() as writer:
        await writer.exec_driver_sql("BEGIN IMMEDIATE")
        assert await polled(database, order_for(VOLUMES)) == set()
        await writer.rollback()


async def test_a_poll_is_one_round_trip(postgresql_database: TemporaryDatabase) -> None:
    """It is sent by every idle process, for as long as nothing happens."""
    database, levels = postgresql_database, []
    await add(database, Volume())

    def note(connection: Connection, *_: object) -> None:
        levels.append(connection.get_execution_options().get("isolation_level"))

    event.listen(database.engine.sync_engine, "before_cursor_execute", note)
    assert await polled(database, order_for(VOLUMES), order_for(RUNS)) == {0}
    assert levels == ["AUTOCOMMIT"]


def test_the_plan_is_that_of_the_claim() -> None:
    """PostgreSQL drops the order of an EXISTS, and would walk a whole table to find nothing."""
    statement = poll_of([order_for(VOLUMES), order_for(RUNS)]).compile(dialect=postgresql.dialect())
    assert str(statement).count("ORDER BY") == str(statement).count("LIMIT") == 2


async def test_orders_with_parameters_of_one_name_find_their_own_rows(database: TemporaryDatabase) -> None:
    """All pipelines of a group would be asked for with the value of one: the others would never find a row."""
    await add(database, Volume(status="second"))

    def request(status: str) -> ClaimRequest:
        ready = with_names_of_its_own(Volume.status == bindparam("wanted", status))
        condition = eligible(VOLUMES, ready=ready, owner="Me", min_processing_interval=INTERVAL)
        return replace(order_for(VOLUMES), eligible=condition)

    assert await polled(database, *map(request, ("first", "second", "third"))) == {1}
