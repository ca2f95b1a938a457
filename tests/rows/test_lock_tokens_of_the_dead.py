"""Deaths counted in the token: by Python and by PostgreSQL alike, and by nobody else's token."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import Text, literal, select

from rowlock.dialects.postgresql.death_tokens import digits_after
from rowlock.rows.lock_tokens import DEATHS_MAX, deaths_of, token_after
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline
from ..pipelines.scenes import add, read, replica


def test_a_random_token_counts_nothing() -> None:
    """A row would be parked for deaths that never happened."""
    assert {deaths_of(uuid.uuid4()) for _ in range(1000)} == {0}
    assert [deaths_of(token) for token in (None, "", "no token", f"{'0' * 16}e{'z' * 15}")] == [
        0
    ] * 4


def test_each_death_counts_one_up_to_the_limit() -> None:
    """A row that kills its holders would never be told from others, or start again from none."""
    token = uuid.uuid4()
    for number in range(1, DEATHS_MAX + 3):
        token = token_after(token, uuid.uuid4())
        assert deaths_of(token) == min(number, DEATHS_MAX)
        assert deaths_of(str(token)) == deaths_of(token.hex) == deaths_of(token)


@pytest.mark.parametrize("deaths", [0, 1, 15, 16, 254, 255])
async def test_the_database_counts_alike(
    postgresql_database: TemporaryDatabase, deaths: int
) -> None:
    """Replicas of one release would count apart."""
    dead, fresh = uuid.uuid4(), uuid.uuid4()
    for _ in range(deaths):
        dead = token_after(dead, uuid.uuid4())
    async with postgresql_database.session_factory() as session:
        digits = digits_after(literal(dead), literal(fresh.hex, Text))
        assert uuid.UUID(await session.scalar(select(digits))) == token_after(dead, fresh)


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
            assert database.clock is not None
            database.clock.advance(31)
        database.clock.advance(-31)
        await steps.work_once()
    assert len(pipeline.items) == (deaths < 3)
    assert ((await read(database, row)).parked_at is None) == (deaths < 3)
