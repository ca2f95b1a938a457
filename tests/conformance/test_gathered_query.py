"""Queries whose rows come as columns: they give what the rows have, on each database."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import (
    ARRAY,
    JSON,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    bindparam,
    event,
    insert,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rowlock.streams.dialects.stream_dialect import GatheredQuery
from rowlock.testing import TemporaryDatabase

from .test_bulk import EMPTY, FULL, ODD, kinds

TOO_LARGE = "DO $$ BEGIN RAISE program_limit_exceeded; END $$"
LONGEST = 1_000

blobs = Table(
    "gathered_blobs",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("content", LargeBinary),
    Column("tags", JSON().with_variant(ARRAY(Integer), "postgresql")),
)


async def columns_of(
    connection: AsyncConnection, *names: str, query: GatheredQuery | None = None
) -> list[list[Any]]:
    query = query or query_of(*names)
    return [list(column) for column in await query.columns(connection, {"least": ""})]


def query_of(*names: str) -> GatheredQuery:
    """Return the query for columns of all rows of `kinds`, with the keys first."""
    columns = [kinds.c[name] for name in ("key", *names)]
    own = kinds.c.key > bindparam("least")
    return GatheredQuery(select(*columns).where(own).order_by(kinds.c.key))


async def add(engine: AsyncEngine, rows: Sequence[tuple[Any, ...]]) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(kinds.metadata.create_all)
        names = [column.name for column in kinds.c]
        await connection.execute(
            insert(kinds), [dict(zip(names, row, strict=True)) for row in rows]
        )


@pytest.mark.parametrize(
    "names", [("number", "big", "note"), ("token", "at", "is_on"), ("ratio",)], ids="-".join
)
async def test_columns_have_what_the_rows_have(
    database: TemporaryDatabase, names: tuple[str, ...]
) -> None:
    """A value would become another one on its way through an array, or be that of another row."""
    await add(database.engine, [FULL, ODD, EMPTY])
    async with database.engine.begin() as connection:
        found = await columns_of(connection, *names)
        rows = await connection.execute(select(kinds).order_by(kinds.c.key))
        wanted = [[getattr(row, name) for name in ("key", *names)] for row in rows]
    assert [list(row) for row in zip(*found, strict=True)] == wanted
    assert len(wanted) == 3


async def test_no_rows_are_empty_columns(database: TemporaryDatabase) -> None:
    """A step without rows of a shard would fail."""
    await add(database.engine, [FULL])
    async with database.engine.begin() as connection:
        none = {"least": "z"}
        assert list(map(list, await query_of("number").columns(connection, none))) == [[], []]
        assert list(map(list, await query_of("at").columns(connection, none))) == [[], []]


async def test_types_without_such_a_value(database: TemporaryDatabase) -> None:
    """Bytes and lists would be refused, or become something else."""
    query = GatheredQuery(select(blobs.c.content, blobs.c.tags).order_by(blobs.c.id))
    rows = [(b"\0\xff", [1, 2]), (None, [3])]
    async with database.engine.begin() as connection:
        await connection.run_sync(blobs.metadata.create_all)
        for content, tags in rows:
            await connection.execute(insert(blobs).values(content=content, tags=tags))
        found = await query.columns(connection, {})
    assert list(zip(*found, strict=True)) == rows


def refuses_large_values(engine: AsyncEngine) -> None:
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine.sync_engine, "connect")
        def limit(connection: Any, _record: object) -> None:
            async def set_limit(driver: Any) -> None:
                limited = driver._conn.setlimit
                await driver._execute(limited, sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)

            connection.run_async(set_limit)

        return

    # A gigabyte takes too long to be made: so the server says at once what it would say then.
    @event.listens_for(engine.sync_engine, "before_cursor_execute", retval=True)
    def refuse(*args: Any) -> tuple[Any, Any]:
        _, _, statement, parameters, *_ = args
        return (TOO_LARGE, ()) if "array_agg" in statement else (statement, parameters)


async def test_what_is_too_large_is_read_row_by_row(database: TemporaryDatabase) -> None:
    """A step with much in its rows could never be done: it is cut, and the same each time."""
    rows = [(f"{number:03}", None, None, "x" * 300, *EMPTY[4:]) for number in range(10)]
    await add(database.engine, rows)
    engine, query = database.create_engine(), query_of("note")
    refuses_large_values(engine)
    async with engine.connect() as connection:
        with pytest.raises(DBAPIError):
            await columns_of(connection, query=query)
    async with engine.connect() as connection:
        keys, notes = await columns_of(connection, query=query)
    assert (len(keys), set(notes)) == (10, {"x" * 300})
