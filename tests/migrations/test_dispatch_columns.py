"""A table with rows in it is adopted for dispatch and given up again; and what a migration makes
is what the model says.
"""

from __future__ import annotations

from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import JSON, Connection, Integer, MetaData, text

from rowlock.dispatch import DispatchPipeline
from rowlock.dispatch.migrations import (
    add_dispatch_columns,
    add_dispatch_indexes,
    drop_dispatch_columns,
    drop_dispatch_indexes,
)
from rowlock.migrations import add_lock_columns, add_schedule_columns
from rowlock.testing import TemporaryDatabase

from ..dispatch.renders import Base, Fleet, Render, Scenes, all_renders, submit
from .conftest import WithOp

BEFORE = (
    "CREATE TABLE renders (id {uuid} NOT NULL PRIMARY KEY, scene {text} NOT NULL, url {text}, size"
    " INTEGER, report JSON)"
)
TYPES = {
    "sqlite": {"uuid": "CHAR(32)", "text": "VARCHAR"},
    "postgresql": {"uuid": "UUID", "text": "VARCHAR"},
}


async def make_before(database: TemporaryDatabase) -> None:
    """Make the table as it was, with a row."""
    async with database.engine.begin() as connection:
        await connection.execute(text(BEFORE.format(**TYPES[database.dialect_name])))
        await connection.execute(
            text(
                "INSERT INTO renders (id, scene) VALUES ('00000000000000000000000000000001', 'old')"
            )
        )


def adopt(op: Any) -> None:
    add_lock_columns(op, "renders")
    add_schedule_columns(op, "renders")
    add_dispatch_columns(op, "renders")
    add_dispatch_indexes(op, "renders")


async def test_a_table_with_rows_is_adopted(database: TemporaryDatabase, with_op: WithOp) -> None:
    """Old rows would be worked on as if somebody had just submitted them, or refuse the index of
    the keys.
    """
    await make_before(database)
    await with_op(adopt)
    renders = DispatchPipeline(Render, handler=Scenes(), engine=Fleet(), max_active=1)
    [old] = await all_renders(database)
    assert (old.scene, old.status, old.dedup_key, old.stages, old.losses) == (
        "old",
        "completed",
        "",
        {},
        0,
    )
    [(new, fresh)] = await submit(database, renders, "a")
    assert (new.status, fresh, new.stages) == ("pending", True, {})
    [(again, fresh)] = await submit(database, renders, "a")
    assert (again.id, fresh) == (new.id, False)


def differences(connection: Connection) -> list[Any]:
    options = {"compare_type": True, "compare_server_default": True}
    return list(
        compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata)
    )


@pytest.mark.parametrize("made_by", ["migrations", "create_all", "a plain default"])
async def test_it_makes_what_the_model_says(
    database: TemporaryDatabase, with_op: WithOp, made_by: str
) -> None:
    """Autogenerate would find differences for ever, or fail at the default of a JSON column."""
    if made_by == "create_all":
        await database.create_tables(Base.metadata)
    else:
        await make_before(database)
        await with_op(adopt)
    if made_by == "a plain default":

        def plainly(op: Any) -> None:
            with op.batch_alter_table("renders") as batch:
                batch.alter_column(
                    "stages", existing_type=JSON, existing_nullable=False, server_default="{}"
                )

        await with_op(plainly)
    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_a_default_that_is_another_one_is_found(
    database: TemporaryDatabase, with_op: WithOp
) -> None:
    """A default that was changed by hand would look like the model's."""
    await make_before(database)
    await with_op(adopt)

    def change(op: Any) -> None:
        with op.batch_alter_table("renders") as batch:
            batch.alter_column(
                "losses", existing_type=Integer, existing_nullable=False, server_default="7"
            )

    await with_op(change)
    async with database.engine.connect() as connection:
        [[(kind, _, table, column, *_)]] = await connection.run_sync(differences)
    assert (kind, table, column) == ("modify_default", "renders", "losses")


async def test_it_is_given_back(database: TemporaryDatabase, with_op: WithOp) -> None:
    """A host that changes its mind could not go back."""
    await make_before(database)
    await with_op(lambda op: (add_lock_columns(op, "renders"), add_schedule_columns(op, "renders")))

    def columns(connection: Connection) -> set[str]:
        metadata = MetaData()
        metadata.reflect(connection, only=["renders"])
        return set(metadata.tables["renders"].columns.keys())

    async def columns_now() -> set[str]:
        async with database.engine.connect() as connection:
            return await connection.run_sync(columns)

    before = await columns_now()
    await with_op(
        lambda op: (add_dispatch_columns(op, "renders"), add_dispatch_indexes(op, "renders"))
    )
    assert await columns_now() > before
    await with_op(
        lambda op: (drop_dispatch_indexes(op, "renders"), drop_dispatch_columns(op, "renders"))
    )
    assert await columns_now() == before
