"""Who works on what: kept by those who work, read by the judge.

The one idea: whoever begins to work on a row, as its main or as a related row, says so; if somebody
else is at work on it whose trust has not ended, two holders work on one row at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from rowlock.testing.virtual_time import START_S

STEPS_MAX: Final = 100_000
"""Most lines that a schedule may write down."""

Place = tuple[str, int]
"""A table and a key."""


@dataclass(slots=True, eq=False)
class Work:
    who: str
    is_trusted: Callable[[], bool]
    places: set[Place] = field(default_factory=set)


class Book:
    """What happened, in order.

    Attributes:
        steps: one line each, with the virtual time.
        wrongs: promises that were broken.
        related: related rows of each attempt whose result named them, by the attempt's mark.
    """

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.wrongs: list[str] = []
        self.related: dict[str, set[Place]] = {}
        self._at_work: list[Work] = []

    def note(self, text: str) -> None:
        assert len(self.steps) < STEPS_MAX
        self.steps.append(f"{asyncio.get_running_loop().time() - START_S:8.3f}  {text}")

    def wrong(self, text: str) -> None:
        self.wrongs.append(text)
        self.note(f"WRONG: {text}")

    @contextmanager
    def at_work(
        self, who: str, places: Iterable[Place], is_trusted: Callable[[], bool]
    ) -> Iterator[Work]:
        work = Work(who, is_trusted)
        self._at_work.append(work)
        try:
            self.take_up(work, places)
            yield work
        finally:
            self._at_work.remove(work)

    def take_up(self, work: Work, places: Iterable[Place]) -> None:
        for place in places:
            for other in self._at_work:
                if (
                    other is not work
                    and place in other.places
                    and other.is_trusted()
                    and work.is_trusted()
                ):
                    self.wrong(f"{work.who} and {other.who} work on {place} at once")
            work.places.add(place)
