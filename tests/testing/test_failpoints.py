"""Tests of failpoints: every boundary counts, once, and the act is done where it was wanted."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, text

from rowlock.testing import Failpoints, TemporaryDatabase
from rowlock.testing import failpoints as module

from ..leases.transactions import checked_out

METADATA = MetaData()
Table("things", METADATA, Column("id", Integer, primary_key=True))
STATEMENTS = [
    ("before", "BEGIN"),
    ("before", "SELECT 1"),
    ("after", "SELECT 1"),
    ("before", "COMMIT"),
    ("after", "COMMIT"),
    ("before", "ROLLBACK"),
    ("after", "ROLLBACK"),
]
"""The last one is the pool's, which hands on no connection as it got it."""


async def transact(database: TemporaryDatabase) -> None:
    async with database.engine.begin() as connection:
        await connection.execute(text("SELECT 1"))


def told(points: Failpoints) -> list[tuple[str, str]]:
    return [(boundary.side, boundary.statement) for boundary in points.passed]


async def test_both_sides_of_everything_count(database: TemporaryDatabase) -> None:
    """A moment would be left untried."""
    await transact(database)
    with Failpoints(database.engine) as points:
        await transact(database)
    assert told(points) == STATEMENTS
    assert [boundary.number for boundary in points.passed] == list(range(7))
    assert str(points.passed[4]) == "boundary 4, after COMMIT"
    await transact(database)
    assert len(points.passed) == 7, "it does not let go of the engine"


async def test_the_distinct_ones(database: TemporaryDatabase) -> None:
    """A sweep would try the same moment twice, or leave out the lost answer."""
    await transact(database)
    with Failpoints(database.engine, distinct=True) as points:
        await transact(database)
    assert told(points) == [one for one in STATEMENTS if one[0] == "before" or one[1] == "COMMIT"]
    assert [boundary.is_lost_answer for boundary in points.passed].count(True) == 1


@pytest.mark.parametrize("at", range(5))
async def test_an_error_at_any_of_them(database: TemporaryDatabase, at: int) -> None:
    """A sweep would meet another moment than it means, or more than one."""
    await database.create_tables(METADATA)
    with Failpoints(database.engine, at=at) as points:
        with pytest.raises(ConnectionResetError, match=f"boundary {at}"):
            async with database.engine.begin() as connection:
                await connection.execute(text("INSERT INTO things VALUES (1)"))
        assert points.reached is not None
        await transact(database)
    assert checked_out(database.engine) == 0
    async with database.engine.connect() as connection:
        written = await connection.scalar(text("SELECT count(*) FROM things"))
    assert written == (points.reached.is_lost_answer is True)


async def test_parts_that_are_not_under_test(database: TemporaryDatabase) -> None:
    """What leads to the step under test would be part of the sweep."""
    with Failpoints(database.engine, armed=False) as points:
        await transact(database)
        points.armed = True
        await transact(database)
    assert len(points.passed) == 7


async def test_what_others_do_at_the_same_time(database: TemporaryDatabase) -> None:
    """A boundary would have another number in each run, or be that of another transaction."""
    await transact(database)
    with Failpoints(database.engine, armed=False) as points, Failpoints(database.engine) as others:
        with points.armed_here():
            own = [asyncio.create_task(transact(database)) for _ in range(2)]
        await asyncio.gather(*own, *(transact(database) for _ in range(3)))
        with points.armed_here(), others.armed_here():
            await transact(database)
    assert (len(points.passed), len(others.passed)) == (21, 42)


async def test_one_inside_another(database: TemporaryDatabase) -> None:
    """Two observers of one engine would cut each other off."""
    await transact(database)
    with Failpoints(database.engine) as outer:
        with Failpoints(database.engine) as inner:
            await transact(database)
        await transact(database)
    assert (len(inner.passed), len(outer.passed)) == (7, 14)
    assert "do_commit" not in vars(database.engine.sync_engine.dialect)


async def test_an_endless_step(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that goes round for ever would fill the memory."""
    monkeypatch.setattr(module, "BOUNDARIES_MAX", 10)
    with Failpoints(database.engine):
        await transact(database)
        with pytest.raises(OverflowError, match="10 boundaries and no end"):
            await transact(database)
