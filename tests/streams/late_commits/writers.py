"""Who adds rows late: many writers at once, each in a way of its own.

Each way lingers while its rows have positions and are not visible. How long that is, is said by who
runs them: some turns of the loop, some of a second, or until a test has looked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeAlias

from sqlalchemy import Table, func, insert, literal, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from ..inputs.writing import copy, end_prepared
from .host import HOST, SECTIONS, Arrival, Cached, Noted, Sectioned

ROWS_MAX: Final = 6
"""Most rows of a transaction, in each way of adding them but INSERT from SELECT."""
SELECTED_MAX: Final = 50
COMMITS: Final = 0.8
"""Which part of the prepared transactions and of the savepoints is not rolled back."""

Linger: TypeAlias = Callable[[Random], Awaitable[None]]


@dataclass
class Writer:
    """One of those who add rows.

    Attributes:
        engine: whose connections it uses.
        name: its own; the key of its rows.
        rng: what it draws from.
        linger: awaited while rows are added and not committed.
        numbered: how many rows it has tried to add.
    """

    engine: AsyncEngine
    name: str
    rng: Random
    linger: Linger
    numbered: int = 0

    def numbers(self, most: int = ROWS_MAX) -> range:
        begin = self.numbered
        self.numbered += self.rng.randint(1, most)
        return range(begin, self.numbered)

    def rows(self, most: int = ROWS_MAX) -> list[dict[str, Any]]:
        return [{"writer": self.name, "number": number} for number in self.numbers(most)]

    async def add(self, connection: AsyncConnection, table: Table | type[Any] = Arrival) -> None:
        """Add the next rows to a table, in the caller's transaction."""
        await connection.execute(insert(table), self.rows())

    async def wait(self) -> None:
        await self.linger(self.rng)


async def at_once(writer: Writer) -> None:
    engine = writer.engine.execution_options(isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await writer.add(connection)


async def in_a_transaction(writer: Writer) -> None:
    """Several statements in one transaction, which lingers between them."""
    async with writer.engine.begin() as connection:
        for _ in range(writer.rng.randint(1, 3)):
            await writer.add(connection)
            await writer.wait()


async def with_savepoints(writer: Writer) -> None:
    """Rows behind savepoints, some of which are rolled back."""
    async with writer.engine.begin() as connection:
        await writer.add(connection)
        for _ in range(2):
            savepoint = await connection.begin_nested()
            await writer.add(connection)
            await writer.wait()
            is_kept = writer.rng.random() < COMMITS
            await (savepoint.commit() if is_kept else savepoint.rollback())


async def rolled_back(writer: Writer) -> None:
    async with writer.engine.connect() as connection:
        await writer.add(connection)
        await writer.wait()
        await connection.rollback()


async def into_two_tables(writer: Writer) -> None:
    section = writer.rng.randrange(SECTIONS)
    async with writer.engine.begin() as connection:
        await writer.add(connection)
        await writer.wait()
        rows = [{"section": section, **row} for row in writer.rows()]
        await connection.execute(insert(Sectioned), rows)
        await writer.wait()


async def from_select(writer: Writer) -> None:
    """Rows that the server makes, so none has a bucket."""
    numbers = writer.numbers(SELECTED_MAX)
    made = func.generate_series(numbers.start, numbers.stop - 1).column_valued("number")
    rows = select(literal(writer.name), made)
    async with writer.engine.begin() as connection:
        adding = insert(Arrival).from_select(["writer", "number"], rows, include_defaults=False)
        await connection.execute(adding)
        await writer.wait()


async def by_copy(writer: Writer) -> None:
    async with writer.engine.begin() as connection:
        await connection.execute(text("SELECT 1"))
        raw = (await connection.get_raw_connection()).driver_connection
        rows = [(writer.name, number) for number in writer.numbers()]
        await copy(raw, rows, table=Arrival.__tablename__, columns=("writer", "number"))
        await writer.wait()


async def in_two_phases(writer: Writer) -> None:
    """Rows of a prepared transaction, which has no session while it lingers."""
    gid = f"{writer.engine.url.database} {writer.name} {writer.numbered}"
    async with writer.engine.connect() as connection:
        await writer.add(connection)
        await connection.exec_driver_sql(f"PREPARE TRANSACTION '{gid}'")
        await connection.rollback()
    await writer.wait()
    await end_prepared(writer.engine, gid, commits=writer.rng.random() < COMMITS)


async def into_partitions(writer: Writer) -> None:
    """Rows by way of the parent, and rows that are added to a partition itself."""
    section = writer.rng.randrange(SECTIONS)
    direct = text(
        f"INSERT INTO section_{section} (section, writer, number)"
        f" VALUES ({section}, :writer, :number)"
    )
    async with writer.engine.begin() as connection:
        rows = [{"section": section, **row} for row in writer.rows()]
        await connection.execute(insert(Sectioned), rows)
        await connection.execute(direct, writer.rows())
        await writer.wait()


async def by_append(writer: Writer) -> None:
    """Events of a producer, each of which is sent once or twice."""
    events = [Noted(writer.name, number) for number in writer.numbers()]
    for _ in range(writer.rng.randint(1, 2)):
        async with AsyncSession(writer.engine) as session, session.begin():
            await HOST.log.append(session, events, producer=writer.name, seq=events[0].number)
            await writer.wait()


async def by_unit_of_work(writer: Writer) -> None:
    async with AsyncSession(writer.engine) as session, session.begin():
        for _ in range(2):
            session.add_all([Arrival(**row) for row in writer.rows()])
            await session.flush()
            await writer.wait()


async def by_upsert(writer: Writer) -> None:
    """Rows of which some are there; these take a position, too, and do not use it."""
    rows = writer.rows() + [
        {"writer": writer.name, "number": number} for number in range(writer.numbered)[-ROWS_MAX:]
    ]
    new = upsert(Arrival)
    adding = new.on_conflict_do_update(
        index_elements=["writer", "number"], set_={"number": new.excluded.number}
    )
    async with writer.engine.begin() as connection:
        for row in rows:
            await connection.execute(adding, row)
        await writer.wait()


async def isolated(writer: Writer) -> None:
    """Rows of transactions that see one moment; the server may refuse some of them."""
    level = writer.rng.choice(["REPEATABLE READ", "SERIALIZABLE"])
    engine = writer.engine.execution_options(isolation_level=level)
    own = select(func.count()).where(Arrival.writer == writer.name)
    try:
        async with engine.begin() as connection:
            await connection.scalar(own)
            await writer.add(connection)
            await writer.wait()
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", "") != "40001":
            raise


WAYS: Final[Sequence[Callable[[Writer], Coroutine[Any, Any, None]]]] = (
    at_once,
    in_a_transaction,
    with_savepoints,
    rolled_back,
    into_two_tables,
    from_select,
    by_copy,
    in_two_phases,
    into_partitions,
    by_append,
    by_unit_of_work,
    by_upsert,
    isolated,
)


async def into_cached(writer: Writer) -> None:
    """Rows whose positions each session takes beforehand, many at once."""
    async with writer.engine.begin() as connection:
        await writer.add(connection, Cached)
        await writer.wait()
