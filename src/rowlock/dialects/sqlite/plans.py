"""Plans of SQLite: whether an index can serve a query.

Source: SQLite, "The INDEXED BY Clause" and "EXPLAIN QUERY PLAN".
"""

from __future__ import annotations

from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.leases.indexes.plans import Query, plan_of
from rowlock.rows.leased_table import LeasedTable

_SORTED = "USE TEMP B-TREE FOR ORDER BY"


async def is_plan_with(
    connection: AsyncConnection, leased: LeasedTable, *, query: Query, index: str
) -> bool:
    """Return whether `query` can be answered by `index`, in the order of both; joins the caller's
    transaction.
    """
    preparer = connection.dialect.identifier_preparer
    table = f"FROM {preparer.format_table(leased.table)}"
    demanded = (table, f"{table} INDEXED BY {preparer.quote(index)}")
    prefix = await explaining(connection)
    try:
        plan = await plan_of(connection, query, prefix=prefix, instead=demanded)
    except OperationalError:  # no query solution
        return False
    return not any(_SORTED in str(row[-1]) for row in plan.all())


async def explaining(connection: AsyncConnection) -> str:
    """Return what stands before a query to ask for its plan; joins the caller's transaction."""
    # The driver keeps statements that were prepared, and SQLite makes no plan anew of one that only
    # explains: on a connection that lives long it would be that of an index that is gone.
    version = (await connection.exec_driver_sql("PRAGMA schema_version")).scalar_one()
    return f"EXPLAIN QUERY PLAN /* {int(version)} */ "
