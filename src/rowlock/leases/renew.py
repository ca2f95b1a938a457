"""Renew: one statement extends many leases, each under its own token.

Only a lease that is still valid by the database's clock is extended: a late heartbeat never revives an expired one, since between
its end and the heartbeat others may have looked at the row and rightly found it free. Rows that somebody else has locked are
skipped, so that one long transaction does not hold up the renewal of all others; the next beat tries them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Update, and_, select, type_coerce, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.leases.dialects import dialect_of
from rowlock.leases.item import PipelineItem
from rowlock.rows.database_time import UtcDateTime, database_instant, database_time_after
from rowlock.rows.lease_values import renewed_values
from rowlock.rows.leased_table import LeasedTable

LEASES_PER_STATEMENT_MAX = 500
"""Most leases that one statement renews or releases; SQLite's limit on bound variables is far above three times this."""


async def renew(
    connection: AsyncConnection,
    leased: LeasedTable[Any],
    items: Sequence[PipelineItem[Any]],
    *,
    lock_timeout: timedelta,
) -> dict[Any, datetime]:
    """Extend the leases of `items`, at most `LEASES_PER_STATEMENT_MAX`, in the caller's transaction.

    Returns:
        The new expiry by token, for those that were confirmed. The others were lost, or locked by somebody for the moment.
    """
    token, expires_at = leased.column("lock_token"), leased.column("lock_expires_at")
    leases = [(item.id, item.lock_token) for item in items]
    statement = _extending(connection, leased, leases, lock_timeout=lock_timeout).returning(
        token.label("token"), type_coerce(expires_at, UtcDateTime).label("expires_at")
    )
    return {row.token: row.expires_at for row in (await connection.execute(statement)).all()}


async def extend_each(
    connection: AsyncConnection,
    leased: LeasedTable[Any],
    leases: Sequence[tuple[Any, Any]],
    *,
    lock_timeout: timedelta,
) -> frozenset[Any]:
    """As `renew`, for pairs of key and token: leases of related rows, under their main rows' tokens.

    Returns:
        The keys whose leases were extended.
    """
    statement = _extending(connection, leased, leases, lock_timeout=lock_timeout).returning(leased.key)
    return frozenset((await connection.scalars(statement)).all())


def _extending(
    connection: AsyncConnection,
    leased: LeasedTable[Any],
    leases: Sequence[tuple[Any, Any]],
    *,
    lock_timeout: timedelta,
) -> Update:
    dialect = dialect_of(connection)
    valid = and_(dialect.under_tokens(leased, leases), leased.column("lock_expires_at") > database_instant())
    values = renewed_values(leased, expires_at=database_time_after(lock_timeout))
    return update(leased.table).where(dialect.without_waiting(leased, valid)).values(values)


async def tokens_still_held(
    connection: AsyncConnection, leased: LeasedTable[Any], items: Sequence[PipelineItem[Any]]
) -> frozenset[Any]:
    """Return the tokens of those `items` whose lease is still theirs and valid; joins the caller's transaction."""
    token, expires_at = leased.column("lock_token"), leased.column("lock_expires_at")
    mine = dialect_of(connection).under_tokens(leased, [(item.id, item.lock_token) for item in items])
    return frozenset((await connection.scalars(select(token).where(mine, expires_at > database_instant()))).all())
