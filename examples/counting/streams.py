"""From lines to counts, in two stages: a line is split by the shard that reads it, and a word is
counted by the shard that owns it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from rowlock.streams import EventBatch, StepContext, Streams

from .tables import Base
from .texts import words_of


@dataclass(frozen=True)
class Line:
    """A line of a file."""

    file: str
    text: str


SHARDS = 8

streams = Streams(Base)
lines = streams.log("lines", Line, key=attrgetter("file"))
words = streams.flow(
    "words",
    lines,
    shards=SHARDS,
    step_rows_max=1_000,
    # Short, so that this example is; a real host leaves these out.
    lock_timeout=6,
    fetch_delays=(0.1,),
    poll_interval=0.05,
)
counts = words.exchange("counts", int)
totals = words.output("totals", int)


@words.batch()
def split(step: StepContext, batch: EventBatch[Line], _: Mapping[str, None]) -> None:
    """Send each word to the shard that counts it, once for all its lines here."""
    found = Counter(word for text in batch.column("text") for word in words_of(text))
    step.send_many(counts, found.keys(), found.values())


@counts.by_key(state=int)
def count(step: StepContext, word: str, before: int | None, times: Sequence[int]) -> int:
    """Add what the shards have found of one word, and hand out how often it occurs by now."""
    after = (before or 0) + sum(times)
    step.emit(totals, after)
    return after
