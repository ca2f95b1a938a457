"""From where the next claim starts: behind the last one's end, or at the head of the order.

The one idea: a claim changes nothing that the index looks at, so from the head it walks past all
rows that are leased. While claims follow one another, the next one starts where the last one ended;
older rows that became claimable meanwhile (a dead holder's, those of a replica that stopped, a
request whose hint was lost) are found by looks at the head, which are never further apart than a
fetch delay or `lock_timeout`. A hint, and a claim that brought less than was asked for, have the
next claim look at the head.

Such scans are deferred only where they were seen to be expensive, because so many rows are in
flight: then they take at most a quarter of the time, and meanwhile a hinted claim starts at the end
of the last one, which is where new rows mostly are.

Decides only; the fetcher acts. Not here: how a database starts behind a position (``dialects/``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rowlock.leases.claim_request import Position

EXPENSIVE_S = 0.005
"""A look at the head may take so much longer than a claim that resumes before any is deferred,
in seconds.
"""
DEFERRED_PER_EXPENSIVE = 3
"""For how many times what an expensive look cost the next one is deferred."""
REMEMBERED = 3
"""How many looks, and how many resumed claims, are compared: one slow one says nothing."""


class ClaimCursor:
    """Remembers where the last claim ended, when the head was last looked at, and what that cost.

    Invariants: without `position`, after a failure, and once `resumes_until` has passed, a claim
    starts at the head. `head_scan_due` is cleared by a claim from the head alone.

    Attributes:
        position: of the last row that was claimed.
        head_scan_due: rows may have become claimable that stand before it.
        deferred_until: the head is not looked at before, on the monotonic clock; in the past unless
            looks are expensive.
        resumes_until: it is looked at then, whatever happens.
    """

    def __init__(self, fetch_delays_s: Sequence[float], lock_timeout_s: float) -> None:
        self.position: Position | None = None
        self.head_scan_due = False
        self.deferred_until = float("-inf")
        self.resumes_until = float("-inf")
        self._resumes_for_s = min(*fetch_delays_s, lock_timeout_s)
        self._deferred_for_s_max = min(max(fetch_delays_s), lock_timeout_s)
        self._head_scans_s: deque[float] = deque(maxlen=REMEMBERED)
        self._resumed_s: deque[float] = deque(maxlen=REMEMBERED)

    def start(self, now: float, *, hinted: bool) -> Position | None:
        """Return behind which position a claim starts `now`; None is the head of the order."""
        self.head_scan_due = self.head_scan_due or hinted
        if self.head_scan_due and now >= self.deferred_until:
            return None
        return self.position if now < self.resumes_until else None

    def ended(
        self,
        start: Position | None,
        *,
        began_at: float,
        ended_at: float,
        reached: Position | None,
        is_full: bool,
    ) -> None:
        """Note how a claim went: where it started and ended, and whether it brought all that was
        asked for.
        """
        self.position = reached or self.position
        if start is not None:
            self._resumed_s.append(ended_at - began_at)
            self.head_scan_due = self.head_scan_due or not is_full
            return
        self._head_scans_s.append(ended_at - began_at)
        self.head_scan_due = not is_full
        self.deferred_until = ended_at + min(
            DEFERRED_PER_EXPENSIVE * self._excess_s(), self._deferred_for_s_max
        )
        self.resumes_until = max(began_at + self._resumes_for_s, self.deferred_until)

    def failed(self) -> None:
        """Start over: nobody knows what the claim has done."""
        self.position = None

    def _excess_s(self) -> float:
        if len(self._head_scans_s) < REMEMBERED:
            return 0.0
        excess_s = min(self._head_scans_s) - max(self._resumed_s, default=0.0)
        return excess_s if excess_s >= EXPENSIVE_S else 0.0
