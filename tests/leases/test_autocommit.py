"""Single statements that need no transaction around them: what they spare, and that nothing of
it is left on the connection.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.database.transaction import in_transaction
from rowlock.testing import TemporaryDatabase

from ..host import Volume
from .ground import TIMEOUT, VOLUMES, add


async def in_how_many_transactions(session: AsyncSession, connection: AsyncConnection) -> bool:
    """Return whether two statements see one transaction; on PostgreSQL its time says so."""
    first = await connection.scalar(text("SELECT now()"))
    return bool(first == await connection.scalar(text("SELECT now()")))


@pytest.mark.parametrize("autocommit", [True, False])
async def test_it_is_spared_its_transaction(
    postgresql_database: TemporaryDatabase, autocommit: bool
) -> None:
    """Every read and every claim would cost two round trips more; or a transaction would be
    none.
    """
    together = await in_transaction(
        postgresql_database.session_factory,
        VOLUMES,
        in_how_many_transactions,
        purpose="look",
        timeout=TIMEOUT,
        autocommit=autocommit,
    )
    assert together is not autocommit


async def test_the_hosts_own_set_up_may_begin_a_transaction(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Every claim on a new connection would fail for a host that prepares its connections by a
    statement.
    """
    engine = postgresql_database.create_engine()
    prepared = 0

    @event.listens_for(engine.sync_engine, "checkout")
    def prepare(connection: Any, *_: object) -> None:
        nonlocal prepared
        connection.cursor().execute("SELECT 1")
        prepared += 1

    async def look(session: AsyncSession, connection: AsyncConnection) -> int:
        return len((await connection.execute(select(Volume.id))).all())

    await add(postgresql_database, Volume())
    sessions = async_sessionmaker(engine)
    found = await in_transaction(
        sessions, VOLUMES, look, purpose="look", timeout=TIMEOUT, writes=False, autocommit=True
    )
    assert found == 1
    assert prepared > 0


async def test_the_next_transaction_on_the_connection_is_one(database: TemporaryDatabase) -> None:
    """A connection that went back to the pool without transactions would commit half of what
    comes next.
    """
    await add(database, Volume())
    sessions = async_sessionmaker(database.create_engine(pool_size=1, max_overflow=0))

    async def look(session: AsyncSession, connection: AsyncConnection) -> None:
        await connection.execute(select(Volume.id))

    async def write_and_fail(session: AsyncSession, connection: AsyncConnection) -> None:
        await connection.execute(update(Volume).values(status="half written"))
        raise ValueError("in the middle")

    await in_transaction(
        sessions, VOLUMES, look, purpose="look", timeout=TIMEOUT, writes=False, autocommit=True
    )
    with pytest.raises(ValueError, match="in the middle"):
        await in_transaction(sessions, VOLUMES, write_and_fail, purpose="fail", timeout=TIMEOUT)
    async with sessions() as session:
        assert (await session.scalars(select(Volume.status))).all() == ["submitted"]
