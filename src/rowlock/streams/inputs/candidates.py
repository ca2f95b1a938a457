"""Which position is the high-water mark, from what was seen at several moments.

The one idea: a position that was visible at some moment is the mark as soon as all those have ended
who might have added rows below it at that moment. Until then it is a candidate; newer ones wait
beside it, so that one transaction after the other does not put the mark off for ever.

Nothing here runs SQL: ``high_water.py`` looks, and asks this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

CANDIDATES_MAX: Final = 64
"""Most candidates; past it the latest is replaced, so the oldest still become marks one by one."""


@dataclass(frozen=True, slots=True)
class OpenWriter:
    """A transaction that may have added rows to a table, and has not ended.

    Attributes:
        transaction: its name at the database, the same as long as it is open.
        pid: the process at the server that runs it; None: it is prepared, and waits for its COMMIT
            without one.
        application: what its connection calls itself, or the name under which it was prepared.
        age_s: for how long it has been open, in seconds; None: only its own user may know.
        was_recovered: it was prepared before the server was started, and may have had another name
            then.
    """

    transaction: str
    pid: int | None
    application: str
    age_s: float | None
    was_recovered: bool = False

    def __str__(self) -> str:
        age = "" if self.age_s is None else f", open for {self.age_s:.1f} s"
        where = "prepared" if self.pid is None else f"pid {self.pid}"
        return f"{where} ({self.application or 'no name'}{age})"


@dataclass(slots=True)
class _Candidate:
    position: int
    waits_for: tuple[OpenWriter, ...]


class Candidates:
    """The candidates of one stream. No row can appear at or below its `mark` any more."""

    def __init__(self) -> None:
        self.mark = 0
        self._waiting: list[_Candidate] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def held_back_by(self) -> tuple[OpenWriter, ...]:
        """The transactions that the next mark waits for, the one open for longest first."""
        waits_for = self._waiting[0].waits_for if self._waiting else ()
        return tuple(sorted(waits_for, key=lambda one: -(one.age_s or 0.0)))

    def look(self, newest: int, writers: tuple[OpenWriter, ...]) -> int:
        """Take note of a moment, and return the mark."""
        # `newest` is the last position that is visible; `writers` may have added rows that are not
        # visible, and were listed *after* it was read.
        for one in self._waiting:
            one.waits_for = still_open(one.waits_for, writers)
        ended = [one.position for one in self._waiting if not one.waits_for]
        self._confirm(max(ended, default=0))
        if not writers:
            self._confirm(newest)
        elif newest > max([self.mark, *(one.position for one in self._waiting)]):
            del self._waiting[CANDIDATES_MAX - 1 :]
            self._waiting.append(_Candidate(newest, writers))
        return self.mark

    def _confirm(self, position: int) -> None:
        self.mark = max(self.mark, position)
        self._waiting = [one for one in self._waiting if one.position > self.mark]


def still_open(before: Iterable[OpenWriter], now: Iterable[OpenWriter]) -> tuple[OpenWriter, ...]:
    """Return which transactions of `now` may be among those of `before`."""
    # A prepared one that outlived its server has got another name: it may be any of them.
    names = {one.transaction for one in before}
    return tuple(one for one in now if names and (one.transaction in names or one.was_recovered))
