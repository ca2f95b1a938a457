"""Which rows were set aside first: their keys, a few of them, found by an index alone."""

from __future__ import annotations

from functools import partial
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.counting.counts import PARKED, has_parked_index
from rowlock.insight.questions import ask_part
from rowlock.insight.verdicts import Refused
from rowlock.rows.leased_table import LeasedTable

KEYS_MAX: Final = 10
"""Most keys of one question."""


async def first_parked(
    connection: AsyncConnection, leased: LeasedTable, *, limit: int = KEYS_MAX
) -> tuple[str, ...]:
    """Return the keys of the rows that were parked first, as text; none where no index finds them.

    Joins the caller's transaction.
    """
    if not leased.has_schedule or not has_parked_index(leased):
        return ()
    found = await ask_part(
        connection, partial(_keys, connection, leased, min(limit, KEYS_MAX)), apart=True
    )
    return () if isinstance(found, Refused) else found


async def _keys(connection: AsyncConnection, leased: LeasedTable, limit: int) -> tuple[str, ...]:
    parked_at = leased.attribute(PARKED)
    rows = select(leased.key).where(parked_at.is_not(None)).order_by(parked_at).limit(limit)
    return tuple(str(key) for key in (await connection.execute(rows)).scalars())
