"""The words of the standard library's sources, in two stages: a line is split where its file is
read, and a word is counted by the shard that owns it. A plain `Counter` counts them again.

Lines come through a log, and each append is sent twice, as by a client that has had no answer.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from rowlock.streams import EventBatch, EventLog, StepContext, StreamFlow, Streams

from .reference import Reference, Rows, Sessions, Supply, last_of_keys

LIBRARY: Final = Path(json.__file__).parents[1]
WORD: Final = re.compile(r"[a-z]+")
SENT: Final = 2
"""How often each append is sent."""


@dataclass(frozen=True)
class TextLine:
    file: str
    text: str


def text_lines(count: int) -> Iterator[TextLine]:
    """Yield the first lines that have words; from the beginning again when there are no more."""
    return islice(_endless(), count)


def _endless() -> Iterator[TextLine]:
    while True:
        for path in sorted(LIBRARY.glob("*.py")):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                if words_of(line):
                    yield TextLine(path.name, line.strip())


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower())


def word_counts(streams: Streams, **settings: Any) -> Reference:
    log: EventLog[TextLine] = streams.log("lines", TextLine, key=attrgetter("file"))
    flow: StreamFlow[TextLine] = streams.flow("words", log, **settings)
    counts = flow.exchange("counts", int)
    totals = flow.output("totals", int)
    added: list[TextLine] = []

    @flow.batch()
    def split(step: StepContext, batch: EventBatch[TextLine], _: Mapping[str, None]) -> None:
        found = Counter(word for text in batch.column("text") for word in words_of(text))
        step.send_many(counts, found.keys(), found.values())

    @counts.by_key(state=int)
    def count(step: StepContext, word: str, before: int | None, times: list[int]) -> int:
        after = (before or 0) + sum(times)
        step.emit(totals, after)
        return after

    async def append(sessions: Sessions, lines: Sequence[TextLine], number: int) -> None:
        for _ in range(SENT):
            async with sessions.begin() as session:
                await log.append(session, lines, producer="library", seq=number)
        added.extend(lines)

    async def recount(_: Sessions) -> Rows:
        counted = Counter(word for line in added for word in words_of(line.text))
        return Counter(counted.items())

    supply = Supply("lines", text_lines, append)
    return Reference(flow, supply, last_of_keys(totals), recount)
