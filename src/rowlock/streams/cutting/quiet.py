"""Whether it is known, without a look at the sources, that no step is to be cut.

The one idea: a look that found nothing holds for as long as what it saw stays so. The row of the
flow, the last visible position of each source and the clock come with one statement
(``flow_view.py``), so an idle flow asks that one and no other.

A look that was held back by open transactions holds for nothing: rows may appear below the last
position. And each look holds for a while only, since positions that went back are found by looks.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from rowlock.streams.cutting.flow_view import FlowFacts, Moment
from rowlock.streams.cutting.plan import Checkpoint, FlowCuts
from rowlock.streams.inputs.high_water import HighWater

HOLDS_FOR_S = 300.0
"""How long a look that found nothing holds, in seconds."""


class Quiet:
    """What the last look that found nothing saw; belongs to one replica."""

    def __init__(self) -> None:
        self._seen: tuple[FlowFacts, tuple[int, ...]] | None = None
        self._until: datetime | None = None
        self._ends_at = 0.0

    def __repr__(self) -> str:
        return f"<Quiet, {self._seen}>"

    def ends(self) -> None:
        """Have the next look made, whatever is known."""
        self._seen = None

    def begins(
        self,
        facts: FlowFacts,
        marks: Iterable[HighWater],
        *,
        overdue_at: datetime | None,
        now: float,
    ) -> None:
        """Note a look that found nothing.

        Args:
            facts: the row of the flow.
            marks: what was seen of each source, in their order.
            overdue_at: when a checkpoint is, though nothing comes; None if none is.
            now: the time, in seconds of a clock that never goes back.
        """
        seen = list(marks)
        is_complete = all(one.mark >= one.newest for one in seen)
        self._seen = (facts, tuple(one.newest for one in seen)) if is_complete else None
        self._until, self._ends_at = overdue_at, now + HOLDS_FOR_S

    def holds(
        self, facts: FlowFacts, moment: Moment, timers: Iterable[datetime], *, now: float
    ) -> bool:
        """Return whether a look would find nothing again.

        Args:
            facts: the row of the flow.
            moment: what was seen with it.
            timers: the earliest one of each shard.
            now: as for `begins`.
        """
        newest = tuple(position or 0 for position in moment.newest)
        due = [*timers, *(() if self._until is None else (self._until,))]
        return (
            self._seen == (facts, newest)
            and now < self._ends_at
            and all(moment.clock < at for at in due)
        )


def overdue_at(flow: FlowCuts, checkpoint: Checkpoint) -> datetime | None:
    """Return when a checkpoint is to be made though nothing comes; None if never."""
    before = -1 if flow.checkpoint_step is None else flow.checkpoint_step
    if checkpoint.seconds is None or flow.next_step - before <= 1 or flow.checkpoint_at is None:
        return None
    return flow.checkpoint_at + timedelta(seconds=checkpoint.seconds)
