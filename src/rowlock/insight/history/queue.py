"""What waits to be written to the history of one database, bounded. Pure.

The one idea: what is lost is counted, and the count is written in its place. A batch stays in hand
until the database has confirmed it, with the times that it got at the first try; so whoever tries
again can tell whether the first try was committed after all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from rowlock.insight.history.entries import EntryValues, NotedEvent, entry_of, gap_of, simplified

QUEUED_MAX: Final = 10_000
"""Most events that wait; the oldest one is dropped for the next one, and counted."""
BATCH_MAX: Final = 500
"""Most entries of one transaction, that of a gap not counted."""


@dataclass(slots=True)
class HistoryBatch:
    """Events that are written together.

    Attributes:
        noted: the events.
        dropped: how many are missing in front of them.
        entries: what is written; None before the first try.
        is_simple: whether their texts are ASCII alone.
    """

    noted: Sequence[NotedEvent]
    dropped: int
    entries: list[EntryValues] | None = None
    is_simple: bool = False

    def stamp(
        self, models: Mapping[str, str], *, replica: str, now: datetime, now_s: float
    ) -> list[EntryValues]:
        """Return the entries, which are made once.

        Args:
            models: the class of the rows of each pipeline.
            replica: the mark of the process.
            now: the time by the database's clock, at the time `now_s` of the monotonic one.
            now_s: that time, in seconds.
        """
        if self.entries is None:
            self.entries = [
                entry_of(one, models[one.event.pipeline], replica=replica, now=now, now_s=now_s)
                for one in self.noted
            ]
            if self.dropped:
                at = self.entries[0].at if self.entries else now
                self.entries.insert(0, gap_of(self.dropped, replica=replica, at=at))
        return self.entries

    def simplify(self) -> bool:
        """Have the texts in ASCII alone; return whether that may help: it does not twice."""
        if self.is_simple or self.entries is None:
            return False
        self.entries, self.is_simple = [simplified(one) for one in self.entries], True
        return True


@dataclass(slots=True)
class HistoryQueue:
    """Events that wait for one database.

    Attributes:
        dropped: how many were dropped so far.
    """

    dropped: int = 0
    _noted: deque[NotedEvent] = field(default_factory=deque)
    _untold: int = 0
    _batch: HistoryBatch | None = None

    def put(self, noted: NotedEvent) -> None:
        """Add an event; if there is no room, the oldest one is dropped."""
        if len(self._noted) >= QUEUED_MAX:
            self._noted.popleft()
            self.drop(1)
        self._noted.append(noted)

    def drop(self, count: int) -> None:
        """Count events that will not be written."""
        self.dropped += count
        self._untold += count

    def batch(self) -> HistoryBatch | None:
        """Return what is to be written next; the same again until `confirm`."""
        if self._batch is None and (self._noted or self._untold):
            count = min(BATCH_MAX, len(self._noted))
            self._batch = HistoryBatch([self._noted.popleft() for _ in range(count)], self._untold)
            self._untold = 0
        return self._batch

    def confirm(self) -> None:
        """Forget the batch, which is written."""
        self._batch = None

    def leave_out(self) -> None:
        """Drop the batch, which the database does not take, and count it."""
        if self._batch is not None:
            self.drop(len(self._batch.noted))
            self._untold += self._batch.dropped
            self._batch = None

    def __len__(self) -> int:
        return len(self._noted) + (0 if self._batch is None else len(self._batch.noted))
