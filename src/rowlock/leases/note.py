"""Note: write something to a row while its lease goes on, under the same guard as an outcome.

For what must be seen before the work is done, such as a state, a progress, a stage that need not be repeated. It writes no lock
column, ends nothing and counts nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import Column, bindparam, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm.attributes import set_committed_value

from rowlock.leases.apply import database_time
from rowlock.leases.dialects import dialect_of
from rowlock.leases.item import PipelineItem
from rowlock.leases.transaction import in_transaction
from rowlock.rows.leased_table import LeasedTable, ModelT
from rowlock.rows.updates import Values, column_values, resolve_now_placeholders


async def note(
    session_factory: async_sessionmaker[AsyncSession],
    leased: LeasedTable[ModelT],
    item: PipelineItem[ModelT],
    *,
    values: Values,
    unless_changed: Values | None = None,
    timeout: timedelta,
) -> bool:
    """Write `values` to the row of `item` in a transaction of its own, and show them in ``item.row``.

    Args:
        session_factory: the host's.
        leased: the item's table.
        item: whose token guards the write.
        values: update map; `NOW_PLACEHOLDER` stands for the transaction's time.
        unless_changed: columns that must still have these values.
        timeout: longest time for the transaction.

    Returns:
        Whether it was written; False if the lease is no longer the item's, or if one of the columns was changed.

    Raises:
        OutcomeError: a column is unknown, the key, or one that rowlock keeps.
        TransactionTimeout: it did not end in time, so whether it was written is unknown.
    """
    wanted = column_values(leased, unless_changed or {})
    if not item.is_trusted():
        return False

    async def work(session: AsyncSession, connection: AsyncConnection) -> dict[Column[Any], Any] | None:
        now = await database_time(connection)
        written = column_values(leased, resolve_now_placeholders(values, now))
        token, still = leased.column("lock_token"), dialect_of(connection).is_still
        statement = (
            update(leased.table)
            .where(leased.key == bindparam("rowlock_key", item.id, type_=leased.key.type))
            .where(token == bindparam("rowlock_token", item.lock_token, type_=token.type))
            .where(*(still(column, value) for column, value in wanted.items()))
            .values(written)
        )
        # Trust is asked as late as it can be: the transaction may have waited for a connection.
        is_written = item.is_trusted() and (await connection.execute(statement)).rowcount > 0
        return written if is_written else None

    written = await in_transaction(session_factory, leased, work, purpose="note something in a row", timeout=timeout)
    if written is None:
        return False
    if item.has_row:
        for column, value in written.items():
            set_committed_value(item.row, leased.mapper.get_property_by_column(column).key, value)
    return True
