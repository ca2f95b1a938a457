"""Windows by the time of the events: a clock of one key closes them, when no event of them can
arrive any more.

The one idea: what all steps so far have read is the same in each layout, so the time up to which
events are complete is a state like any other. The first stage sends the clock how far its events
are and which windows they are in; the clock closes those that are over. A window has all its events
when it is closed, in the same step at the latest. A timer goes by `step.now`, so it would close
windows of which rows still wait to be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeVar

from rowlock.streams import ExchangeStage, StepContext

from .nexmark import LATE_MS

TUMBLE_MS: Final = 10_000
HOP_MS: Final = 2_000
CLOCK: Final = "clock"
"""The key of the clock."""

P = TypeVar("P")


@dataclass(frozen=True)
class Progress:
    """What a shard has read in a step, and all shards in all steps.

    Attributes:
        newest_ms: the latest time of an event.
        ends_ms: the ends of the windows that have events and are not closed.
    """

    newest_ms: int
    ends_ms: list[int]


def closed_by(clock: ExchangeStage[Progress], windows: ExchangeStage[P], *, closing: P) -> None:
    """Have `clock` send `closing` to each of `windows` that is over."""

    @clock.by_key(state=Progress)
    def close(
        step: StepContext, key: str, known: Progress | None, reports: list[Progress]
    ) -> Progress:
        so_far = [*reports, known] if known else reports
        newest = max(one.newest_ms for one in so_far)
        ends = set(chain.from_iterable(one.ends_ms for one in so_far))
        over = sorted(end for end in ends if end <= newest - LATE_MS)
        step.send_many(windows, over, [closing] * len(over))
        return Progress(newest, sorted(ends.difference(over)))


def report(
    step: StepContext, clock: ExchangeStage[Progress], times_ms: list[Any], ends_ms: Iterable[int]
) -> None:
    """Send the clock how far the events of a shard are."""
    step.send(clock, CLOCK, Progress(max(times_ms), sorted(ends_ms)))


def tumbling_end(at_ms: int) -> int:
    """Return the end of the window of a time."""
    return (at_ms // TUMBLE_MS + 1) * TUMBLE_MS


def hopping_ends(at_ms: int) -> range:
    """Return the ends of the windows that a time is in."""
    first = (at_ms // HOP_MS + 1) * HOP_MS
    return range(first, first + TUMBLE_MS, HOP_MS)
