"""Tokens of holders that come back: told from others by both databases, and as random as any."""

from __future__ import annotations

import uuid

from sqlalchemy import select

from rowlock.rows.lock_tokens import fresh_token, is_reservation_token
from rowlock.testing import TemporaryDatabase

from ..host import Base, Volume


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
