"""The optional tables of the windows are made by a migration, or by the host's metadata: the same
ones.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import MetaData, inspect, text

from rowlock import ConfigurationError
from rowlock.insight import insight_tables
from rowlock.insight.migrations import (
    add_history_table,
    add_insight_tables,
    drop_history_table,
    drop_insight_tables,
)
from rowlock.testing import TemporaryDatabase

from .conftest import WithOp, picture
from .test_stream_tables import differences

CHOICES: Any = pytest.mark.parametrize(
    "chosen", [{}, {"replicas": False}, {"controls": False}], ids=["both", "controls", "replicas"]
)


@CHOICES
async def test_a_migration_makes_what_the_metadata_says(
    database: TemporaryDatabase, with_op: WithOp, chosen: Any
) -> None:
    """The next migration would change the tables again."""
    metadata = MetaData()
    insight_tables(metadata, **chosen)
    await with_op(lambda op: add_insight_tables(op, **chosen))
    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences, metadata) == []
    migrated = await picture(database)
    await with_op(lambda op: drop_insight_tables(op, **chosen))
    await database.create_tables(metadata)
    assert await picture(database) == migrated


@CHOICES
async def test_the_way_back(database: TemporaryDatabase, with_op: WithOp, chosen: Any) -> None:
    """A table would stay behind."""
    before = await picture(database)
    await with_op(lambda op: add_insight_tables(op, **chosen))
    assert await picture(database) != before
    await with_op(lambda op: drop_insight_tables(op, **chosen))
    assert await picture(database) == before


async def test_the_history_has_steps_of_its_own(
    database: TemporaryDatabase, with_op: WithOp
) -> None:
    """The next migration would change the table again, or the way back leave it behind."""
    before = await picture(database)
    metadata = MetaData()
    tables = insight_tables(metadata, replicas=False, controls=False, history=True)
    assert insight_tables(metadata, history=True).history is tables.history
    metadata = MetaData()
    insight_tables(metadata, replicas=False, controls=False, history=True)
    await with_op(add_history_table)
    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences, metadata) == []
    migrated = await picture(database)
    await with_op(drop_history_table)
    assert await picture(database) == before
    await database.create_tables(metadata)
    assert await picture(database) == migrated


async def test_tables_in_a_schema(
    postgresql_database: TemporaryDatabase, with_postgresql_op: WithOp
) -> None:
    """A host with a schema of its own would get the tables elsewhere."""
    metadata = MetaData(schema="facts")
    tables = insight_tables(metadata, history=True)
    assert insight_tables(metadata).replicas is tables.replicas
    async with postgresql_database.engine.begin() as connection:
        await connection.execute(text("CREATE SCHEMA facts"))
    await with_postgresql_op(lambda op: add_insight_tables(op, schema="facts"))
    await with_postgresql_op(lambda op: add_history_table(op, schema="facts"))
    async with postgresql_database.engine.connect() as connection:
        assert await connection.run_sync(differences, metadata) == []
        names = await connection.run_sync(lambda it: inspect(it).get_table_names(schema="facts"))
    assert sorted(names) == ["rowlock_controls", "rowlock_history", "rowlock_replicas"]


def test_what_is_no_metadata_is_refused() -> None:
    """A host that hands in its base would hear of it at the first claim."""
    with pytest.raises(ConfigurationError, match=r"such as Base\.metadata"):
        insight_tables(object())  # type: ignore[arg-type]


def test_a_table_is_the_same_when_asked_for_again() -> None:
    """A host whose module is loaded twice would be refused its own tables."""
    metadata = MetaData()
    assert insight_tables(metadata).controls is insight_tables(metadata).controls
