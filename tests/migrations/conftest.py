"""What tests of migrations share: the example host's tree, run on a database of the test's own,
and pictures of its schema.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, inspect

from alembic import command
from rowlock.testing import TemporaryDatabase

WithOp: TypeAlias = Callable[[Callable[[Any], object]], Awaitable[None]]
"""Runs a function of Alembic's operations as a migration would: in a transaction, which it may
leave for a while.
"""

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))  # as prepend_sys_path does for the tree


class Tree:
    def __init__(self, database: TemporaryDatabase) -> None:
        url = database.url.render_as_string(hide_password=False)
        self.config = Config(
            toml_file=ROOT / "pyproject.toml", cmd_opts=Namespace(x=[f"url={url}"])
        )

    async def upgrade(self, revision: str = "head") -> None:
        """Go up; in a thread, since the tree runs a loop of its own."""
        await asyncio.to_thread(command.upgrade, self.config, revision)

    async def downgrade(self, revision: str) -> None:
        await asyncio.to_thread(command.downgrade, self.config, revision)


@pytest.fixture
def tree(database: TemporaryDatabase) -> Tree:
    return Tree(database)


@pytest.fixture
def with_op(database: TemporaryDatabase) -> WithOp:
    """Steps of a migration, on each database in turn."""
    return lambda steps: _migrate(database, steps)


@pytest.fixture
def with_postgresql_op(postgresql_database: TemporaryDatabase) -> WithOp:
    return lambda steps: _migrate(postgresql_database, steps)


async def _migrate(database: TemporaryDatabase, steps: Callable[[Any], object]) -> None:
    def migrate(connection: Connection) -> None:
        context = MigrationContext.configure(connection, opts={"transactional_ddl": True})
        with context.begin_transaction():
            steps(Operations(context))

    async with database.engine.connect() as connection:
        if database.dialect_name == "sqlite":
            await connection.exec_driver_sql("BEGIN")
        await connection.run_sync(migrate)
        await connection.commit()


async def picture(database: TemporaryDatabase) -> dict[str, Any]:
    """Return everything that the database says of its tables."""

    def look(connection: Connection) -> dict[str, Any]:
        inspector = inspect(connection)
        seen: dict[str, Any] = {}
        for name in inspector.get_table_names():
            columns = [
                {**column, "type": str(column["type"])} for column in inspector.get_columns(name)
            ]
            seen[name] = {
                "columns": columns,
                "key": inspector.get_pk_constraint(name),
                "foreign keys": inspector.get_foreign_keys(name),
                "unique": inspector.get_unique_constraints(name),
                "checks": inspector.get_check_constraints(name),
                "indexes": [
                    {
                        **index,
                        "dialect_options": {
                            key: str(value) for key, value in index["dialect_options"].items()
                        },
                    }
                    for index in inspector.get_indexes(name)
                ],
            }
        seen.pop("alembic_version", None)
        if connection.dialect.name == "postgresql":
            sql = (
                "SELECT relname, relkind, reloptions FROM pg_class WHERE relnamespace ="
                " 'public'::regnamespace ORDER BY 1"
            )
            seen["storage"] = [tuple(row) for row in connection.exec_driver_sql(sql)]
        return seen

    async with database.engine.connect() as connection:
        return await connection.run_sync(look)
