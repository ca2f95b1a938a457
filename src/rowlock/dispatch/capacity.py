"""Brings waiting rows forward when there is room: those that found no worker need not rest to the end of their interval.

The interval is for those who know nothing better. A replica whose attempt has ended, or that sees a new worker, does: as many of the
rows that wait as there is room for are due at once, those that were submitted first before the others.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.dispatch.states import PENDING
from rowlock.rows.database_time import database_now
from rowlock.rows.eligibility import is_free
from rowlock.rows.leased_table import LeasedTable


async def bring_forward(connection: AsyncConnection, leased: LeasedTable[Any], *, count: int) -> int:
    """Make up to `count` rows due that rest after an overflow; joins the caller's transaction. Returns how many."""
    model: Any = leased.model
    rests = select(leased.key).where(
        model.status == PENDING,
        model.due_at > database_now(),
        model.attempts > 0,
        model.parked_at.is_(None),
        is_free(leased),
    )
    # Rows that somebody else has locked are left to whoever that is.
    first = rests.order_by(model.submitted_at, leased.key).limit(count).with_for_update(skip_locked=True)
    moved = update(leased.table).where(leased.key.in_(first)).values({leased.column("due_at"): database_now()})
    return (await connection.execute(moved)).rowcount
