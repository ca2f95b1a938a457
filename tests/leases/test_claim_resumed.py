"""Claims that resume behind a position."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert, text

from rowlock.leases.claim import claim
from rowlock.leases.claim_request import Position
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from ..host import Base, Run, Volume
from .ground import LOCK_TIMEOUT, MARGIN, RUNS, TIMEOUT, VOLUMES, add, order_for

LONG_AGO = datetime(2020, 2, 29, 12, 30, 15, 123456, tzinfo=UTC)
FAR_OFF = datetime(2999, 1, 1, tzinfo=UTC)

Facts = tuple[int | None, bool]
"""A row: its place in the order, in seconds since `LONG_AGO` or None; and whether somebody holds
it.
"""


async def claimed_behind(
    database: TemporaryDatabase, leased: LeasedTable, after: Position | None, *, limit: int
) -> tuple[list[Any], Position | None]:
    """Claim rows behind `after`; return their keys and the position that was reached."""
    reached: list[Position] = []
    items = await claim(
        database.session_factory,
        replace(order_for(leased, limit=limit), after=after),
        lease_margin=MARGIN,
        timeout=TIMEOUT,
        reached=reached.append,
    )
    return [item.id for item in items], reached[0] if reached else None


async def chain(database: TemporaryDatabase, leased: LeasedTable, *, limit: int) -> list[list[Any]]:
    """Claim from the head, then behind the last claim each time, until one brings less than was
    asked for.
    """
    batches: list[list[Any]] = []
    after: Position | None = None
    while not batches or len(batches[-1]) == limit:
        keys, reached = await claimed_behind(database, leased, after, limit=limit)
        batches.append(keys)
        after = reached or after
    return batches


async def fill(
    database: TemporaryDatabase, leased: LeasedTable, rows: list[Facts]
) -> dict[Any, Facts]:
    """Leave only these rows in the table; return them by key."""
    by_key: dict[Any, Facts] = {}
    async with database.session_factory.begin() as session:
        await session.execute(delete(leased.table))
        for number, (place, held) in enumerate(rows):
            at = None if place is None else LONG_AGO + timedelta(seconds=place)
            key = number if leased is RUNS else uuid.uuid4()
            values: dict[str, Any] = {
                "id": key,
                ("due_at" if leased is RUNS else "last_processed_at"): at,
            }
            if held:
                values |= {
                    "lock_token": uuid.uuid4(),
                    "lock_owner": "Me",
                    "lock_expires_at": FAR_OFF,
                }
            await session.execute(insert(leased.table).values(values))
            by_key[key] = (place, held)
    return by_key


def in_line(rows: dict[Any, Facts]) -> list[Any]:
    """Return the keys of free rows in the order of claims, told by the reference."""
    free = [key for key, (_, held) in rows.items() if not held]
    return sorted(free, key=lambda key: (rows[key][0] is not None, rows[key][0] or 0, key))


def expected_chain(rows: dict[Any, Facts], *, limit: int) -> list[list[Any]]:
    """Tell the chain by the reference: rows that were never processed are a line of their own
    once a claim ended among them.
    """
    line, batches = in_line(rows), []
    while True:
        batches.append(line[:limit])
        line = line[limit:]
        if len(batches[-1]) < limit:
            return batches
        if rows[batches[-1][-1]][0] is None:
            line = [key for key in line if rows[key][0] is None]


PLACES = st.integers(0, 4)
"""Few, so that many rows share one."""


@pytest.fixture
async def tables(database: TemporaryDatabase) -> TemporaryDatabase:
    await database.create_tables(Base.metadata)
    return database


@given(st.lists(st.tuples(PLACES, st.booleans()), max_size=14), st.integers(1, 4))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_no_row_with_a_schedule_is_skipped_or_comes_twice(
    tables: TemporaryDatabase, rows: list[Facts], limit: int
) -> None:
    """Rows that became due at one time would be passed over, or be walked past again by every
    claim.
    """
    by_key = await fill(tables, RUNS, rows)
    assert await chain(tables, RUNS, limit=limit) == expected_chain(by_key, limit=limit)


@given(st.lists(st.tuples(st.none() | PLACES, st.booleans()), max_size=14), st.integers(1, 4))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_no_row_without_a_schedule_is_skipped_or_comes_twice(
    tables: TemporaryDatabase, rows: list[Facts], limit: int
) -> None:
    """Of the rows that were never processed, which all have the same empty place, some would be
    passed over.
    """
    by_key = await fill(tables, VOLUMES, rows)
    assert await chain(tables, VOLUMES, limit=limit) == expected_chain(by_key, limit=limit)


async def test_rows_that_are_processed_long_ago_are_one_range(tables: TemporaryDatabase) -> None:
    """A claim that ended among processed rows would start at the head, where the new ones are,
    and walk past all that is leased.
    """
    by_key = await fill(
        tables, VOLUMES, [(None, False), (0, False), (0, False), (1, False), (None, False)]
    )
    line = in_line(by_key)
    _, reached = await claimed_behind(tables, VOLUMES, None, limit=3)
    await fill_more(tables, VOLUMES)
    assert (await claimed_behind(tables, VOLUMES, reached, limit=9))[0] == line[3:]


async def fill_more(database: TemporaryDatabase, leased: LeasedTable) -> None:
    async with database.session_factory.begin() as session:
        await session.execute(insert(leased.table).values(id=uuid.uuid4()))


async def test_what_is_not_behind_is_left_alone(tables: TemporaryDatabase) -> None:
    """The leased rows before it would be walked past all the same."""
    await fill(tables, RUNS, [(place, False) for place in (3, 1, 2, 1, 1)])
    _, reached = await claimed_behind(tables, RUNS, None, limit=2)
    await fill(tables, RUNS, [(place, False) for place in (0, 1, 2, 1, 1)])
    assert (await claimed_behind(tables, RUNS, reached, limit=9))[0] == [4, 2]


async def test_times_in_another_shape_are_found(sqlite_database: TemporaryDatabase) -> None:
    """Rows whose due time was written by other means would be passed over, all but the first of
    each time.
    """
    await add(sqlite_database, *(Run(id=number) for number in range(7)))
    async with sqlite_database.engine.begin() as connection:
        await connection.execute(
            text("UPDATE runs SET due_at = '2026-01-01 00:00:00' WHERE id < 5")
        )
        await connection.execute(
            text("UPDATE runs SET due_at = '2026-01-01T00:00:00' WHERE id > 4")
        )
    assert await chain(sqlite_database, RUNS, limit=2) == [[0, 1], [2, 3], [4, 5], [6]]


async def test_an_expired_lease_behind_is_taken_over(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A claim that resumes would leave the rows of the dead alone."""
    await add(database_with_clock, *(Run(id=number, due_at=LONG_AGO) for number in range(3)))
    _, first = await claimed_behind(database_with_clock, RUNS, None, limit=1)
    assert (await claimed_behind(database_with_clock, RUNS, first, limit=9))[0] == [1, 2]
    database_with_clock.clock.advance(LOCK_TIMEOUT)
    assert (await claimed_behind(database_with_clock, RUNS, first, limit=9))[0] == [1, 2]


async def test_items_come_in_line_however_the_database_returns_them(
    database: TemporaryDatabase,
) -> None:
    """The next claim would resume in the middle of this one, or past rows that nobody looked at."""
    volumes = [Volume(last_processed_at=LONG_AGO - timedelta(days=number)) for number in range(40)]
    await add(database, *volumes)
    keys, reached = await claimed_behind(database, VOLUMES, None, limit=40)
    assert keys == [volume.id for volume in reversed(volumes)]
    assert reached is not None
    assert reached.key == keys[-1]


async def test_a_claim_that_brings_nothing_reaches_nothing(database: TemporaryDatabase) -> None:
    """The position of the last claim would be lost, or be that of a row which was not leased."""
    await add(database)
    assert await claimed_behind(database, VOLUMES, None, limit=3) == ([], None)
