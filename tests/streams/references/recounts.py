"""The same answers by SQL over the rows of the sources, on both databases, without the wing.

One thing of it is read for query 12, which is about the time of the processing: when each step was
cut, and up to where.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sqlalchemy import select, text

from rowlock.streams import StreamFlow, Streams

from .nexmark import HOP_MS, LATE_MS, TUMBLE_MS
from .reference import Rows, Sessions

LOCAL_ITEMS: Final = """
    SELECT persons.name, persons.city, persons.state, auctions.id
    FROM auctions JOIN persons ON auctions.seller = persons.id
    WHERE auctions.category = 10 AND persons.state IN ('OR', 'ID', 'CA')
"""
COMPLETE: Final = f"(SELECT max(at_ms) FROM bids) - {LATE_MS}"
"""Up to this time no event can arrive any more."""

HOT_ITEMS: Final = f"""
    WITH hops (hop) AS (VALUES (1), (2), (3), (4), (5)),
    counts AS (
        SELECT (at_ms / {HOP_MS} + hop) * {HOP_MS} AS end_ms, auction, count(*) AS bids
        FROM bids CROSS JOIN hops
        GROUP BY 1, 2
    ),
    ranked AS (
        SELECT counts.*, rank() OVER (PARTITION BY end_ms ORDER BY bids DESC) AS place FROM counts
    )
    SELECT end_ms, auction, bids FROM ranked WHERE place = 1 AND end_ms <= {COMPLETE}
"""


def activity_of(flow: StreamFlow[Any], streams: Streams) -> Callable[[Sessions], Awaitable[Rows]]:
    """Return what counts the bids of each bidder in each window by the recorded times of steps."""
    steps, flows = streams.tables.steps.c, streams.tables.flows.c
    cuts = (
        select(steps.now, steps.upto)
        .join_from(streams.tables.steps, streams.tables.flows, steps.flow_id == flows.id)
        .where(flows.name == flow.name)
        .order_by(steps.step)
    )

    async def count(sessions: Sessions) -> Rows:
        async with sessions() as session:
            found = (await session.execute(cuts)).all()
            bids = await session.execute(text("SELECT position, bidder FROM bids"))
            begins = [int(now.timestamp() * 1_000) // TUMBLE_MS * TUMBLE_MS for now, _ in found]
            upto = [cut["bids"] for _, cut in found]
            counts = Counter(
                (bidder, begins[bisect_left(upto, position)]) for position, bidder in bids
            )
        return Counter((*window, bids) for window, bids in counts.items())

    return count
