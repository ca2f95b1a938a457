"""The states of one shard in memory, and its timers, between steps.

The one idea: the holder of a shard is the only one who writes its states, so what it has read or
written is what the database has, or will have. If a transaction fails it does not know any more,
and drops all of it.

Nothing here runs SQL; nothing is shared between threads: a step is computed while its shard waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from heapq import heapify, heappop, heappush

from rowlock.streams.computing.compute import NO_STATE, KeyState

STALE_MAX = 64
"""So many more entries than timers may stand in the heap, beside one for each, before it is made
anew.
"""


class TimerHeap:
    """Timers of one stage of a shard, by time.

    Attributes:
        known: when the timer of each key is due.
    """

    def __init__(self) -> None:
        self.known: dict[str, datetime] = {}
        self._heap: list[tuple[datetime, str]] = []

    def set(self, key: str, at: datetime | None) -> None:
        """Note the timer of `key`; None: it has none."""
        if at is None:
            self.known.pop(key, None)
        elif self.known.get(key) != at:
            self.known[key] = at
            heappush(self._heap, (at, key))
            if len(self._heap) > 2 * len(self.known) + STALE_MAX:
                self._heap = [(due, name) for name, due in self.known.items()]
                heapify(self._heap)

    @property
    def earliest(self) -> datetime | None:
        """When the first timer is due; None if there is none."""
        heap = self._heap
        while heap and self.known.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: datetime) -> list[str]:
        """Return the keys whose timer is due at `now`; they are no longer known, until a step has
        set or kept them.
        """
        keys = []
        while (at := self.earliest) is not None and at <= now:
            key = heappop(self._heap)[1]
            del self.known[key]
            keys.append(key)
        return keys


class StageCache:
    """The states of one stage of a shard.

    Attributes:
        timers: of its keys.
        dirty: keys whose state is newer than that in the database.
        grown: how many more keys have a state than in the database.
    """

    def __init__(self) -> None:
        self.timers = TimerHeap()
        self.dirty: set[str] = set()
        self.grown = 0
        self._states: dict[str, KeyState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Return those of `keys` of which nothing is known here."""
        known = self._states
        return [key for key in keys if key not in known]

    def read(self, keys: Iterable[str], states: Mapping[str, KeyState]) -> None:
        """Keep what the database has of `keys`."""
        for key in keys:
            self._states.setdefault(key, states.get(key, NO_STATE))

    def states(self, keys: Iterable[str]) -> dict[str, KeyState]:
        """Return the states of `keys`, all of which are known."""
        known = self._states
        return {key: known[key] for key in keys}

    def change(self, states: Mapping[str, KeyState]) -> None:
        """Keep what a step has made of states."""
        for key, state in states.items():
            # Behind all others, so that what has not been written for long is forgotten first.
            before = self._states.pop(key, NO_STATE)
            self._states[key] = state
            self.grown += (state != NO_STATE) - (before != NO_STATE)
            self.timers.set(key, state.timer_at)
        self.dirty.update(states)

    def written(self, keys: Iterable[str]) -> None:
        """Note that the database has the states of `keys`."""
        self.dirty.difference_update(keys)

    def forget(self, keys: Iterable[str]) -> None:
        """Forget the states of `keys`, which the database has."""
        for key in keys:
            del self._states[key]

    def shrink(self, keys_max: int) -> None:
        """Forget clean states, those first that were read or written longest ago, until there are
        `keys_max` at most.
        """
        surplus = len(self._states) - keys_max
        if surplus <= 0:
            return
        dirty = self.dirty
        clean = (key for key in self._states if key not in dirty)
        for key in [key for key, _ in zip(clean, range(surplus), strict=False)]:
            del self._states[key]


class ShardCache:
    """The states of a shard, stage by stage.

    Attributes:
        timers_read_until: all timers up to this time are known; None: all are.
    """

    def __init__(self, stages: Iterable[str]) -> None:
        self._stages = {name: StageCache() for name in stages}
        self.timers_read_until: datetime | None = None

    def __iter__(self) -> Iterator[tuple[str, StageCache]]:
        return iter(self._stages.items())

    def __getitem__(self, stage: str) -> StageCache:
        return self._stages[stage]

    def shrink(self, keys_max: int) -> None:
        """Forget clean states until there are `keys_max` at most in all stages together: each has
        the same share, and what one needs less of is for the others.
        """
        stages, left = sorted(self._stages.values(), key=len), keys_max
        for count, stage in zip(range(len(stages), 0, -1), stages, strict=True):
            stage.shrink(max(0, left // count))
            left -= len(stage)

    @property
    def dirty(self) -> int:
        """How many states are newer than those in the database."""
        return sum(len(stage.dirty) for stage in self._stages.values())

    @property
    def earliest_timer(self) -> datetime | None:
        """No timer is due before this; None if there is none."""
        known = [stage.timers.earliest for stage in self._stages.values()]
        known.append(self.timers_read_until)
        return min((at for at in known if at is not None), default=None)
