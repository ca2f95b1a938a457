"""The bounded queue between fetcher and workers, with two watermarks.

The order is that of the claims, also across fetches: a row that was hinted and heads the order does
not wait behind what an earlier fetch brought. Capacity bounds memory and what a crash leaves to be
recovered, and grows with demand where the host leaves it to the pipeline (``pipelines/ahead.py``);
below the low watermark the fetcher fetches. One fetcher puts, the pool takes. Nobody polls: the
pool is told by `on_items`, the fetcher by `on_room`.

Not here: asyncio's ``QueueFull``. The fetcher puts no more than there are `places`, so an overflow
is a bug and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic

from rowlock.clock import monotonic
from rowlock.errors import InternalError
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.ahead import Ahead
from rowlock.rows.leased_table import ModelT


class ItemQueue(Generic[ModelT]):
    """Oldest due first, whenever it was fetched; closed at shutdown.

    Attributes:
        capacity: most items.
        low_watermark: fewer than this many make the fetcher fetch.
        holds_ahead: whether there is room for items that nobody waits for.
        ahead: finds the capacity for claims ahead of the workers, and hears how long items waited;
            None where it is fixed.
        starts_soon: whether items are currently started while the rows that their claims gave are
            fresh; if not, claims skip the rows.
        on_room: called whenever a place was freed.
        on_items: called when there is something to take.
        idle: tells how many wait for items.
    """

    def __init__(
        self,
        capacity: int,
        low_watermark: int,
        *,
        holds_ahead: bool = True,
        ahead: Ahead | None = None,
    ) -> None:
        self.capacity = capacity
        self.low_watermark = low_watermark
        self.holds_ahead = holds_ahead
        self.ahead = ahead
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

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<ItemQueue {len(self)}/{self.capacity}, low {self.low_watermark}{state}>"

    def waiting(self) -> list[PipelineItem[ModelT]]:
        """Return the items in their order."""
        return [item for _, _, item in sorted(self._heap)]

    @property
    def room(self) -> int:
        """How many items should be claimed."""
        return (
            self.places
            if self.holds_ahead
            else max(0, min(self.places, self.idle() - len(self._heap)))
        )

    @property
    def places(self) -> int:
        """How many items there is space for, whether or not anybody waits for them."""
        return 0 if self._closed else max(0, self.capacity - len(self._heap))

    @property
    def is_low(self) -> bool:
        """Whether the fetcher should fetch without being asked."""
        return len(self._heap) < self.low_watermark if self.holds_ahead else self.room > 0

    def look_ahead(self) -> None:
        """Set the capacity for the next claim."""
        if self.ahead is not None:
            self.ahead.look(monotonic(), is_low=self.is_low)
            self.low_watermark = self.ahead.low_watermark
            # What is queued already stays; and each item that is taken frees a place, or a hinted
            # row would wait for many of them.
            self.capacity = max(self.ahead.capacity, min(self.capacity, len(self._heap) + 1))

    def put(self, items: Iterable[PipelineItem[ModelT]]) -> None:
        """Add `items` and tell of them.

        Raises:
            InternalError: there is no room for all of them; none was added.
        """
        arriving = tuple(items)
        # Whoever waited for them may have been cancelled since they were asked for: then they wait
        # here.
        if len(arriving) > self.places:
            raise InternalError(f"{len(arriving)} items for {self.places} places")
        now = monotonic()
        if self.ahead is not None and arriving:
            self.ahead.queued(now - arriving[0].claimed_at)
        for item in arriving:
            item.queued_at = now
            heappush(self._heap, (item.place, next(self._arrivals), item))
        self.on_items()

    def get(self) -> PipelineItem[ModelT] | None:
        """Return the next item; None if there is none."""
        if not self._heap:
            return None
        item = heappop(self._heap)[2]
        if self.ahead is not None:
            self.ahead.started(item.queued_at, monotonic())
        self.on_room()
        return item

    def close(self) -> list[PipelineItem[ModelT]]:
        """Stop taking and putting; return what was never started."""
        self._closed = True
        left = list(self)
        self._heap.clear()
        return left

    def discard(self, items: Iterable[PipelineItem[ModelT]]) -> None:
        """Remove those of `items` that are still queued."""
        gone = frozenset(items)
        kept = [entry for entry in self._heap if entry[2] not in gone]
        if len(kept) < len(self._heap):
            self._heap = kept
            heapify(self._heap)
            self.on_room()
