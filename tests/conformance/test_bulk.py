"""Many rows in one statement: what is written and found is the same on each database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    Uuid,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from rowlock import UtcDateTime
from rowlock.dialects.contract import ROWS
from rowlock.execution import kept_statement
from rowlock.testing import TemporaryDatabase

NOON = datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC)
KEY = UUID("12345678-1234-5678-1234-567812345678")
NAMES = ("key", "number", "big", "note", "ratio", "is_on", "token", "at")
FULL = ("a", 1, 1 << 62, "x" * 300, 0.5, True, KEY, NOON)
ODD = ("b'\"\\{},:%s", -1, -(1 << 62), "ä\n\u2028:name %(a)s", -0.25, False, KEY, NOON)
EMPTY = ("c", None, None, None, None, None, None, None)

kinds = Table(
    "bulk_kinds",
    MetaData(),
    Column("key", String(40), primary_key=True),
    Column("number", Integer),
    Column("big", BigInteger),
    Column("note", Text),
    Column("ratio", Float),
    Column("is_on", Boolean),
    Column("token", Uuid),
    Column("at", UtcDateTime),
)


@pytest.fixture
async def connection(database: TemporaryDatabase) -> Any:
    await database.create_tables(kinds.metadata)
    async with database.create_engine().begin() as connection:
        yield connection


async def insert(connection: AsyncConnection, rows: Sequence[tuple[Any, ...]]) -> None:
    bulk = ROWS.of(connection)
    statement = bulk.insert(kinds, NAMES)
    statement = statement.on_conflict_do_update(
        index_elements=["key"], set_={name: statement.excluded[name] for name in NAMES[1:]}
    )
    await connection.execute(statement, bulk.insert_parameters(NAMES, rows))


async def stored(connection: AsyncConnection) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await connection.execute(select(kinds).order_by(kinds.c.key))]


async def test_values_of_each_type(connection: AsyncConnection) -> None:
    """A value would become another one on its way through an array."""
    await insert(connection, [FULL, ODD, EMPTY])
    assert await stored(connection) == [FULL, ODD, EMPTY]


async def test_rows_that_are_there_are_written(connection: AsyncConnection) -> None:
    """A second write of a key would fail, or be lost."""
    await insert(connection, [FULL, EMPTY])
    await insert(connection, [("a", *EMPTY[1:]), ("c", *FULL[1:]), ODD])
    assert await stored(connection) == [("a", *EMPTY[1:]), ODD, ("c", *FULL[1:])]


async def test_it_is_counted_what_is_inserted(connection: AsyncConnection) -> None:
    """Who inserts unless a row is there would take it for inserted, or for there, whatever was."""
    bulk = ROWS.of(connection)
    statement = bulk.insert(kinds, NAMES).on_conflict_do_nothing()
    for rows, count in (([FULL, EMPTY], 2), ([FULL], 0), ([FULL, ODD, EMPTY], 1)):
        done = await connection.execute(statement, bulk.insert_parameters(NAMES, rows))
        assert done.rowcount == count
    one = bulk.insert_unless_there(kinds, [kinds.c.key])
    for count in (1, 0):
        assert (await connection.execute(one.values(key="d"))).rowcount == count


async def test_psycopg_counts_what_is_inserted(postgresql_database: TemporaryDatabase) -> None:
    """Events that are sent twice would be added twice, with a driver that few tests run on."""
    pytest.importorskip("psycopg")
    await postgresql_database.create_tables(kinds.metadata)
    url = postgresql_database.url.set(drivername="postgresql+psycopg")
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        await test_it_is_counted_what_is_inserted(connection)
    await engine.dispose()


@pytest.mark.parametrize("count", [1, 33_000])
async def test_any_number_of_rows(connection: AsyncConnection, count: int) -> None:
    """Databases allow so many parameters in a statement, and no more."""
    rows = [(f"{number:05}", number, *EMPTY[2:]) for number in range(count)]
    await insert(connection, rows)
    bulk = ROWS.of(connection)
    keys = bulk.among_parameter([row[0] for row in rows] + ["other"])
    numbers = bulk.among_parameter([*range(1, count), -5])
    by_key = select(kinds.c.key).where(bulk.is_among(kinds.c.key, "keys"))
    by_number = select(kinds.c.key).where(bulk.is_among(kinds.c.number, "numbers"))
    assert len((await connection.execute(by_key, {"keys": keys})).all()) == count
    assert len((await connection.execute(by_number, {"numbers": numbers})).all()) == count - 1


async def test_odd_texts_are_found(connection: AsyncConnection) -> None:
    """A key with quotes or brackets would never be found again."""
    await insert(connection, [FULL, ODD])
    bulk = ROWS.of(connection)
    found = select(kinds.c.key).where(bulk.is_among(kinds.c.key, "keys"))
    parameters = {"keys": bulk.among_parameter([ODD[0], "no such key"])}
    assert (await connection.execute(found, parameters)).scalars().all() == [ODD[0]]


def test_a_statement_is_built_once() -> None:
    """Each step would take longer to build its statements than to execute them."""
    table, built = Table("kept", MetaData()), list[str]()

    def build() -> str:
        built.append("statement")
        return "statement"

    for _ in range(2):
        assert kept_statement(table, "key", build) == "statement"
    assert built == ["statement"]


async def test_other_columns_are_another_statement(connection: AsyncConnection) -> None:
    """Values would be written to the columns of whoever came first."""
    await insert(connection, [FULL])
    bulk, names = ROWS.of(connection), ("key", "note")
    await connection.execute(
        bulk.insert(kinds, names), bulk.insert_parameters(names, [("n", "noted")])
    )
    assert await stored(connection) == [FULL, ("n", None, None, "noted", *EMPTY[4:])]
