"""Poll: ask for several claim orders at once which of them would find a row, and lease nothing.

One statement instead of a transaction for each order. Not here: whose orders are asked for together
(``pipelines/fetching/poll_groups.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from sqlalchemy import CompoundSelect, Integer, Select, literal_column, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.database.transaction import SessionFactory, in_transaction
from rowlock.leases.claim_request import ClaimRequest

Poll: TypeAlias = Select[Any] | CompoundSelect[Any]


def poll_of(requests: Sequence[ClaimRequest]) -> Poll:
    """Return the statement that gives the numbers of those orders for which there is a row."""
    return union_all(*(_one(number, request) for number, request in enumerate(requests)))


async def poll(
    session_factory: SessionFactory, requests: Sequence[ClaimRequest], statement: Poll, *, timeout: timedelta
) -> frozenset[int]:
    """Return the numbers of those of `requests` for which there is a row now; in a transaction of its own, which writes nothing.

    Rows that somebody else has locked are among them, which a claim would skip: it may find less, never more.

    Args:
        session_factory: the host's; the session is opened and closed here.
        requests: all of them for tables of one database.
        statement: what `poll_of` made of them.
        timeout: longest time for the transaction.

    Raises:
        TransactionTimeout: the database did not answer in time.
    """

    async def work(session: AsyncSession, connection: AsyncConnection) -> frozenset[int]:
        return frozenset((await connection.scalars(statement)).all())

    return await in_transaction(
        session_factory, requests[0].leased, work, purpose="poll", timeout=timeout, writes=False, autocommit=True
    )


def _one(number: int, request: ClaimRequest) -> Select[Any]:
    # In the order of claims, and not as EXISTS, for which PostgreSQL drops the order: so the plan is that of the claim.
    first = select(request.leased.key).where(request.eligible).order_by(*request.oldest_first).limit(1)
    return select(literal_column(str(number), Integer)).select_from(first.subquery())
