"""The time of this example: a file names the day, and the database of each process goes by it.

Ninety days pass while the example runs. Nothing waits for them, since the streams ask the database
for the time, and a `DatabaseClock` says what it answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from rowlock.testing import DatabaseClock

FIRST_DAY = date(2031, 1, 1)
LAST_DAY = date(2031, 3, 31)
DAY = timedelta(days=1)


def days() -> Iterator[date]:
    """Yield each day of the three months."""
    day = FIRST_DAY
    while day <= LAST_DAY:
        yield day
        day += DAY


def is_last_of_month(day: date) -> bool:
    """Whether the next day is the first of a month."""
    return (day + DAY).day == 1


def first_of_next(month: date) -> datetime:
    """Return the midnight at which a month ends."""
    return midnight((month.replace(day=1) + timedelta(days=31)).replace(day=1))


def midnight(day: date) -> datetime:
    """Return when a day begins."""
    return datetime.combine(day, time(), UTC)


class Calendar:
    """Which day it is, for all processes that are given the same folder."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "today"

    def turn_to(self, day: date) -> None:
        """Let a day begin, everywhere."""
        new = self.file.with_suffix(".new")
        new.write_text(day.isoformat())
        new.replace(self.file)

    def clock(self) -> DatabaseClock:
        """Return a clock for a database of this process."""
        now = self._seconds()
        return DatabaseClock(midnight(FIRST_DAY) + timedelta(seconds=now), source=self._seconds)

    def _seconds(self) -> float:
        today = date.fromisoformat(self.file.read_text())
        return (today - FIRST_DAY) / timedelta(seconds=1)
