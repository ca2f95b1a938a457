"""Indexes of claims that have the name of the model's and serve no claim: Alembic does not see
them, since it compares no conditions.

The one idea: the database's planner is asked for what the model's index says. If it can be read by
no index, in order, then the index of this name is another one. Where the planner finds any, nothing
is changed: a difference that is none would be written into each revision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from alembic.autogenerate import comparators
from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import (
    CreateIndexOp,
    DropIndexOp,
    MigrateOperation,
    ModifyTableOps,
    UpgradeOps,
)
from sqlalchemy import Connection, Index, MetaData, Select, Table, inspect, literal_column, select
from sqlalchemy.exc import SQLAlchemyError

from rowlock.insight.dialects.insight_dialect import INSIGHT
from rowlock.rows.indexes.due_index import INDEX_INFO


@comparators.dispatch_for("schema")
def compare_claim_indexes(
    context: AutogenContext, steps: UpgradeOps, schemas: Collection[str | None]
) -> None:
    """Add the steps that make each index of a claim anew that serves none; Alembic calls it."""
    connection = context.connection
    if connection is None:
        return
    told = {step.index_name for table in steps.ops for step in _index_steps(table)}
    for table in context.sorted_tables:
        of_claims = [index for index in table.indexes if INDEX_INFO in index.info]
        known = _names_in(connection, table) if of_claims else set[str]()
        for index in of_claims:
            if index.name in known - told and not _serves(connection, table, index):
                steps.ops.append(_made_anew(connection, table, index))


def _index_steps(step: MigrateOperation) -> Iterator[CreateIndexOp | DropIndexOp]:
    for each in step.ops if isinstance(step, ModifyTableOps) else [step]:
        if isinstance(each, CreateIndexOp | DropIndexOp):
            yield each


def _names_in(connection: Connection, table: Table) -> set[str]:
    inspector = inspect(connection)
    if not inspector.has_table(table.name, schema=table.schema):
        return set()
    return {str(one["name"]) for one in inspector.get_indexes(table.name, schema=table.schema)}


def _serves(connection: Connection, table: Table, index: Index) -> bool:
    dialect = connection.dialect
    where = index.dialect_kwargs.get(f"{dialect.name}_where")
    query: Select[Any] = select(literal_column("1")).select_from(table)
    query = query if where is None else query.where(where)
    query = query.order_by(*index.expressions).limit(1)
    sql = str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    try:
        return INSIGHT.on(dialect.name).serves(connection, table, query=sql, index=str(index.name))
    except SQLAlchemyError:
        # A column that the condition names is to come in this revision; the next one compares.
        return True


def _made_anew(connection: Connection, table: Table, index: Index) -> ModifyTableOps:
    there = Table(table.name, MetaData(), schema=table.schema, autoload_with=connection)
    old = next(one for one in there.indexes if one.name == index.name)
    steps: list[Any] = [DropIndexOp.from_index(old), CreateIndexOp.from_index(index)]
    return ModifyTableOps(table.name, steps, schema=table.schema)
