"""Rows that come back as they were: how often, and for how long they rest because of it.

The trap this closes: a row that stays ready after ``Apply()`` is processed again and again, and two
pipelines that undo each other's work go on for ever; neither fails, so nothing would be told. Such
a row is looked at more and more rarely, as controllers of Kubernetes do with what asks to be looked
at again (``Requeue`` is rate limited, ``RequeueAfter`` is not).

The one idea: a round is the same change of the same row, made again soon after the last one: no
change at all, or one from A to B where something else leads back to A. Nothing is stored: a replica
knows of the rounds that it has made itself.

Not here: who is told (``pipelines/settling/recorder.py``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple

from rowlock.clock import monotonic
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.outcomes import Apply
from rowlock.pipelines.settings import PipelineSettings
from rowlock.rows.assignments import PLAIN
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import column_of

ROWS_MAX = 10_000
"""Most rows that are remembered."""
CHANGES_MAX = 4
"""Most kinds of changes of one row that are remembered."""
CIRCLES_MIN = 2
"""A change of A to B makes the row rest longer after so many rounds: services may want the same of
a row twice.
"""
SOON_RESTS_UNCHANGED = 10.0
"""A row that was left as it was is back soon if it is claimed within so many of its rests, and
`SOON_S`. In between it may have been with other replicas.
"""
SOON_RESTS_CHANGED = 2.0
"""The same of a row that was changed. Services take longer to want the same again. What changes it
back may take as long as the attempt here took.
"""
SOON_S = 10.0
DOUBLINGS_MAX = 20
TEXT_MAX = 1000
"""So much of what cannot be hashed tells a row from others. **Unit** characters."""


class RowChange(NamedTuple):
    """What an outcome changes.

    Attributes:
        is_none: it leaves the row as it was read.
        what: tells it from others; of a row that is left alone, what the row was like.
    """

    is_none: bool
    what: int


@dataclass(slots=True)
class _Row:
    settled_at: float
    rest_s: float
    took_s: float = 0.0
    rounds: dict[RowChange, int] = field(default_factory=dict)

    def is_over(self, at: float, *, is_none: bool) -> bool:
        rests = SOON_RESTS_UNCHANGED if is_none else SOON_RESTS_CHANGED
        return at > self.settled_at + rests * (self.rest_s + self.took_s) + SOON_S


class Rounds:
    """Remembers what was applied to which row, of one pipeline.

    Args:
        leased: its table; without a schedule no row can be made to rest, and none is remembered.
        settings: `min_processing_interval` is the first rest, `retry_delay_max` the longest.
        are_scheduled: whether rows are due by a schedule, which alone says when; then none is
            remembered.

    Attributes:
        are_watched: whether any is; else `note` is not to be called.
    """

    def __init__(
        self, leased: LeasedTable, settings: PipelineSettings, *, are_scheduled: bool = False
    ) -> None:
        self._leased = leased
        self._settings = settings
        self.are_watched = leased.has_schedule and not are_scheduled
        self._rows: OrderedDict[Any, _Row] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def rest_after(self, item: PipelineItem[Any], outcome: Apply) -> timedelta:
        """Return how long the row of `item` rests after `outcome`, which does not say so."""
        if item.id not in self._rows:
            return self._settings.min_processing_interval
        change = change_of(self._leased, item, outcome)
        return rest_of(self._settings, change, self._rounds_of(item, change))

    def note(self, item: PipelineItem[Any], outcome: Apply) -> tuple[int, timedelta] | None:
        """Remember that `outcome` was written.

        Returns:
            How many rounds the row has made before this one, and how long it rests; None if it
            rests no longer because of that.
        """
        change = change_of(self._leased, item, outcome)
        if change is None:
            self._rows.pop(item.id, None)
            return None
        rounds = self._rounds_of(item, change)
        rest = rest_of(self._settings, change, rounds)
        known = self._rows.pop(item.id, None) or _Row(0.0, 0.0)
        if not rounds:
            # It was changed, or is another than it was: what it was left as is over.
            known.rounds = {
                other: count
                for other, count in known.rounds.items()
                if other != change and not other.is_none
            }
            while len(known.rounds) >= CHANGES_MAX:
                del known.rounds[next(iter(known.rounds))]
        known.rounds[change] = rounds + 1
        known.settled_at, known.rest_s = monotonic(), rest.total_seconds()
        known.took_s = known.settled_at - item.claimed_at
        if self._has_room(known.settled_at):
            self._rows[item.id] = known
        return (rounds, rest) if rest > self._settings.min_processing_interval else None

    def _rounds_of(self, item: PipelineItem[Any], change: RowChange | None) -> int:
        known = self._rows.get(item.id)
        if (
            change is None
            or known is None
            or known.is_over(item.claimed_at, is_none=change.is_none)
        ):
            return 0
        return known.rounds.get(change, 0)

    def _has_room(self, now: float) -> bool:
        # Rows that may still come back are kept: of a herd that all goes round, a part is found,
        # where the newest would push out each before it is back.
        if len(self._rows) < ROWS_MAX:
            return True
        oldest, known = next(iter(self._rows.items()))
        if not known.is_over(now, is_none=True):
            return False
        del self._rows[oldest]
        return True


def rest_of(settings: PipelineSettings, change: RowChange | None, rounds: int) -> timedelta:
    """Return how long a row rests that was changed in this way for so many `rounds` before."""
    is_none = change is not None and change.is_none
    doublings = rounds if is_none else rounds - CIRCLES_MIN + 1
    shortest = settings.min_processing_interval
    if doublings <= 0:
        return shortest
    first, most = max(shortest, settings.retry_delay), max(shortest, settings.retry_delay_max)
    doubled: timedelta = first * 2 ** min(doublings, DOUBLINGS_MAX)
    return min(most, doubled)


def change_of(leased: LeasedTable, item: PipelineItem[Any], outcome: Apply) -> RowChange | None:
    """Return what `outcome` changes; None if that is not known, or does not matter: it is the first
    of its row, says when the row is due, or does more than to write the row.
    """
    rests_as_usual = outcome.after is None and outcome.due_at is None
    does_more = outcome.also is not None or bool(outcome.related)
    if not rests_as_usual or does_more or not leased.has_schedule or not item.has_row:
        return None
    changes = set()
    try:
        # Most rows are processed once, and none of them comes back.
        if item.value_as_read(leased, leased.column("last_processed_at")) is None:
            return None
        for key, value in outcome.values.items():
            column = column_of(leased, key)
            before = item.value_as_read(leased, column)
            if not (_is_plain(value) and _is_plain(before)):
                return None
            if before != value:
                changes.add((column.key, before, value))
        if changes:
            return RowChange(is_none=False, what=hash(frozenset(changes)))
        return RowChange(is_none=True, what=hash(tuple(_as_read(leased, item))))
    # Of the host's values any method may raise anything; dicts and lists cannot be hashed.
    except BaseException:  # noqa: BLE001
        return None


def _as_read(leased: LeasedTable, item: PipelineItem[Any]) -> Iterator[object]:
    """Yield what tells the row from what it may be later: not rowlock's own columns, nor what
    moves with each write.
    """
    for name, column in leased.attributes.items():
        moves = column in leased.columns_with_onupdate or column is leased.mapper.version_id_col
        if not moves and name not in leased.lease_columns:
            value = item.value_as_read(leased, column)
            yield value if isinstance(value, Hashable) else repr(value)[:TEXT_MAX]


def _is_plain(value: object) -> bool:
    return type(value) in PLAIN or isinstance(value, Enum)
