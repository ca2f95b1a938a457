"""Brings waiting rows forward when there is room: those that found no worker need not rest to the
end of their interval.

The interval is for those who know nothing better. A replica whose attempt has ended, or that sees a
new worker, does: as many of the rows that wait as there is room for are due at once, those that
were submitted first before the others.

Room is remembered until it was used: a row that was refused a moment before a worker fell idle is
not written as waiting yet when that happens, and is found at the next look. A row that was brought
forward uses its place when a worker accepts it, and only then; until it was offered here its place
is kept, so that no second row comes for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.clock import monotonic
from rowlock.dispatch.states import CAPACITY, PENDING
from rowlock.rows.database_time import database_now
from rowlock.rows.eligibility import is_free
from rowlock.rows.leased_table import LeasedTable

ROOM_MAX = 64
"""Most places that one look gives: no more rows are brought forward than one fetch leases, the
others at the next fetches. So many places are remembered, or one for each worker if there are
more of these.
"""
KEPT_S = 5.0
"""How long a place is kept for a row that was brought forward, in seconds: another replica may
have claimed it.
"""


class Capacity:
    """How many waiting rows may be brought forward, as far as this replica knows."""

    def __init__(self) -> None:
        self._places = 0
        self._freed = 0
        self._workers: frozenset[str] = frozenset()
        self._kept_until: dict[Any, float] = {}

    @property
    def freed_ever(self) -> int:
        """How many attempts have ended here; tells what came during a round of offers from what
        was there before.
        """
        return self._freed

    def look(self, workers: Iterable[str]) -> int:
        """Return how many places are kept for nobody, those of workers that were not there at the
        last look included.

        What is beyond `ROOM_MAX` of them is left to the next looks.
        """
        here = frozenset(workers)
        new = len(here - self._workers)
        self._workers = here
        self._add(new)
        now = monotonic()
        self._kept_until = {key: until for key, until in self._kept_until.items() if until > now}
        return min(ROOM_MAX, max(0, self._places - len(self._kept_until)))

    def freed(self) -> None:
        """Note that an attempt has ended here."""
        self._freed += 1
        self._add(1)

    def keep_for(self, keys: Iterable[Any]) -> None:
        """Keep a place for each row of `keys`, which were brought forward, until it was offered
        here.
        """
        self._kept_until |= dict.fromkeys(keys, monotonic() + KEPT_S)

    def occupied(self, key: Any) -> None:
        """Note that a worker accepted the row of that key."""
        # One place for each acceptance, whether it was kept or not: counted at both, the worker
        # beside it would stay idle.
        self._kept_until.pop(key, None)
        self._places = max(0, self._places - 1)

    def refused(self, key: Any, *, since: int) -> None:
        """Note that nobody accepted: whatever was thought to be room is taken by others, but for
        what was freed meanwhile.

        Args:
            key: of the row that was offered.
            since: `freed_ever` before the first was asked.
        """
        self._kept_until.pop(key, None)
        self._places = min(self._places, self._freed - since)

    def _add(self, places: int) -> None:
        self._places = min(max(ROOM_MAX, len(self._workers)), self._places + places)


async def bring_forward(
    connection: AsyncConnection, leased: LeasedTable, *, count: int
) -> frozenset[Any]:
    """Make up to `count` rows due that rest after an overflow; joins the caller's transaction.
    Returns their keys.
    """
    model: Any = leased.model
    rests = select(leased.key).where(
        model.status == PENDING,
        model.due_at > database_now(),
        model.last_error.startswith(f"{CAPACITY}:"),
        model.parked_at.is_(None),
        is_free(leased),
    )
    # Rows that somebody else has locked are left to whoever that is.
    first = (
        rests.order_by(model.submitted_at, leased.key)
        .limit(count)
        .with_for_update(skip_locked=True)
    )
    moved = (
        update(leased.table)
        .where(leased.key.in_(first))
        .values({leased.column("due_at"): database_now()})
    )
    return frozenset((await connection.scalars(moved.returning(leased.key))).all())
