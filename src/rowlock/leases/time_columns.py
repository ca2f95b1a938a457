"""Whether the times of a lease have a zone in the database, as they have in the model.

The trap this closes: a table that was not migrated may have times without one, which PostgreSQL
compares by the zone of the session. Rows that were written in UTC would wait for hours, or be
taken from their holders.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import ModelError
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.model_check import keeps_time
from rowlock.rows.row_dialect import ROWS

_WITHOUT_ZONE = "timestamp without time zone"


async def check_time_columns(connection: AsyncConnection, leased: LeasedTable) -> None:
    """Check what the table has for the times that rowlock keeps; joins the caller's transaction.

    Raises:
        ModelError: one of them has no zone.
    """
    times = [leased.column(name) for name in leased.lease_columns]
    times = [column for column in times if keeps_time(column.type)]
    types = select(*map(ROWS.of(connection).type_of, times))
    naive = [
        column.name
        for column, type_ in zip(times, (await connection.execute(types)).one(), strict=True)
        if type_ == _WITHOUT_ZONE
    ]
    if naive:
        raise ModelError(
            f"{leased.table.fullname} has times without a zone in the database:"
            f" {', '.join(naive)}; make each a TIMESTAMP WITH TIME ZONE (python -m rowlock check"
            " prints the migration)",
            model=leased.name,
            column=naive[0],
        )
