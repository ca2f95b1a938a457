"""Creators of fleets, each of which takes the next free name; as a program, ``python creators.py
URL COUNT``, many at once.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Any

from sqlalchemy import event, select
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import lock_unique_names
from rowlock.errors import LockWaitTimeout
from rowlock.testing import TemporaryDatabase

NAMESPACE = "fleet_names_main"
WAIT_S = 60.0

Sessions = async_sessionmaker[AsyncSession]


class Base(DeclarativeBase):
    """The tables of these tests."""


class Fleet(Base):
    """A row with a name that only the lock makes unique."""

    __tablename__ = "fleets"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


async def next_free_name(session: AsyncSession) -> str:
    """Return the first of ``fleet-0, fleet-1, ...`` that is not taken."""
    taken = set((await session.scalars(select(Fleet.name))).all())
    return next(
        name for number in range(len(taken) + 1) if (name := f"fleet-{number}") not in taken
    )


async def create(sessions: Sessions, *, inside: set[Any] | None = None) -> str:
    """Create a fleet under the next free name, as a service does; `inside` is told the task that
    has the lock.
    """
    async with sessions() as session, lock_unique_names(session, NAMESPACE, timeout=WAIT_S):
        if inside is not None:
            inside.add(asyncio.current_task())
        name = await next_free_name(session)
        session.add(Fleet(name=name))
        await session.commit()
        return name


async def names_in(database: TemporaryDatabase) -> list[str]:
    """Return the names that are taken, sorted by their number."""
    async with database.session_factory() as session:
        return sorted(
            await session.scalars(select(Fleet.name)), key=lambda name: int(name.rpartition("-")[2])
        )


def expected(count: int) -> list[str]:
    return [f"fleet-{number}" for number in range(count)]


def begins_by_itself(engine: AsyncEngine, statement: str = "BEGIN") -> Sessions:
    """Return sessions of a host that begins SQLite's transactions itself, as SQLAlchemy's
    documentation recommends.
    """

    @event.listens_for(engine.sync_engine, "connect")
    def leave_it_to_us(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql(statement)

    return async_sessionmaker(engine, expire_on_commit=False)


async def is_free(database: TemporaryDatabase) -> bool:
    with suppress(LockWaitTimeout):
        async with (
            database.session_factory() as session,
            lock_unique_names(session, NAMESPACE, timeout=0),
        ):
            return True
    return False


async def main(url: str, count: int) -> None:
    """Create so many fleets at once, after somebody has said go."""
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        await connection.execute(select(1))
    print("ready", flush=True)
    sys.stdin.readline()
    sessions = async_sessionmaker(engine)
    await asyncio.gather(*(create(sessions) for _ in range(count)))
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
