"""The tables of streams are made by a migration, or by the host's metadata: the same ones."""

from __future__ import annotations

from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, MetaData, text
from sqlalchemy.ext.asyncio import AsyncAttrs
from sqlalchemy.orm import DeclarativeBase, MappedAsDataclass, declarative_base
from sqlmodel import SQLModel

from rowlock.rows.leased_table import LeasedTable
from rowlock.streams.tables import (
    StreamTables,
    add_stream_checks,
    add_stream_tables,
    drop_stream_checks,
    drop_stream_tables,
)
from rowlock.testing import TemporaryDatabase

from .conftest import WithOp, picture


class Base(DeclarativeBase):
    """A host's."""


class DataclassBase(MappedAsDataclass, DeclarativeBase):
    """A host whose models are dataclasses."""


class NamingBase(AsyncAttrs, DeclarativeBase):
    """A host with names of its own for indexes."""

    metadata = MetaData(
        naming_convention={"ix": "index_%(column_0_label)s", "pk": "pk_%(table_name)s"}
    )


OldBase: Any = declarative_base()


def differences(connection: Connection, metadata: MetaData) -> list[Any]:
    """Return what Alembic would write into the next migration."""
    context = MigrationContext.configure(
        connection,
        opts={
            "compare_type": True,
            "compare_server_default": True,
            "include_schemas": metadata.schema is not None,
        },
    )
    return list(compare_metadata(context, metadata))


async def test_a_migration_makes_what_the_models_say(
    database: TemporaryDatabase, with_op: WithOp
) -> None:
    """The next migration would change the tables again, and a step write a column that is not
    there.
    """
    StreamTables.of(Base)
    await with_op(add_stream_tables)
    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences, Base.metadata) == []


async def test_both_ways_make_the_same_tables(database: TemporaryDatabase, with_op: WithOp) -> None:
    """A host without migrations would have slower tables, or other ones."""
    StreamTables.of(Base)
    await with_op(add_stream_tables)
    migrated = await picture(database)
    await with_op(drop_stream_tables)
    await database.create_tables(Base.metadata)
    assert await picture(database) == migrated


async def test_the_way_back(database: TemporaryDatabase, with_op: WithOp) -> None:
    """A table or an index would stay behind."""
    before = await picture(database)
    await with_op(add_stream_tables)
    await with_op(drop_stream_tables)
    assert await picture(database) == before


async def test_tables_of_an_earlier_version_are_upgraded(
    database: TemporaryDatabase, with_op: WithOp
) -> None:
    """A step adds what tables of an earlier version lack, and passes over what is there."""
    StreamTables.of(Base)
    await with_op(add_stream_tables)
    await with_op(drop_stream_checks)
    async with database.engine.connect() as connection:
        lacking = await connection.run_sync(differences, Base.metadata)
    names = {change[3].name for change in lacking if change[0] == "add_column"}
    assert names == {"state_keys", "state_keys_at", "begins_after", "differs", "differs_at"}
    for _ in range(2):
        await with_op(add_stream_checks)
        async with database.engine.connect() as connection:
            assert await connection.run_sync(differences, Base.metadata) == []


async def test_tables_in_a_schema(
    postgresql_database: TemporaryDatabase, with_postgresql_op: WithOp
) -> None:
    """A host with a schema of its own would get the tables elsewhere."""
    base: Any = type("SchemaBase", (DeclarativeBase,), {"metadata": MetaData(schema="facts")})
    StreamTables.of(base)
    async with postgresql_database.engine.begin() as connection:
        await connection.execute(text("CREATE SCHEMA facts"))
    await with_postgresql_op(lambda op: add_stream_tables(op, schema="facts"))
    sql = "SELECT count(*) FROM pg_tables WHERE schemaname = 'facts'"
    async with postgresql_database.engine.connect() as connection:
        assert await connection.scalar(text(sql)) == 11
        assert await connection.run_sync(differences, base.metadata) == []
    await with_postgresql_op(lambda op: drop_stream_tables(op, schema="facts"))
    async with postgresql_database.engine.connect() as connection:
        assert await connection.scalar(text(sql)) == 0


@pytest.mark.parametrize("base", [Base, DataclassBase, NamingBase, OldBase, SQLModel])
def test_any_kind_of_base(base: Any) -> None:
    """A host whose models have another kind of base could have no streams."""
    tables = StreamTables.of(base)
    assert StreamTables.of(base) is tables
    for model, table in ((tables.flow_model, tables.flows), (tables.shard_model, tables.shards)):
        assert base.metadata.tables[table.key] is table
        leased = LeasedTable.of(model)
        assert leased.table is table
        assert leased.has_schedule
        assert leased.is_plain
