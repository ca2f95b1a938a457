"""Writers of a stream, as tests of its high-water mark need them: many at once, each in its own
way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Identity,
    Integer,
    MetaData,
    String,
    Table,
    insert,
    select,
    text,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rowlock.streams.inputs.high_water import HighWaterLook
from rowlock.testing import TemporaryDatabase

METADATA: Final = MetaData()
ROWS: Final = Table(
    "rows_of_writers",
    METADATA,
    Column(
        "position",
        BigInteger().with_variant(Integer, "sqlite"),
        Identity(always=True),
        primary_key=True,
    ),
    Column("writer", String(40), nullable=False),
    sqlite_autoincrement=True,
)


def new_look(table: Table = ROWS) -> HighWaterLook:
    return HighWaterLook(table.c.position, name=table.name)


async def mark_of(engine: AsyncEngine, look: HighWaterLook, recorded: int = 0) -> int:
    """Look once, in a transaction of its own, and return the mark."""
    async with engine.begin() as connection:
        return (await look.look(connection, recorded=recorded)).mark


async def read(engine: AsyncEngine, after: int, upto: int) -> list[int]:
    """Return the positions of the rows of a step, in a transaction of its own."""
    async with engine.begin() as connection:
        return await read_here(connection, after, upto)


async def read_here(connection: AsyncConnection, after: int, upto: int) -> list[int]:
    """Return the positions of the rows of a step, as this transaction sees them."""
    position = ROWS.c.position
    found = select(position).where(position > after, position <= upto).order_by(position)
    return list((await connection.scalars(found)).all())


async def add(connection: AsyncConnection, writer: str, count: int = 1) -> None:
    for _ in range(count):
        await connection.execute(insert(ROWS).values(writer=writer))


class Writers:
    """So many writers, each of which adds rows in one way after another."""

    def __init__(self, database: TemporaryDatabase, count: int, transactions: int) -> None:
        self._database, self._count, self._transactions = database, count, transactions
        self.are_done = False

    async def write(self) -> None:
        engine = self._database.create_engine()
        try:
            async with asyncio.TaskGroup() as writers:
                for number in range(self._count):
                    writers.create_task(self._write_as(engine, number))
        finally:
            self.are_done = True

    async def _write_as(self, engine: AsyncEngine, number: int) -> None:
        rng = Random(number)
        ways: list[Any] = [self._plain, self._rolled_back, self._with_savepoint]
        if self._database.dialect_name == "postgresql":
            ways += [self._prepared, self._copied]
        for transaction in range(self._transactions):
            await rng.choice(ways)(engine, f"{number} {transaction}", rng)

    async def _plain(self, engine: AsyncEngine, name: str, rng: Random) -> None:
        async with engine.begin() as connection:
            await add(connection, name, rng.randint(1, 4))
            await _linger(rng)

    async def _rolled_back(self, engine: AsyncEngine, name: str, rng: Random) -> None:
        async with engine.connect() as connection:
            await add(connection, name, rng.randint(1, 4))
            await _linger(rng)
            await connection.rollback()

    async def _with_savepoint(self, engine: AsyncEngine, name: str, rng: Random) -> None:
        async with engine.begin() as connection:
            await add(connection, name)
            for _ in range(2):
                savepoint = await connection.begin_nested()
                await add(connection, name)
                await _linger(rng)
                await (savepoint.commit() if rng.random() < 0.5 else savepoint.rollback())

    async def _prepared(self, engine: AsyncEngine, name: str, rng: Random) -> None:
        gid = f"{self._database.url.database} {name}"
        async with engine.connect() as connection:
            await add(connection, name, rng.randint(1, 4))
            await connection.exec_driver_sql(f"PREPARE TRANSACTION '{gid}'")
            await connection.rollback()
        await _linger(rng)
        await end_prepared(engine, gid, commits=rng.random() < 0.8)

    async def _copied(self, engine: AsyncEngine, name: str, rng: Random) -> None:
        async with engine.begin() as connection:
            await connection.execute(text("SELECT 1"))
            raw = (await connection.get_raw_connection()).driver_connection
            await copy(raw, [(name,)] * rng.randint(1, 4))
            await _linger(rng)


async def copy(driver_connection: Any, rows: Sequence[tuple[Any, ...]]) -> None:
    if hasattr(driver_connection, "copy_records_to_table"):
        await driver_connection.copy_records_to_table(ROWS.name, records=rows, columns=["writer"])
        return
    statement = f"COPY {ROWS.name} (writer) FROM STDIN"
    async with driver_connection.cursor() as cursor, cursor.copy(statement) as copying:
        for row in rows:
            await copying.write_row(row)


async def end_prepared(engine: AsyncEngine, gid: str, *, commits: bool = True) -> None:
    how = "COMMIT" if commits else "ROLLBACK"
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        await connection.exec_driver_sql(f"{how} PREPARED '{gid}'")


async def _linger(rng: Random) -> None:
    for _ in range(rng.randint(0, 30)):
        await asyncio.sleep(0)
