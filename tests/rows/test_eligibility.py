"""Eligibility: each clause against a reference written in Python."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import ColumnElement, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.rows.eligibility import (
    RESERVED_BEYOND,
    eligible_parts,
    is_claimable_by,
    is_due,
    is_free,
    oldest_first,
    order_column,
    was_main_lease,
)
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from ..host import Base, Run, Volume

ME, OTHER = "VolumePipeline", "OtherPipeline"
INTERVAL = timedelta(seconds=15)
INTERVAL_S = 15.0
KEPT_S = RESERVED_BEYOND.total_seconds()
OFFSETS_S = (
    None,
    -3600.0,
    -15.001,
    -15.0,
    -14.999,
    -6.001,
    -6.0,
    -5.999,
    -0.001,
    0.0,
    0.001,
    5.999,
    6.0,
    15.0,
    3600.0,
)
"""Times relative to now, at and around every bound that is compared with."""
VOLUMES, RUNS = LeasedTable.of(Volume), LeasedTable.of(Run)

Facts = dict[str, Any]
"""A row in words of the reference: `expires` and its like are seconds from now, or None for
null.
"""


def expect_free(row: Facts) -> bool:
    return row["expires"] is None or row["expires"] <= 0


def expect_mine(row: Facts) -> bool:
    if row["owner"] in (None, ME) or row["token"] or row["last"] is None:
        return True
    return bool(abs(row["last"]) >= KEPT_S)


def expect_due(row: Facts) -> bool:
    if "due" in row:
        return row["parked"] is None and bool(row["due"] <= 0)
    return row["last"] is None or row["last"] <= -INTERVAL_S


def volume(**facts: Any) -> Facts:
    return {"ready": True, "token": False, "owner": None, "expires": None, "last": None} | facts


def run(**facts: Any) -> Facts:
    return {**volume(), "due": -1.0, "parked": None} | facts


async def insert_rows(
    connection: AsyncConnection, database: TemporaryDatabase, rows: list[Facts]
) -> None:
    """Write the rows; the keys of runs are their numbers."""
    now = database.clock.now
    at = lambda offset_s: None if offset_s is None else now + timedelta(seconds=offset_s)  # noqa: E731
    for number, row in enumerate(rows):
        leased = RUNS if "due" in row else VOLUMES
        values = {
            "lock_token": leased.new_token() if row["token"] else None,
            "lock_owner": row["owner"],
            "lock_expires_at": at(row["expires"]),
            "last_processed_at": at(row["last"]),
        }
        if "due" in row:
            values |= {
                "id": number,
                "status": "queued" if row["ready"] else "done",
                "due_at": at(row["due"]),
            }
            values |= {"parked_at": at(row["parked"])}
        else:
            values |= {"size_gb": number, "status": "submitted" if row["ready"] else "active"}
        await connection.execute(insert(leased.table).values(values))


async def numbers_where(
    database: TemporaryDatabase,
    rows: list[Facts],
    condition: ColumnElement[bool],
    *,
    ordered: bool = False,
) -> list[int]:
    """Return which of the rows meet the condition, in the order of claims or in their own;
    leaves nothing behind.
    """
    leased = RUNS if "due" in rows[0] else VOLUMES
    number = Run.id if leased is RUNS else Volume.size_gb
    async with database.engine.connect() as connection:
        await insert_rows(connection, database, rows)
        statement = select(number).where(condition)
        found = await connection.scalars(
            statement.order_by(*oldest_first(leased)) if ordered else statement
        )
        numbers = list(found.all())
        await connection.rollback()
    return numbers if ordered else sorted(numbers)


async def check(database: TemporaryDatabase, rows: list[Facts]) -> None:
    leased = RUNS if "due" in rows[0] else VOLUMES
    ready = Run.status == "queued" if leased is RUNS else Volume.status == "submitted"
    whole = eligible_parts(leased, ready=ready, owner=ME, min_processing_interval=INTERVAL).whole
    clauses = {
        "free": (is_free(leased), expect_free),
        "mine": (is_claimable_by(leased, ME), expect_mine),
        "due": (is_due(leased, INTERVAL), expect_due),
        "all": (
            whole,
            lambda row: row["ready"] and expect_free(row) and expect_mine(row) and expect_due(row),
        ),
    }
    for name, (clause, expected) in clauses.items():
        found = await numbers_where(database, rows, clause)
        assert found == [number for number, row in enumerate(rows) if expected(row)], name


@pytest.fixture
async def tables(database_with_clock: TemporaryDatabase) -> TemporaryDatabase:
    await database_with_clock.create_tables(Base.metadata)
    return database_with_clock


# ---------------------------------------------------------------- the clauses


async def test_volumes_at_every_bound(tables: TemporaryDatabase) -> None:
    """A row would be taken from its holder, or never be taken at all."""
    owners = (None, ME, OTHER, "")
    rows = [
        volume(expires=expires, owner=owner, token=token)
        for expires, owner, token in product(OFFSETS_S, owners, (True, False))
    ]
    rows += [volume(last=last, owner=owner) for last, owner in product(OFFSETS_S, owners)]
    rows += [volume(last=last, owner=OTHER, token=True, expires=-1.0) for last in OFFSETS_S]
    rows += [
        volume(token=token, expires=expires)
        for token, expires in product((True, False), (None, -1.0, 1.0))
    ]
    await check(tables, [*rows, volume(ready=False)])


async def test_runs_at_every_bound(tables: TemporaryDatabase) -> None:
    """A parked row would be worked on, or one before its time."""
    rows = [
        run(due=due, parked=parked) for due, parked in product(OFFSETS_S[1:], (None, -1.0, 1.0))
    ]
    rows += [run(last=last, owner=owner) for last, owner in product(OFFSETS_S, (None, OTHER))]
    await check(
        tables,
        [
            *rows,
            *(run(expires=expires) for expires in OFFSETS_S),
            run(owner=OTHER),
            run(ready=False),
        ],
    )


OFFSETS = (
    st.none()
    | st.sampled_from(OFFSETS_S[1:])
    | st.integers(-40_000, 40_000).map(lambda ms: ms / 1000)
)
VOLUME_FACTS = st.fixed_dictionaries(
    {
        "ready": st.booleans(),
        "token": st.booleans(),
        "owner": st.sampled_from((None, ME, OTHER, "volumepipeline")),
        "expires": OFFSETS,
        "last": OFFSETS,
    }
)
RUN_FACTS = st.tuples(
    VOLUME_FACTS,
    st.fixed_dictionaries({"due": OFFSETS.filter(lambda due: due is not None), "parked": OFFSETS}),
).map(lambda two: two[0] | two[1])


@given(
    st.lists(VOLUME_FACTS, min_size=1, max_size=12) | st.lists(RUN_FACTS, min_size=1, max_size=12)
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_any_rows(tables: TemporaryDatabase, rows: list[Facts]) -> None:
    """Some combination of columns would be judged otherwise than by its parts."""
    await check(tables, rows)


async def test_time_moves_the_line(tables: TemporaryDatabase) -> None:
    """A row that has become due, or whose lease has ended, would not be found."""
    rows = [run(due=5.0), run(expires=10.0, token=True), run()]
    condition = eligible_parts(
        RUNS, ready=Run.status == "queued", owner=ME, min_processing_interval=INTERVAL
    ).whole
    async with tables.engine.connect() as connection:
        await insert_rows(connection, tables, rows)
        await connection.commit()
    found = []
    for seconds in (0, 5, 5):
        tables.clock.advance(seconds)
        async with tables.engine.connect() as connection:
            found.append(set((await connection.scalars(select(Run.id).where(condition))).all()))
    assert found == [{2}, {0, 2}, {0, 1, 2}]


async def test_whose_lease_counts_as_one_of_a_main_row(tables: TemporaryDatabase) -> None:
    """An heir would look for side effects of somebody who never worked on the row, or not for
    those of one who did.
    """
    owners = (ME, OTHER, f"{ME}:7", "billing:1a2b", "Parent", None)
    rows = [volume(owner=owner, token=True, expires=-1.0) for owner in owners]
    assert await numbers_where(tables, rows, was_main_lease(VOLUMES, {"Parent"})) == [0, 1]
    assert await numbers_where(tables, rows, was_main_lease(VOLUMES)) == [0, 1, 4]


async def test_a_longer_rest_reserves_for_longer(tables: TemporaryDatabase) -> None:
    """A pipeline that comes back after a minute would always come too late."""
    ready, rest = Volume.status == "submitted", timedelta(seconds=100)
    rows = [volume(owner=OTHER, last=last) for last in (-100.0, -125.9, -126.0, 125.9, 126.0, None)]
    rule = eligible_parts(
        VOLUMES, ready=ready, owner=ME, min_processing_interval=timedelta(0), reset_interval=rest
    ).whole
    assert await numbers_where(tables, rows, rule) == [2, 5]


# ---------------------------------------------------------------- the order


async def test_never_processed_first_then_longest_waiting(tables: TemporaryDatabase) -> None:
    """New rows would wait behind all others, or hot rows would starve cold ones."""
    rows = [volume(last=last) for last in (-20.0, None, -60.0, -3600.0, -15.0)]
    found = await numbers_where(tables, rows, is_free(VOLUMES), ordered=True)
    assert found == [1, 3, 2, 0, 4]


async def test_oldest_due_first(tables: TemporaryDatabase) -> None:
    """A row that failed often would head the queue, since it was processed longest ago or never."""
    rows = [
        run(due=due, last=last)
        for due, last in ((-1.0, None), (-60.0, -1.0), (-3600.0, None), (0.0, -3600.0))
    ]
    found = await numbers_where(tables, rows, is_free(RUNS), ordered=True)
    assert found == [2, 1, 0, 3]


def test_place_in_line() -> None:
    """The order of claims and the order in the queue would be of different times."""
    assert order_column(VOLUMES) is Volume.last_processed_at
    assert order_column(RUNS) is Run.due_at
