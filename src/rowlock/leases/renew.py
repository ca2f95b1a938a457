"""Renew: one statement extends many leases, each under its own token.

Only a lease that is still valid by the database's clock is extended: after its end others may have
looked at the row and rightly found it free. Rows that are locked are skipped, so that one long
transaction does not hold up the renewal of all others; the next beat tries them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Update, and_, select, type_coerce, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate

from rowlock.dialects.contract import LEASES, LeaseDialect
from rowlock.leases.acquire import LEASES_PER_STATEMENT_MAX, in_pieces
from rowlock.leases.claim_request import Lease
from rowlock.leases.item import PipelineItem, leases_of
from rowlock.rows.database_time import UtcDateTime, database_instant, database_time_after
from rowlock.rows.lease_values import renewed_values
from rowlock.rows.leased_table import LeasedTable


async def renew(
    connection: AsyncConnection,
    leased: LeasedTable,
    items: Sequence[PipelineItem[Any]],
    *,
    lock_timeout: timedelta,
) -> dict[Any, datetime]:
    """Extend the leases of `items`, at most `LEASES_PER_STATEMENT_MAX`; return the new expiry by
    token. The others were lost, or locked for the moment.
    """
    dialect = LEASES.of(connection)

    def build() -> ReturningUpdate[*tuple[Any, ...]]:
        expires_at = type_coerce(leased.column("lock_expires_at"), UtcDateTime)
        renewal = _renewal(dialect, leased, lock_timeout=lock_timeout)
        return renewal.returning(leased.column("lock_token"), expires_at)

    statement = leased.prepared((renew, dialect, lock_timeout), build)
    given = dialect.lease_parameters(leased, leases_of(items))
    return {row[0]: row[1] for row in await connection.execute(statement, given)}


async def not_renewed(
    connection: AsyncConnection,
    leased: LeasedTable,
    leases: Sequence[Lease],
    *,
    lock_timeout: timedelta,
) -> frozenset[Any]:
    """Extend any number of leases, as `renew` does; return the keys of the others, unless their
    rows were deleted.
    """
    dialect, left = LEASES.of(connection), list[Any]()
    statement = _renewal(dialect, leased, lock_timeout=lock_timeout).returning(leased.key)
    for some in in_pieces(leases, LEASES_PER_STATEMENT_MAX):
        given = dialect.lease_parameters(leased, some)
        renewed = frozenset((await connection.scalars(statement, given)).all())
        left += [key for key, _ in some if key not in renewed]
    if not left:
        return frozenset()
    there = await connection.scalars(select(leased.key).where(leased.key.in_(left)))
    return frozenset(there.all())


def _renewal(dialect: LeaseDialect, leased: LeasedTable, *, lock_timeout: timedelta) -> Update:
    valid = and_(
        dialect.matches_leases(leased), leased.column("lock_expires_at") > database_instant()
    )
    values = renewed_values(leased, expires_at=database_time_after(lock_timeout))
    return update(leased.table).where(dialect.skip_locked(leased, valid)).values(values)


async def tokens_still_held(
    connection: AsyncConnection, leased: LeasedTable, items: Sequence[PipelineItem[Any]]
) -> frozenset[Any]:
    token, expires_at = leased.column("lock_token"), leased.column("lock_expires_at")
    dialect = LEASES.of(connection)
    statement = select(token).where(dialect.matches_leases(leased), expires_at > database_instant())
    given = dialect.lease_parameters(leased, leases_of(items))
    return frozenset((await connection.scalars(statement, given)).all())
