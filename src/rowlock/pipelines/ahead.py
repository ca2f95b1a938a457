"""How many rows are claimed ahead of the workers: more while rows start at once, fewer as soon as
they wait.

A claim takes the same few round trips for one row and for hundreds. Where work takes microseconds,
a queue of two rows per worker keeps the workers waiting for claims; where work takes seconds, every
further row in the queue is one that another replica could have begun. So the capacity is not
guessed but found: it doubles while the rows of full claims start within `GROWS_BELOW_S`, and is
halved when one has waited for longer than `SHRINKS_ABOVE_S`, or when a claim has taken longer than
`CLAIM_S_MAX`. A claim that brings less than was asked for ends it.

Decides only; the fetcher acts. Not here: what becomes of rows that wait all the same
(``pipelines/fetching/unstarted.py``).

Source: the congestion window of TCP, which is found in the same way.
"""

from __future__ import annotations

AHEAD_MAX = 200
"""Most rows in a queue that has grown."""
GROWS_BELOW_S = 0.02
"""The capacity grows while every row starts this soon after it was queued, in seconds."""
SHRINKS_ABOVE_S = 0.05
"""The capacity shrinks when a row starts later than this after it was queued, in seconds.

More than twice `GROWS_BELOW_S`, or a capacity that has doubled would shrink again. Together with
the time of a claim it is less than `FRESH_S`, so that work begins with the rows that claims bring.
"""
CLAIM_S_MAX = 0.1
"""The capacity shrinks when a claim takes longer than this, in seconds: wide rows, or a database
that is busy enough.
"""


class Ahead:
    """The capacity of one queue.

    Invariant: ``size <= capacity <= max(size, AHEAD_MAX)``.

    Attributes:
        size: how many rows the queue holds anyway.
        capacity: how many it may hold now.
    """

    def __init__(self, size: int, low_watermark: int) -> None:
        self.size = self.capacity = size
        self._low_watermark = low_watermark
        self._longest_wait_s: float | None = None
        self._counts_from = float("-inf")
        self._claim_took_s = 0.0
        self._is_filled = False

    def __repr__(self) -> str:
        return f"<Ahead {self.capacity}, at least {self.size}>"

    @property
    def low_watermark(self) -> int:
        """The low watermark that goes with the capacity."""
        return self._low_watermark * self.capacity // self.size

    def started(self, queued_at: float, now: float) -> None:
        """Note that a row has left the queue for a worker."""
        # Those that were queued before the capacity shrank have said what they had to say.
        if queued_at >= self._counts_from:
            self._longest_wait_s = max(self._longest_wait_s or 0.0, now - queued_at)

    def look(self, now: float, *, is_low: bool) -> None:
        """Set the capacity for the next claim. Rows that started since the queue was last low
        are what it goes by.
        """
        waited_s = self._longest_wait_s
        if waited_s is not None and waited_s > SHRINKS_ABOVE_S:
            self._shrink()
            self._counts_from = now
        elif not is_low:
            return
        elif self._is_filled and waited_s is not None and waited_s <= GROWS_BELOW_S:
            self.capacity = max(self.size, min(2 * self.capacity, AHEAD_MAX))
        self._longest_wait_s, self._is_filled = None, False

    def queued(self, took_s: float) -> None:
        """Note how long the claim took of the rows that are queued now."""
        self._claim_took_s = took_s

    def claimed(self, *, is_full: bool) -> None:
        """Note whether a claim brought all that was asked for."""
        if not is_full:
            self.reset()
        elif self._claim_took_s > CLAIM_S_MAX:
            self._shrink()
        self._is_filled = is_full and self._claim_took_s <= CLAIM_S_MAX

    def reset(self) -> None:
        """Claim no more ahead than the queue holds anyway, until rows start at once again."""
        self.capacity, self._is_filled = self.size, False

    def _shrink(self) -> None:
        self.capacity = max(self.size, self.capacity // 2)
