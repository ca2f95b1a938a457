"""Claim: lease eligible rows in one short transaction and hand out tickets.

The anchor of trust is taken before the statement is sent, so that a slow answer shortens it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.clock import monotonic
from rowlock.leases.dialects import bind_of, dialect_named
from rowlock.leases.dialects.claims import ClaimedRow, ClaimOrder
from rowlock.leases.item import PipelineItem
from rowlock.leases.transaction import in_transaction


async def claim(
    session_factory: async_sessionmaker[AsyncSession], order: ClaimOrder, *, lease_margin: timedelta, timeout: timedelta
) -> list[PipelineItem[Any]]:
    """Lease up to `order.limit` rows in a transaction of its own; oldest first.

    Args:
        session_factory: opened and committed here.
        order: which rows, for whom, for how long.
        lease_margin: by how much the holder's trust ends before the lease.
        timeout: longest time for the transaction.

    Raises:
        TimeoutError: somebody in this process kept the table's lockset for so long.
        TransactionTimeout: the database did not answer in time; rows it leased all the same become free by expiry.
    """
    dialect = dialect_named(bind_of(session_factory(), order.leased).dialect.name)
    async with AsyncExitStack() as stack:
        # Bounded by itself: once the claim is sent, its rows must not be dropped by anybody's timeout.
        async with asyncio.timeout(timeout.total_seconds()):
            held = await stack.enter_async_context(dialect.excluding(order.leased))
        sent_at = monotonic()

        async def lease(session: AsyncSession, connection: AsyncConnection) -> list[ClaimedRow]:
            return await dialect.claim(connection, order, held)

        rows = await in_transaction(session_factory, order.leased, lease, purpose="claim rows", timeout=timeout)
    trusted_until = sent_at + (order.lock_timeout - lease_margin).total_seconds()
    return [
        _ticket(row, owner=order.owner, trusted_until=trusted_until, session_factory=session_factory) for row in rows
    ]


def _ticket(
    row: ClaimedRow, *, owner: str, trusted_until: float, session_factory: async_sessionmaker[AsyncSession]
) -> PipelineItem[Any]:
    return PipelineItem(
        id=row.id,
        lock_token=row.lock_token,
        lock_owner=owner,
        lock_expires_at=row.lock_expires_at,
        prev_lock_expired=row.prev_lock_expired,
        attempt=1 if row.attempts is None else row.attempts + 1,
        place=float("-inf") if row.place is None else row.place.timestamp(),
        trusted_until=trusted_until,
        session_factory=session_factory,
    )
