"""The bounded queue between fetcher and workers, with two watermarks, and how far it may grow.

The order is that of the claims, also across fetches: a row that was hinted and heads the order does
not wait behind what an earlier fetch brought. Below the low watermark the fetcher fetches. One
fetcher puts, the pool takes. Neither polls: `on_items` wakes the pool, `on_room` the fetcher. The
fetcher puts no more than there are `places`, so an overflow is an error.

A claim takes the same few round trips for one row and for hundreds. Where work takes microseconds,
a queue of two rows per worker keeps the workers waiting for claims; where work takes seconds, every
further row in the queue is one that another replica could have begun. So the capacity is not
guessed but found, where the host leaves it to the pipeline: it doubles while the rows of full
claims start within `GROWS_BELOW_S`, and is back at its size when one has waited for longer than
`SHRINKS_ABOVE_S`, or when a claim brings less than was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic

from rowlock.clock import monotonic
from rowlock.errors import InternalError
from rowlock.leases.item import PipelineItem
from rowlock.rows.leased_table import ModelT

AHEAD_MAX = 500
"""Most rows in a queue that has grown."""
GROWS_BELOW_S = 0.02
"""The capacity grows while every row starts this soon after it was queued, in seconds."""
SHRINKS_ABOVE_S = 0.05
"""The capacity shrinks when a row starts later than this after it was queued, in seconds.

More than twice `GROWS_BELOW_S`, or a capacity that has doubled would shrink again. Together with
the time of a claim it is less than `FRESH_S`, so that work begins with the rows that claims bring.
"""
_UNKNOWN_S = -1.0


class ItemQueue(Generic[ModelT]):
    """Oldest due first, whenever it was fetched; closed at shutdown.

    Attributes:
        size: the capacity of a queue that has not grown.
        low_watermark: fewer items than this make the fetcher fetch.
        holds_ahead: whether there is room for items that no worker waits for.
        grows: whether the capacity is found; it is fixed if not.
        starts_soon: whether items start while the rows of their claims are fresh; if not, claims
            skip the rows.
        on_room: called when a place was freed; `on_items` when there is something to get.
        idle: returns how many workers wait for items.
    """

    def __init__(
        self, size: int, low_watermark: int, *, holds_ahead: bool = True, grows: bool = False
    ) -> None:
        self.size = self.capacity = self._wanted = size
        self.low_watermark = self._low_watermark_of_size = low_watermark
        self.holds_ahead = holds_ahead
        self.grows = grows
        self._longest_wait_s = _UNKNOWN_S
        self._is_filled = False
        self.starts_soon = True
        self.on_room: Callable[[], None] = lambda: None
        self.on_items: Callable[[], None] = lambda: None
        self.idle: Callable[[], int] = lambda: 0
        self._heap: list[tuple[float, int, PipelineItem[ModelT]]] = []
        self._arrivals = count()
        self._closed = False

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[PipelineItem[ModelT]]:
        return iter(self.waiting())

    def waiting(self) -> list[PipelineItem[ModelT]]:
        return [item for _, _, item in sorted(self._heap)]

    @property
    def room(self) -> int:
        """How many items should be claimed."""
        if self.holds_ahead:
            return self.places
        return max(0, min(self.places, self.idle() - len(self._heap)))

    @property
    def places(self) -> int:
        """How many items there is space for, whether or not a worker waits for them."""
        return 0 if self._closed else max(0, self.capacity - len(self._heap))

    @property
    def is_low(self) -> bool:
        """Whether the fetcher should fetch without being asked."""
        return len(self._heap) < self.low_watermark if self.holds_ahead else self.room > 0

    def look_ahead(self) -> None:
        """Set the capacity for the next claim, from how long rows waited lately."""
        if not self.grows:
            return
        is_slow = self._longest_wait_s > SHRINKS_ABOVE_S
        if is_slow:
            self._wanted = self.size
        elif self.is_low and self._is_filled and 0 <= self._longest_wait_s <= GROWS_BELOW_S:
            self._wanted = max(self.size, min(2 * self._wanted, AHEAD_MAX))
        if is_slow or self.is_low:
            self._longest_wait_s, self._is_filled = _UNKNOWN_S, False
        self.low_watermark = self._low_watermark_of_size * self._wanted // self.size
        # What is queued already stays; and each item that is taken frees a place, or a hinted row
        # would wait for many of them.
        self.capacity = max(self._wanted, min(self.capacity, len(self._heap) + 1))

    def claimed(self, *, is_full: bool) -> None:
        """Note whether a claim brought all that was asked for; if not, claims do not grow."""
        self._is_filled = is_full
        if not is_full:
            self._wanted = self.size

    def shrink(self, gone: Iterable[PipelineItem[ModelT]]) -> None:
        """Discard items that were claimed ahead in vain, and their places with them."""
        self._wanted, self._is_filled = self.size, False
        self.discard(gone)
        self.capacity = max(self.size, len(self._heap))

    def put(self, items: Iterable[PipelineItem[ModelT]]) -> None:
        """Add `items` and call `on_items`; `InternalError`, and none is added, without room."""
        arriving = tuple(items)
        # Workers that waited for them may have been cancelled meanwhile: then they wait here.
        if len(arriving) > self.places:
            raise InternalError(f"{len(arriving)} items for {self.places} places")
        now = monotonic()
        for item in arriving:
            item.queued_at = now
            heappush(self._heap, (item.place, next(self._arrivals), item))
        self.on_items()

    def get(self) -> PipelineItem[ModelT] | None:
        if not self._heap:
            return None
        item = heappop(self._heap)[2]
        if self.grows:
            self._longest_wait_s = max(self._longest_wait_s, monotonic() - item.queued_at)
        self.on_room()
        return item

    def close(self) -> list[PipelineItem[ModelT]]:
        """Stop getting and putting; return what was never started."""
        self._closed = True
        left = list(self)
        self._heap.clear()
        return left

    def discard(self, items: Iterable[PipelineItem[ModelT]]) -> None:
        gone = frozenset(items)
        kept = [entry for entry in self._heap if entry[2] not in gone]
        if len(kept) < len(self._heap):
            self._heap = kept
            heapify(self._heap)
            self.on_room()
