"""An index of a former shape is replaced while claims go on."""

from __future__ import annotations

import pytest

from rowlock.rows.migrations import replace_due_index
from rowlock.testing import TemporaryDatabase

from ..dispatch.renders import Base as Renders
from .conftest import Tree, WithOp, picture
from .test_due_index import give_former_index, sent


@pytest.mark.parametrize("concurrently", [False, True])
async def test_an_index_of_a_former_shape_is_replaced(
    database: TemporaryDatabase, tree: Tree, with_op: WithOp, *, concurrently: bool
) -> None:
    """A host that has the former index could not get the new one without writing SQL, or would
    be left with both.
    """
    await tree.upgrade()
    wanted = (await picture(database))["documents"]["indexes"]
    await give_former_index(database)
    assert (await picture(database))["documents"]["indexes"] != wanted
    for _ in range(2):
        await with_op(
            lambda op: replace_due_index(
                op,
                "documents",
                ready="status = 'listed'",
                column="due_at",
                concurrently=concurrently,
            )
        )
        assert (await picture(database))["documents"]["indexes"] == wanted


async def test_claims_have_an_index_while_it_is_replaced(
    postgresql_database: TemporaryDatabase, with_postgresql_op: WithOp
) -> None:
    """A replica that runs meanwhile would read and sort the whole table for each claim."""
    await Tree(postgresql_database).upgrade()
    await give_former_index(postgresql_database)
    with sent(postgresql_database) as statements:
        await with_postgresql_op(
            lambda op: replace_due_index(
                op, "documents", ready="status = 'listed'", column="due_at", concurrently=True
            )
        )
    words = [
        statement.split(" ix_")[0].strip() for statement, _ in statements if " ix_" in statement
    ]
    assert words == [
        "DROP INDEX CONCURRENTLY IF EXISTS",
        "CREATE INDEX CONCURRENTLY",
        "DROP INDEX CONCURRENTLY IF EXISTS",
        "ALTER INDEX",
    ]


async def test_the_index_of_dispatched_rows_can_be_replaced(
    database: TemporaryDatabase, with_op: WithOp
) -> None:
    """A host of dispatched rows would keep the former index for good."""
    async with database.engine.begin() as connection:
        await connection.run_sync(Renders.metadata.create_all)
    wanted = (await picture(database))["renders"]["indexes"]
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql("DROP INDEX ix_renders_due_at")
        await connection.exec_driver_sql(
            "CREATE INDEX ix_renders_due_at ON renders (due_at, id) WHERE status IN ('pending',"
            " 'running')"
        )
    ready = "status IN ('pending', 'running')"
    await with_op(lambda op: replace_due_index(op, "renders", ready=ready, column="due_at"))
    assert (await picture(database))["renders"]["indexes"] == wanted
