"""Deaths counted in the token: by Python and by PostgreSQL alike, and by nobody else's token."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import Text, literal, select

from rowlock.dialects.postgresql.death_tokens import digits_after
from rowlock.rows.lock_tokens import DEATHS_MAX, deaths_of, token_after
from rowlock.testing import TemporaryDatabase


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
