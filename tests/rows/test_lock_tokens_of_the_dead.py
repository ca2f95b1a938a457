"""Deaths counted in the token, and the rule by which they are."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import select

from rowlock.rows.lock_tokens import (
    DEATHS_MAX,
    FEW_MAX,
    Deaths,
    deaths_after,
    deaths_of,
    fresh_token,
    is_in_crowd,
    is_reservation_token,
    with_deaths,
)
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Base, Run, RunPipeline, Volume
from ..pipelines.scenes import add, read, replica

MAX = 20


def test_a_random_token_counts_nothing() -> None:
    """A row would be parked for deaths that never happened."""
    assert {deaths_of(uuid.uuid4()) for _ in range(1000)} == {Deaths()}
    of_others = (None, "", "no token", f"{'0' * 16}e{'z' * 15}")
    assert {deaths_of(token) for token in of_others} == {Deaths()}


@pytest.mark.parametrize("in_crowd", [True, False])
@pytest.mark.parametrize("deaths", [Deaths(), Deaths(1, 2), Deaths(DEATHS_MAX + 5, DEATHS_MAX + 1)])
def test_a_token_says_what_was_counted(deaths: Deaths, in_crowd: bool) -> None:
    """A row that kills its holders would start again from none, or be taken for another."""
    token = with_deaths(uuid.uuid4(), deaths, in_crowd=in_crowd)
    expected = Deaths(*(min(count, DEATHS_MAX) for count in deaths))
    assert deaths_of(token) == deaths_of(str(token)) == deaths_of(token.hex) == expected
    assert is_in_crowd(token) is in_crowd


@pytest.mark.parametrize(
    ("before", "in_crowd", "lost", "after"),
    [
        (Deaths(), False, 1, Deaths(1, 0)),
        (Deaths(3, 4), False, FEW_MAX, Deaths(4, 4)),
        (Deaths(3, 4), False, FEW_MAX + 1, Deaths(3, 5)),
        (Deaths(3, 4), True, 1, Deaths(3, 5)),
        (Deaths(3, MAX), True, 1, Deaths(3, MAX + 1)),
        (Deaths(3, MAX), False, 100, Deaths(3 + MAX // 2, MAX)),
    ],
)
def test_deaths_in_a_crowd_are_not_held_against_a_row(
    before: Deaths, in_crowd: bool, lost: int, after: Deaths
) -> None:
    """Few rows lost count one; many count none; a row that is tried alone counts half of all."""
    dead = with_deaths(uuid.uuid4(), before, in_crowd=in_crowd)
    assert deaths_after(dead, lost=lost, max_deaths=MAX) == after


@pytest.mark.parametrize("claims_rows", [True, False])
@pytest.mark.parametrize("deaths", [2, 3])
async def test_a_row_is_parked_at_its_last_death(
    database_with_clock: TemporaryDatabase, deaths: int, claims_rows: bool
) -> None:
    """With ``max_deaths=3`` a row over which two holders in a row died is worked on, and one over
    which three died is parked.
    """
    database = database_with_clock
    [row] = await add(database, Run(id=1))
    async with AsyncExitStack() as stack:
        for _ in range(deaths + 1):
            pipeline = RunPipeline(max_deaths=3)
            steps = await stack.enter_async_context(stepping(replica(database), pipeline))
            steps.run.context.claims_rows = claims_rows
            assert len(await steps.fetch_once()) == 1
            database.clock.advance(31)
        database.clock.advance(-31)
        await steps.work_once()
    assert len(pipeline.items) == (deaths < 3)
    assert ((await read(database, row)).parked_at is None) == (deaths < 3)


def test_it_is_a_valid_uuid_of_version_8() -> None:
    """Whoever parses tokens would stumble over it."""
    token = fresh_token(is_reserved=True)
    assert token.version == 8
    assert token.variant == uuid.RFC_4122


def test_no_two_are_alike() -> None:
    """Two holders could have one token."""
    assert len({fresh_token(is_reserved=True) for _ in range(1000)}) == 1000


async def test_the_database_tells_them_apart(database: TemporaryDatabase) -> None:
    """Children would be held up for any parent at work, or for none."""
    await database.create_tables(Base.metadata)
    tokens = {"comes back": fresh_token(is_reserved=True), "is here": uuid.uuid4(), "nobody": None}
    async with database.session_factory.begin() as session:
        session.add_all(Volume(status=status, lock_token=token) for status, token in tokens.items())
    async with database.session_factory() as session:
        statement = select(Volume.status).where(is_reservation_token(Volume.lock_token))
        assert (await session.scalars(statement)).all() == ["comes back"]
